"""Logits equal transformers', for every family, rope and window, whole prompts and token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.core.block_table import BlockTable
from octavo.core.step import Chunk, Step
from octavo.models.decoder import DecoderModel
from octavo.models.load import load_model
from octavo.ops.reference.batch import whole_prompts
from octavo.ops.reference.executor import ReferenceExecutor
from octavo.ops.reference.ops import ReferenceOps
from tests.checkpoints import FAMILIES, make_tiny

TOLERANCE = 1e-4
TOKENS = torch.randint(3, 288, (70,), generator=torch.Generator().manual_seed(5)).tolist()
#: Blocks out of order, so that a position's place is not its number.
BLOCK_TABLE = BlockTable([7, 3, 12, 0, 9])

YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
    "llama3": {**LLAMA3, "original_max_position_embeddings": 64},
    "yarn": YARN,
    "yarn-betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn-mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn-attention-factor": {**YARN, "attention_factor": 1.5},
}


def oracle(directory: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32).eval()


def oracle_whole(directory: Path, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        return oracle(directory)(torch.tensor([tokens])).logits[0]


def oracle_steps(directory: Path, tokens: list[int]) -> Tensor:
    """Token by token with transformers' own cache."""
    model, cache, rows = oracle(directory), None, []
    with torch.inference_mode():
        for token in tokens:
            output = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            rows.append(output.logits[0])
    return torch.cat(rows)


def whole(model: DecoderModel, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        return model.forward(ReferenceOps(), whole_prompts([tokens]))


def steps(model: DecoderModel, tokens: list[int]) -> Tensor:
    """Token by token through paged blocks."""
    executor = ReferenceExecutor(model, num_blocks=13, block_size=16)
    return torch.cat(
        [executor.execute(Step([Chunk(0, [token], start, BLOCK_TABLE, [0])])) for start, token in enumerate(tokens)]
    )


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max().item() < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str, tmp_path: Path) -> None:
    """Windows are 24 positions here (Mistral, Gemma 3), the prompt has 70."""
    directory = make_tiny(family, tmp_path / family)
    model = load_model(directory).model
    expected = oracle_whole(directory, TOKENS)
    assert_close(whole(model, TOKENS), expected)
    assert_close(steps(model, TOKENS), expected)


@pytest.mark.parametrize("kind", [kind for kind in ROPES if kind != "dynamic"])
def test_rope(kind: str, tmp_path: Path) -> None:
    directory = make_tiny("llama", tmp_path / "model", rope_parameters=ROPES[kind], num_hidden_layers=2)
    plain = make_tiny("llama", tmp_path / "plain", num_hidden_layers=2)
    expected = oracle_whole(directory, TOKENS)
    assert_close(whole(load_model(directory).model, TOKENS), expected)
    assert (expected - oracle_whole(plain, TOKENS)).abs().max() > 0.1, "the scaling must matter for this test to count"


def test_dynamic_rope(tmp_path: Path) -> None:
    """Trained on 32 positions: equal to transformers token by token beyond that, and as a whole within it."""
    fields = {"rope_parameters": ROPES["dynamic"], "max_position_embeddings": 32, "num_hidden_layers": 2}
    directory = make_tiny("llama", tmp_path / "model", **fields)
    model = load_model(directory).model
    expected = oracle_steps(directory, TOKENS)
    assert_close(steps(model, TOKENS), expected)
    assert_close(whole(model, TOKENS), expected)
    assert_close(whole(model, TOKENS[:32]), oracle_whole(directory, TOKENS[:32]))


def test_logit_softcap(tmp_path: Path) -> None:
    directory = make_tiny("gemma3", tmp_path / "model", final_logit_softcapping=3.0)
    model = load_model(directory).model
    assert_close(whole(model, TOKENS), oracle_whole(directory, TOKENS))


def test_qwen_windows_on_upper_layers(tmp_path: Path) -> None:
    fields = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
    directory = make_tiny("qwen3", tmp_path / "model", **fields)
    loaded = load_model(directory)
    assert [layer.window for layer in loaded.spec.layers] == [None, 20, 20]
    assert_close(whole(loaded.model, TOKENS), oracle_whole(directory, TOKENS))


@pytest.mark.parametrize(
    "fields",
    [
        {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 2},
        {"use_sliding_window": True, "sliding_window": 20, "attention_bias": True},
        {"num_experts": 4, "num_experts_per_tok": 4},
    ],
)
def test_mixture_variants(fields: dict[str, Any], tmp_path: Path) -> None:
    directory = make_tiny("qwen3-moe", tmp_path / "model", **fields)
    model, expected = load_model(directory).model, oracle_whole(directory, TOKENS)
    assert_close(whole(model, TOKENS), expected)
    assert_close(steps(model, TOKENS), expected)


def test_bfloat16_weights_equal_transformers_with_rounded_weights(tmp_path: Path) -> None:
    """bfloat16 is a storage dtype: the arithmetic stays float32."""
    directory = make_tiny("llama-tied", tmp_path / "model")
    model = oracle(directory)
    rounded = {name: value.bfloat16().float() if value.ndim == 2 else value for name, value in model.named_parameters()}
    model.load_state_dict(rounded, strict=False)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    assert_close(whole(load_model(directory, dtype=torch.bfloat16).model, TOKENS), expected)
