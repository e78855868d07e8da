"""Measuring a model on text, alone or against another: streamed, never all logits at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from octavo.core.errors import InvalidField
from octavo.measure.divergence import TokenScores, score
from octavo.measure.forward import CHUNK_ROWS, LogitsSource, WindowLogits
from octavo.measure.report import QualityReport, compare, perplexity
from octavo.measure.windows import DEFAULT_WINDOW_TOKENS, EvaluationText, cut_windows
from octavo.models.load import LoadedModel
from octavo.weights.checkpoint import Checkpoint

#: Called with (finished windows, all windows).
Progress = Callable[[int, int], None]


def evaluate(
    model: LoadedModel,
    text: EvaluationText,
    against: LoadedModel | None = None,
    *,
    window_tokens: int = DEFAULT_WINDOW_TOKENS,
    num_windows: int | None = None,
    served: bool = False,
    kv_dtype: str = "bfloat16",
    caveats: list[str] | None = None,
    progress: Progress = lambda done, total: None,
) -> QualityReport:
    """Perplexity of `model` on the first `num_windows` (None: all) windows of `text`; with `against`, also its
    distance to that model on the same tokens. Float32, or with `served` as the native executor computes `model` (not
    `against`), keys and values in `kv_dtype`. Raises `InvalidField` if the two do not share a vocabulary.
    """
    started = time.perf_counter()
    windows, protocol = cut_windows(model.tokenizer, text, window_tokens, num_windows)
    _check_context(model, protocol.window_tokens)
    if against is not None:
        _check_comparable(model, against, windows[0])
    ours: LogitsSource = WindowLogits(model.model)
    if served:
        from octavo.measure.served import ServedLogits

        ours = ServedLogits(model.model, protocol.window_tokens, kv_dtype)
        protocol = replace(protocol, arithmetic=f"as the native executor serves it, {kv_dtype} keys and values")
    base = None if against is None else WindowLogits(against.model)
    parts: list[TokenScores] = []
    with torch.inference_mode():
        for index, window in enumerate(windows):
            parts += _score_window(window, ours, base)
            progress(index + 1, len(windows))
    scores = TokenScores.concatenate(parts)
    value, interval = perplexity(scores.loss.double().numpy())
    weight_bytes, bits = stored_size(model.checkpoint)
    comparison = None
    if against is not None:
        comparison = compare(scores, source_name(against.checkpoint), *stored_size(against.checkpoint))
    return QualityReport(
        model=source_name(model.checkpoint),
        protocol=protocol,
        perplexity=value,
        perplexity_interval=interval,
        weight_bytes=weight_bytes,
        bits_per_weight=bits,
        seconds=time.perf_counter() - started,
        comparison=comparison,
        caveats=list(caveats or []),
    )


def stored_size(checkpoint: Checkpoint) -> tuple[int, float]:
    """(bytes of the model's files, bits per weight). A head that is stored beside the embedding it is tied to is no
    weight of its own, but its bytes count."""
    names = checkpoint.names()
    if checkpoint.config.get("tie_word_embeddings") and len(names) > 1:
        names = [name for name in names if name != "lm_head.weight"]
    num_weights = sum(torch.Size(checkpoint.shape(name)).numel() for name in names)
    return checkpoint.num_bytes, 8 * checkpoint.num_bytes / num_weights


def source_name(checkpoint: Checkpoint) -> str:
    """The last part of the path: reports travel, absolute paths do not."""
    return Path(checkpoint.source).absolute().name


def _score_window(window: list[int], ours: LogitsSource, base: LogitsSource | None) -> list[TokenScores]:
    """Scores of all tokens but the first."""
    targets = torch.tensor(window[1:]).split(CHUNK_ROWS)
    logits = ours.window(window)
    if base is None:
        return [score(chunk, target) for chunk, target in zip(logits, targets, strict=True)]
    base_logits = base.window(window)
    return [score(chunk, target, other) for chunk, target, other in zip(logits, targets, base_logits, strict=True)]


def _check_context(model: LoadedModel, window_tokens: int) -> None:
    limit = model.spec.max_position_embeddings
    if window_tokens > limit:
        raise InvalidField("window_tokens", window_tokens, f"the model's context is {limit} tokens")


def _check_comparable(model: LoadedModel, against: LoadedModel, window: list[int]) -> None:
    if model.spec.vocab_size != against.spec.vocab_size:
        expected = f"a model with the same vocabulary: {model.spec.vocab_size} and {against.spec.vocab_size} entries"
        raise InvalidField("against", source_name(against.checkpoint), expected)
    text = model.tokenizer.decode(window, skip_special_tokens=True)
    if model.tokenizer.encode(text) != against.tokenizer.encode(text):
        expected = "a model with the same tokenizer: the two give different tokens for this text"
        raise InvalidField("against", source_name(against.checkpoint), expected)
