"""What the native executor says it will occupy, against what it does occupy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.models.load import load_model
from octavo.ops.base import Linear
from octavo.ops.executor_plan import ExecutorUnavailable, StepLimits
from octavo.ops.native.executor import NativeExecutor
from octavo.ops.native.packed_model import pack_model
from octavo.ops.native.plan import plan_native
from tests.checkpoints import make_tiny
from tests.ops.native_executors import LIMITS, make_native
from tests.ops.packed import pack_linears
from tests.ops.paged import Paged


@pytest.mark.parametrize("family", ["llama-tied", "gemma3", "qwen3-moe"])
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
def test_the_plan_is_kept(family: str, kv_dtype: str, tmp_path: Path) -> None:
    model = load_model(make_tiny(family, tmp_path)).model
    if kv_dtype == "int8":
        pack_linears(model, 4, 32)
    limits = StepLimits(max_num_batched_tokens=512, max_num_seqs=32, max_num_logit_rows=64)
    plan = plan_native(model, 32, limits, 256, kv_dtype, threads=2)
    executor = make_native(model, 10, 32, limits=limits, kv_dtype=kv_dtype, threads=2)
    assert executor.weight_bytes == plan.weight_bytes
    assert executor.kv_store.num_bytes == 10 * plan.block_bytes
    logits_bytes = limits.max_num_logit_rows * model.vocab_size * 4
    assert executor.program.scratch_bytes + logits_bytes <= plan.scratch_bytes
    assert plan.scratch_bytes < executor.program.scratch_bytes + (32 << 20)


def test_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    model = load_model(make_tiny("llama-tied", tmp_path)).model
    with pytest.raises(ExecutorUnavailable, match="block_size 8"):
        plan_native(model, 8, StepLimits(16, 4, 4), 256, "bfloat16", None)
    model.layers[1].replace_linear(Linear("model.layers.1.self_attn.o_proj", model.layers[1].o.weight.double()))
    with pytest.raises(ExecutorUnavailable, match=r"layers\.1\.self_attn\.o_proj.*float64.*bfloat16"):
        plan_native(model, 16, StepLimits(16, 4, 4), 256, "bfloat16", None)


def test_consumed_weights_let_go_of_their_memory(tmp_path: Path) -> None:
    directory = make_tiny("llama-tied", tmp_path)
    kept, consumed = load_model(directory).model, load_model(directory).model
    norm = consumed.final_norm.weight.clone()
    packed = pack_model(consumed, consume=True)
    for layer in consumed.layers:
        assert all(linear.weight.numel() == 0 for linear in layer.linears())
    assert consumed.embedding.weight.numel() == consumed.head.weight.numel() == 0
    assert torch.equal(consumed.final_norm.weight, norm)
    tokens = list(range(3, 40))
    executors = make_native(kept), NativeExecutor(packed, 64, 16, LIMITS, kv_dtype="float32")
    one, other = (Paged(executor).alone(tokens) for executor in executors)
    assert torch.equal(one, other)
