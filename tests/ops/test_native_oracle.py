"""The native executor's logits against the reference's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from octavo.models.load import load_model
from octavo.ops.base import Model
from tests.checkpoints import FAMILIES, make_tiny
from tests.ops.native_executors import RoundedActivationOps, make_native, prompts, reference_logits
from tests.ops.packed import pack_linears
from tests.ops.paged import Paged
from tests.ops.strange_models import STRANGE, StrangeModel

(TOKENS,) = prompts((90,), seed=11)


def relative_error(given: Tensor, expected: Tensor) -> float:
    """Largest difference over the spread of the expected logits."""
    return float((given - expected).abs().max() / expected.std())


@pytest.mark.parametrize("family", FAMILIES)
def test_dense_models_equal_the_reference(family: str, tmp_path: Path) -> None:
    """Float32 weights, activations, keys and values: the order of additions is all that differs."""
    model = load_model(make_tiny(family, tmp_path)).model
    logits = Paged(make_native(model)).run([TOKENS], largest=37)
    assert relative_error(logits, reference_logits(model, TOKENS)) < 2e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sizes_that_fill_no_register(dtype: torch.dtype, tmp_path: Path) -> None:
    sizes = {"hidden_size": 60, "intermediate_size": 172, "head_dim": 10, "vocab_size": 291}
    model = load_model(make_tiny("llama-bias", tmp_path, **sizes), dtype=dtype).model
    logits = Paged(make_native(model)).run([TOKENS], largest=37)
    assert relative_error(logits, reference_logits(model, TOKENS)) < 2e-4


def test_many_rows_of_heads_that_end_within_a_tile(tmp_path: Path) -> None:
    """Heads of 250 features end with a tile only after eight heads: what a task must compute together is large."""
    model = load_model(make_tiny("llama-bias", tmp_path, head_dim=250)).model
    logits = Paged(make_native(model)).alone(TOKENS)
    assert relative_error(logits, reference_logits(model, TOKENS)) < 2e-4


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("layer", STRANGE)
def test_strange_models_equal_the_reference(layer: object, fused: bool) -> None:
    model = StrangeModel(layer)
    tokens = [token % model.vocab_size for token in TOKENS]
    logits = Paged(make_native(model, fused=fused)).run([tokens], largest=37)
    assert relative_error(logits, reference_logits(model, tokens)) < 2e-4


SCHEMES = [(4, 16, True), (4, 32, False), (8, 32, True), (3, 16, False), (2, 16, False), (4, None, True)]


@pytest.mark.parametrize(("bits", "group_size", "symmetric"), SCHEMES, ids=str)
def test_packed_models_equal_the_reference_on_rounded_activations(
    bits: int, group_size: int | None, symmetric: bool, tmp_path: Path
) -> None:
    """Weights are the same numbers and so are the rounded activations, but for those that stand so near the middle of
    two codes that the order of additions decides: a few of thousands, each off by one code."""
    model = pack_linears(load_model(make_tiny("llama-tied", tmp_path)).model, bits, group_size, symmetric)
    check_rounding_explains_the_difference(model)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma3", "mixtral", "qwen3-moe"])
def test_packed_families(family: str, tmp_path: Path) -> None:
    check_rounding_explains_the_difference(pack_linears(load_model(make_tiny(family, tmp_path)).model, 8, 32))


def check_rounding_explains_the_difference(model: Model) -> None:
    logits = Paged(make_native(model)).run([TOKENS], largest=37)
    rounded = reference_logits(model, TOKENS, RoundedActivationOps())
    exact = reference_logits(model, TOKENS)
    caused = (rounded - exact).norm() / exact.norm()  # what rounding activations does
    unexplained = (logits - rounded).norm() / exact.norm()
    assert unexplained < 0.25 * caused
    assert unexplained < 0.02


@pytest.mark.parametrize(("kv_dtype", "most"), [("bfloat16", 0.02), ("int8", 0.05)])
def test_rounded_keys_and_values(kv_dtype: str, most: float, tmp_path: Path) -> None:
    model = load_model(make_tiny("qwen3", tmp_path)).model
    logits = Paged(make_native(model, kv_dtype=kv_dtype)).run([TOKENS], largest=37)
    exact = reference_logits(model, TOKENS)
    assert 0 < float((logits - exact).norm() / exact.norm()) < most
