"""What every row lost, by one protocol. The base model's final hidden states are computed once and kept."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.measure.divergence import TokenScores, score
from octavo.measure.evaluate import stored_size
from octavo.measure.forward import CHUNK_ROWS, WindowLogits
from octavo.measure.windows import Protocol, cut_windows, read_evaluation_text
from octavo.models.load import LoadedModel, load_model


class Base:
    """The source, on a text's windows."""

    def __init__(self, source: Path, text: Path, num_windows: int, cache: Path) -> None:
        self.loaded = load_model(source)
        read = read_evaluation_text(text)
        self.windows, self.protocol = cut_windows(self.loaded.tokenizer, read, num_windows=num_windows)
        self._logits = WindowLogits(self.loaded.model)
        file = cache / f"base-{read.sha256[:12]}-{len(self.windows)}.pt"
        self._hidden: list[Tensor] = torch.load(file) if file.exists() else self._compute(file)

    def _compute(self, file: Path) -> list[Tensor]:
        with torch.inference_mode():
            hidden = [self._logits.hidden(window)[:-1].clone() for window in self.windows]
        torch.save(hidden, file)
        return hidden

    def logits(self, index: int) -> Iterator[Tensor]:
        return self._logits.logits(self._hidden[index])


def measure(directory: Path, base: Base) -> dict[str, Any]:
    """Perplexity, divergence, agreement and sizes of the model in `directory`."""
    loaded = load_model(directory)
    ours = WindowLogits(loaded.model)
    parts: list[TokenScores] = []
    with torch.inference_mode():
        for index, window in enumerate(base.windows):
            targets = torch.tensor(window[1:]).split(CHUNK_ROWS)
            pieces = zip(ours.window(window), targets, base.logits(index), strict=True)
            parts += [score(logits, target, other) for logits, target, other in pieces]
    scores = TokenScores.concatenate(parts)
    assert scores.base_loss is not None
    assert scores.divergence is not None
    assert scores.agreement is not None
    num_bytes, bits = stored_size(loaded.checkpoint)
    return {
        "perplexity": math.exp(scores.loss.double().mean()),
        "base_perplexity": math.exp(scores.base_loss.double().mean()),
        "kl": float(scores.divergence.double().mean()),
        "kl_999": float(np.percentile(scores.divergence.double().numpy(), 99.9)),
        "top1": float(scores.agreement.double().mean()),
        "bytes": num_bytes,
        "bits_per_weight": bits,
        "linear_bits": linear_bits(loaded),
    }


def linear_bits(loaded: LoadedModel) -> float:
    """Bits of a linear's weight: codes, scales, zero points and group indices of all linears over their weights."""
    spec, checkpoint = loaded.spec, loaded.checkpoint
    names = [f"{name}.weight" for block in range(spec.num_layers) for name in spec.linear_names(block)]
    num_weights = sum(math.prod(checkpoint.shape(name)) for name in names)
    return 8 * sum(map(checkpoint.tensor_bytes, names)) / num_weights


def describe(protocol: Protocol) -> str:
    return json.dumps(protocol.to_dict())
