"""SmolLM2-135M and Gemma-3-270M, read from their GGUF files, against transformers with the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.core.block_table import BlockTable
from octavo.core.errors import OctavoError
from octavo.core.step import Chunk, Step
from octavo.models.load import LoadedModel, load_model
from octavo.ops.reference.batch import whole_prompts
from octavo.ops.reference.executor import ReferenceExecutor
from octavo.ops.reference.ops import ReferenceOps

pytestmark = pytest.mark.slow
TEXT = Path(__file__).parents[3] / "shared" / "data" / "text" / "wikitext2-raw"


def load(name: str) -> LoadedModel:
    from octavo.models import catalog

    try:
        path = catalog.resolve(name, pull_missing=False)
    except OctavoError as error:
        pytest.skip(str(error))
    return load_model(path)


def transformers_model(loaded: LoadedModel) -> Any:
    """transformers' own classes with the checkpoint's config and tensors."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(loaded.checkpoint.config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    state = {name: loaded.checkpoint.get(name) for name in loaded.checkpoint.names()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_logits_on_real_text(name: str) -> None:
    """640 tokens: longer than Gemma's window of 512 and than two tiles of keys; the last 8 decoded one by one."""
    if not TEXT.exists():
        pytest.skip(f"{TEXT} is absent")
    loaded = load(name)
    text = next(TEXT.glob("*test*")).read_text()[:8000]
    tokens = loaded.tokenizer.encode(text)[:640]
    with torch.inference_mode():
        expected = transformers_model(loaded)(torch.tensor([tokens]), logits_to_keep=128).logits[0]
        ours = loaded.model.forward(ReferenceOps(), whole_prompts([tokens], range(512, 640)))
    scale = expected.abs().max()
    assert (ours - expected).abs().max() < 1e-4 * max(1.0, float(scale))
    assert torch.equal(ours.argmax(-1), expected.argmax(-1))
    executor = ReferenceExecutor(loaded.model, num_blocks=40, block_size=16)
    table = BlockTable(reversed(range(40)))
    rows = [executor.execute(Step([Chunk(0, tokens[:632], 0, table, [631])]))]
    rows += [executor.execute(Step([Chunk(0, [tokens[p]], p, table, [0])])) for p in range(632, 640)]
    assert torch.equal(torch.cat(rows), ours[-9:])
