"""The memory plan: the sum, what it gives, and what it refuses."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from octavo.core.errors import CapacityError, InvalidField
from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.memory import DEFAULT_KV_TOKENS, MemoryPlan, plan_memory
from octavo.models.decoder import DecoderModel
from octavo.ops.executor_plan import ExecutorUnavailable

MIB = 1 << 20
STORIES = Path(__file__).parents[3] / "shared/data/models/stories260k"


def plan(**changed) -> MemoryPlan:
    given = {
        "limit_bytes": 1000 * MIB,
        "available_bytes": 8000 * MIB,
        "process_bytes": 300 * MIB,
        "weight_bytes": 400 * MIB,
        "scratch_bytes": 100 * MIB,
        "block_bytes": MIB,
        "block_size": 16,
        "trained_model_len": 8192,
        "max_model_len": None,
        "max_num_seqs": 32,
    }
    return plan_memory(**{**given, **changed})


def test_the_sum_uses_the_limit_and_never_exceeds_it() -> None:
    made = plan()
    assert made.num_blocks == 200
    assert made.total_bytes == 1000 * MIB
    assert made.max_model_len == 3200  # what the blocks hold, less than the model's 8192
    assert plan(limit_bytes=1000 * MIB + 17).total_bytes <= 1000 * MIB + 17
    assert plan(max_model_len=1600).concurrency == 2.0


def test_no_more_blocks_than_sequences_can_use() -> None:
    assert plan(limit_bytes=8000 * MIB, max_model_len=160, max_num_seqs=4).num_blocks == 40


def test_a_default_without_a_limit() -> None:
    assert plan(limit_bytes=None).num_kv_tokens == DEFAULT_KV_TOKENS
    assert plan(limit_bytes=None, available_bytes=200 * MIB).num_blocks == 100


@pytest.mark.parametrize("changed", [{"limit_bytes": 700 * MIB}, {"max_model_len": 8192}, {"limit_bytes": 805 * MIB}])
def test_too_little_names_the_sum_and_the_smallest_that_works(changed: dict) -> None:
    with pytest.raises(CapacityError) as caught:
        plan(**changed)
    message = str(caught.value)
    for part in ("process 300.0 MiB", "weights 400.0 MiB", "scratch 100.0 MiB"):
        assert part in message
    smallest = int(message.rsplit("(", 1)[1].split()[0])
    assert plan(**{**changed, "limit_bytes": smallest}).total_bytes == smallest
    with pytest.raises(CapacityError):
        plan(**{**changed, "limit_bytes": smallest - 1})


def test_the_printed_sum_shows_every_term() -> None:
    text = str(plan(max_model_len=1600))
    for part in ("300.0 MiB", "400.0 MiB", "100.0 MiB", "200 blocks", "2.0 sequences of 1600 tokens", "1000.0 MiB"):
        assert part in text


@pytest.mark.skipif(not STORIES.exists(), reason="shared/ is not here")
@pytest.mark.parametrize("executor", ["native", "reference"])
def test_an_engine_keeps_no_second_copy_of_the_weights(executor: str) -> None:
    """The native executor packs weights anew: what was loaded must be gone."""
    gc.collect()
    before = sum(type(each) is DecoderModel for each in gc.get_objects())
    built = build_engine(EngineConfig(STORIES, memory="2GiB", executor=executor))
    assert built.executor == executor
    models = sum(type(each) is DecoderModel for each in gc.get_objects()) - before
    assert models == (1 if executor == "reference" else 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"executor": "gpu"}, "executor: got 'gpu'; must be one of auto, native, reference"),
        ({"kv_dtype": "fp3"}, "kv_dtype.*fp8-e5m2"),
        ({"threads": 0}, "threads"),
        ({"isa": ""}, "isa"),
    ],
)
def test_settings_of_executors_are_checked(changed: dict, message: str) -> None:
    with pytest.raises(InvalidField, match=message):
        EngineConfig("m", **changed)


@pytest.mark.skipif(not STORIES.exists(), reason="shared/ is not here")
@pytest.mark.parametrize("changed", [{"kv_dtype": "fp8"}, {"isa": "avx2"}])
def test_the_reference_refuses_what_it_has_not(changed: dict) -> None:
    with pytest.raises(InvalidField, match=next(iter(changed))):
        build_engine(EngineConfig(STORIES, memory="2GiB", executor="reference", **changed))


@pytest.mark.skipif(not STORIES.exists(), reason="shared/ is not here")
def test_auto_falls_back_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Blocks of 8 positions are too small for the native executor's registers."""
    built = build_engine(EngineConfig(STORIES, memory="2GiB", block_size=8))
    assert built.executor == "reference"
    assert "block_size 8" in caplog.text
    with pytest.raises(ExecutorUnavailable, match="block_size 8"):
        build_engine(EngineConfig(STORIES, memory="2GiB", block_size=8, executor="native"))
