"""Every scheme on the native executor: the reference's numbers, and the same bits whatever else runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from octavo.core.errors import InvalidField
from octavo.models.decoder import DecoderModel
from octavo.models.load import load_model
from octavo.numerics.activations import ActivationFormat, ActivationScheme
from octavo.numerics.float_scheme import MXFP8, FloatFormat, FloatScheme
from octavo.numerics.scheme import IntegerScheme, LinearScheme
from octavo.ops.executor_plan import ExecutorUnavailable, StepLimits
from octavo.ops.native.kernel_units import kernel_units
from octavo.ops.native.packed_model import pack_model
from octavo.ops.native.plan import plan_native
from octavo.ops.reference.executor import ReferenceExecutor
from tests.checkpoints import make_tiny
from tests.ops.native_executors import LIMITS, RoundedActivationOps, make_native, prompts, reference_logits
from tests.ops.paged import Paged
from tests.ops.schemes import apply_scheme, named, with_kv_scales

(TOKENS,) = prompts((90,), seed=11)
INT8_TOKENS = ActivationScheme(ActivationFormat.INT8)
NAMES = ("w8a8", "w8a8-static", "ternary", "fp8", "fp8-static", "fp8-block", "fp8-weights", "mxfp8", "nvfp4", "mxfp4")
#: Beyond what recipes name, but checkpoints may hold it.
OTHERS = {
    "int4 x int8": LinearScheme(IntegerScheme(4, 32, False), INT8_TOKENS),
    "fp8 e5m2": LinearScheme(FloatScheme(FloatFormat.E5M2)),
    "fp8-block x groups": LinearScheme(named("fp8-block").weights, ActivationScheme(ActivationFormat.E4M3_GROUPS)),
    "mxfp8 x mxfp8": LinearScheme(MXFP8, ActivationScheme(ActivationFormat.MXFP8)),
}
#: How far logits may be from the reference's, relative to their size, where only the order of additions differs; and
#: where inputs are rounded: some of thousands stand so near the middle of two codes that the order decides, and in a
#: grid for a whole row, or of FP8, one step is large.
EXACT, ROUNDED = 1e-4, 0.03


def scheme_of(name: str) -> LinearScheme:
    return OTHERS.get(name) or named(name)


def make_model(name: str, directory: Path, family: str = "llama-bias") -> DecoderModel:
    """Ragged sizes but for FP4's and MX's, whose groups must divide them."""
    sizes = {} if "fp4" in name or "mx" in name or "int4" in name else {"hidden_size": 60, "intermediate_size": 172}
    sizes |= {"head_dim": 10} if sizes else {}
    loaded = load_model(make_tiny(family, directory, num_hidden_layers=2, max_position_embeddings=1024, **sizes))
    return apply_scheme(loaded.model, scheme_of(name))


@pytest.fixture(scope="module", params=[*NAMES, *OTHERS])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(name: str, tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    return make_model(name, tmp_path_factory.mktemp("tiny"))


def difference(logits: Tensor, expected: Tensor) -> float:
    return float((logits - expected).norm() / expected.norm())


def test_equals_the_reference(model: DecoderModel, name: str) -> None:
    """The reference rounds inputs as the scheme says (`InputQuantizer.round`), and integers' as these kernels do."""
    logits = Paged(make_native(model)).run([TOKENS], largest=37)
    expected = reference_logits(model, TOKENS, RoundedActivationOps())
    floats = name in ("fp8-block", "fp8-weights", "mxfp8", "fp8 e5m2")
    assert difference(logits, expected) < (EXACT if floats else ROUNDED)
    assert difference(logits, expected) < 0.5 * difference(logits, reference_logits(model, TOKENS[::-1]))


def test_a_sequences_bits_are_its_own(model: DecoderModel) -> None:
    """Alone, in chunks among others, token by token, with two threads, and instruction by instruction."""
    sequences = prompts((90, 1, 33), seed=1)
    paged = Paged(make_native(model), seed=2)
    alone = torch.cat([Paged(make_native(model)).alone(tokens) for tokens in sequences])
    for largest in (90, 7, 1):
        assert torch.equal(paged.run(sequences, largest), alone), f"chunks of up to {largest}"
    assert torch.equal(Paged(make_native(model, threads=2), seed=3).run(sequences, 40), alone)
    assert torch.equal(Paged(make_native(model, fused=False)).run(sequences, 50), alone)


def test_instruction_sets(model: DecoderModel) -> None:
    units = [unit.name for unit in kernel_units() if unit.is_available]
    logits = [Paged(make_native(model, isa=unit)).run([TOKENS[:40]], 30) for unit in units]
    assert all(torch.equal(each, logits[0]) for each in logits[1:]), units


def test_the_plan_is_kept(model: DecoderModel) -> None:
    plan = plan_native(model, 16, LIMITS, 1024, "bfloat16", threads=1)
    executor = make_native(model, kv_dtype="bfloat16")
    assert executor.weight_bytes == plan.weight_bytes
    assert executor.program.scratch_bytes + LIMITS.max_num_logit_rows * model.vocab_size * 4 <= plan.scratch_bytes


@pytest.mark.parametrize("name", ["w8a8", "w8a8-static", "fp8", "mxfp4"])
@pytest.mark.parametrize("family", ["gemma3", "qwen3", "mixtral", "qwen3-moe"])
def test_families(family: str, name: str, tmp_path: Path) -> None:
    """Head norms, sandwich norms, windows; experts, whose hidden features are rounded by whole rows."""
    model = apply_scheme(load_model(make_tiny(family, tmp_path)).model, named(name))
    logits = Paged(make_native(model)).run([TOKENS], largest=37)
    assert difference(logits, reference_logits(model, TOKENS, RoundedActivationOps())) < 2 * ROUNDED
    assert torch.equal(Paged(make_native(model, fused=False, threads=2)).run([TOKENS], largest=8), logits)


def test_what_is_emulated_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = make_model("nvfp4a4", tmp_path)
    with pytest.raises(ExecutorUnavailable, match=r"q_proj.*FP4 by FP4.*reference"):
        plan_native(model, 16, StepLimits(16, 4, 4), 256, "bfloat16", None)
    with pytest.raises(ExecutorUnavailable, match="FP4 by FP4"):
        pack_model(model)


def test_linears_with_different_scales_do_not_share_an_instruction(tmp_path: Path) -> None:
    """q reads inputs in a form of its own: the result is the reference's all the same."""
    model = make_model("w8a8-static", tmp_path)
    other = make_model("w8a8", tmp_path)
    for layer, from_layer in zip(model.layers, other.layers, strict=True):
        layer.replace_linear(from_layer.q)
    assert not any(each.kind == "project_qkv" for each in pack_model(model).instructions)
    logits = Paged(make_native(model)).run([TOKENS], largest=37)
    assert difference(logits, reference_logits(model, TOKENS, RoundedActivationOps())) < ROUNDED


def test_a_program_says_what_its_schemes_are(tmp_path: Path) -> None:
    for name, said in (
        ("w8a8", "int8 per channel [60, 172] x int8 per token"),
        ("fp8-static", "fp8 e4m3 per channel [60, 172] x fp8 e4m3 static"),
        ("nvfp4", "fp4 e2m1 group 16 [96, 160]"),
    ):
        executor = make_native(make_model(name, tmp_path / name.replace("-", "")))
        facts = executor.program.instructions()
        assert {each["weights"] for each in facts if each["name"].endswith("down_proj")} - {""} == {said}


# -- keys and values -------------------------------------------------------------------------------------------------

KV_DTYPES = ("int8", "int8 calibrated", "fp8", "fp8-e5m2")


def kv_model(kv_dtype: str, directory: Path) -> DecoderModel:
    model = load_model(make_tiny("qwen3", directory)).model
    calibrated = {"int8 calibrated": "int8", "fp8": "fp8"}.get(kv_dtype)
    return with_kv_scales(model, calibrated) if calibrated else model


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_keys_and_values_are_rounded_as_the_reference_rounds_them(kv_dtype: str, tmp_path: Path) -> None:
    model = kv_model(kv_dtype, tmp_path)
    logits = Paged(make_native(model, kv_dtype=kv_dtype)).run([TOKENS], largest=37)
    reference = Paged(ReferenceExecutor(model, 64, 16, kv_dtype)).run([TOKENS], largest=37)
    caused = difference(reference, reference_logits(model, TOKENS))
    assert 1e-4 < caused < 0.3
    assert difference(logits, reference) < max(0.25 * caused, 1e-4)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_kv_formats_keep_a_sequences_bits(kv_dtype: str, tmp_path: Path) -> None:
    model = kv_model(kv_dtype, tmp_path)
    sequences = prompts((90, 1, 33), seed=1)
    alone = torch.cat([Paged(make_native(model, kv_dtype=kv_dtype)).alone(tokens) for tokens in sequences])
    for options in ({}, {"threads": 2, "block_size": 32}, {"fused": False}, {"isa": "portable"}):
        paged = Paged(make_native(model, kv_dtype=kv_dtype, **options), seed=2)
        assert torch.equal(paged.run(sequences, 20), alone), options


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_planned_blocks(kv_dtype: str, tmp_path: Path) -> None:
    """A byte for each number, and a scale for each token and head only where they have their own."""
    model = kv_model(kv_dtype, tmp_path)
    plan = plan_native(model, 16, LIMITS, 256, kv_dtype, 1)
    assert make_native(model, 10, kv_dtype=kv_dtype).kv_store.num_bytes == 10 * plan.block_bytes
    numbers = sum(2 * 16 * layer.num_kv_heads * layer.head_dim for layer in model.attention_layers)
    scales = sum(2 * 16 * layer.num_kv_heads * 4 for layer in model.attention_layers)
    assert plan.block_bytes == numbers + (scales if kv_dtype == "int8" else 0)


def test_missing_scales_are_an_error(tmp_path: Path) -> None:
    plain, int8 = kv_model("int8", tmp_path / "a"), kv_model("int8 calibrated", tmp_path / "b")
    for make in (
        lambda model: make_native(model, kv_dtype="fp8"),
        lambda model: ReferenceExecutor(model, 4, 16, "fp8"),
    ):
        with pytest.raises(InvalidField, match=r"k_scale.*layer 0.*octavo quantize MODEL --kv-cache fp8"):
            make(plain)
        with pytest.raises(InvalidField, match="its scales are for int8"):
            make(int8)
    int8.layers[1].attention = plain.layers[1].attention
    with pytest.raises(InvalidField, match=r"none in layers \[1\]"):
        make_native(int8, kv_dtype="int8")


def test_the_reference_itself_keeps_bits(tmp_path: Path) -> None:
    model = kv_model("fp8", tmp_path)
    sequences = prompts((40, 9), seed=1)
    alone = [Paged(ReferenceExecutor(model, 16, 16, "fp8")).alone(tokens) for tokens in sequences]
    paged = Paged(ReferenceExecutor(model, 16, 16, "fp8"), seed=2)
    assert torch.equal(paged.run(sequences, 7), torch.cat(alone))
