"""Which executor an engine gets, and why."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from octavo.core.errors import InvalidField
from octavo.engine.config import EngineConfig
from octavo.engine.executors import plan_executor
from octavo.models.decoder import DecoderModel
from octavo.models.load import load_model
from octavo.ops.executor_plan import ExecutorUnavailable
from octavo.ops.native.executor import NativeExecutor
from octavo.ops.reference.executor import ReferenceExecutor
from tests.checkpoints import make_tiny
from tests.ops.schemes import apply_scheme, named, with_kv_scales


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    directory: Path = make_tiny("llama-tied", tmp_path_factory.mktemp("tiny"))
    return load_model(directory).model


def config(**options) -> EngineConfig:
    return EngineConfig("tiny", max_num_batched_tokens=64, max_num_seqs=4, **options)


def test_auto_is_native_where_it_can(model: DecoderModel) -> None:
    assert plan_executor(model, config()).name == "native"
    assert plan_executor(model, config(executor="reference")).name == "reference"


def test_auto_falls_back_and_says_why(model: DecoderModel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        planned = plan_executor(model, config(block_size=8))
    assert planned.name == "reference"
    assert isinstance(planned.make(4), ReferenceExecutor)
    assert "block_size 8" in caplog.text
    with pytest.raises(ExecutorUnavailable, match="block_size 8"):
        plan_executor(model, config(block_size=8, executor="native"))


def test_settings_that_cannot_be_honoured(model: DecoderModel) -> None:
    with pytest.raises(InvalidField, match=r"isa.*sse9.*portable"):
        plan_executor(model, config(isa="sse9"))
    with pytest.raises(InvalidField, match="isa"):
        plan_executor(model, config(isa="portable", executor="reference"))


def test_settings_arrive(tmp_path: Path) -> None:
    model = load_model(make_tiny("llama-tied", tmp_path)).model
    planned = plan_executor(model, config(isa="portable", threads=1, kv_dtype="int8"))
    executor = planned.make(6)
    assert isinstance(executor, NativeExecutor)
    assert (executor.unit, executor.team.num_threads) == ("portable", 1)
    assert executor.kv_store.num_bytes == 6 * planned.plan.block_bytes
    assert executor.weight_bytes == planned.plan.weight_bytes


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("format", ["int8", "fp8"])
def test_auto_takes_the_format_that_the_checkpoint_has_scales_for(
    executor: str, format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = with_kv_scales(load_model(make_tiny("llama-tied", tmp_path)).model, format)
    with caplog.at_level(logging.INFO):
        made = plan_executor(model, config(executor=executor)).make(4)
    assert "the checkpoint's calibrated scale for each head" in caplog.text
    kept = made.kv_format if isinstance(made, NativeExecutor) else made.storage.format
    assert kept == {"int8": "int8 calibrated", "fp8": "fp8"}[format]


@pytest.mark.parametrize("executor", ["auto", "native", "reference"])
def test_fp8_without_scales_says_what_is_missing(model: DecoderModel, executor: str) -> None:
    with pytest.raises(
        InvalidField, match=r"kv_dtype: got 'fp8'.*k_scale and v_scale.*octavo quantize MODEL --kv-cache fp8"
    ):
        plan_executor(model, config(executor=executor, kv_dtype="fp8"))


def test_scales_that_are_not_used_are_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = with_kv_scales(load_model(make_tiny("llama-tied", tmp_path)).model, "fp8")
    with caplog.at_level(logging.INFO):
        plan_executor(model, config(kv_dtype="bfloat16"))
    assert "its calibrated fp8 scales are not used" in caplog.text


def test_auto_leaves_fp4_activations_to_the_reference(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = apply_scheme(load_model(make_tiny("llama-tied", tmp_path)).model, named("nvfp4a4"))
    with caplog.at_level(logging.WARNING):
        assert plan_executor(model, config()).name == "reference"
    assert "emulated by the reference" in caplog.text
    with pytest.raises(ExecutorUnavailable, match="FP4 by FP4"):
        plan_executor(model, config(executor="native"))
