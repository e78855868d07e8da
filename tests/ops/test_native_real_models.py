"""Real weights: the native executor's prefill and decode against the reference's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.core.block_table import BlockTable
from octavo.core.step import Chunk, Step
from octavo.models.catalog import pulled
from octavo.models.load import load_model
from octavo.ops.executor_plan import StepLimits
from tests.ops.native_executors import RoundedActivationOps, make_native, reference_logits
from tests.ops.packed import pack_linears

TEXT = Path(__file__).read_text()
LIMITS = StepLimits(max_num_batched_tokens=256, max_num_seqs=4, max_num_logit_rows=256)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bits"), [("smollm2-135m", None), ("gemma3-270m", None), ("smollm2-135m", 4)])
def test_prefill_and_decode_equal_the_reference(name: str, bits: int | None) -> None:
    if pulled(name) is None:
        pytest.skip(f"{name} has not been pulled")
    loaded = load_model(name)
    tokens = loaded.tokenizer.encode(TEXT)[:200]
    model = loaded.model if bits is None else pack_linears(loaded.model, bits, 64)
    executor = make_native(model, 16, limits=LIMITS, threads=2)
    table = BlockTable(range(16))
    prefill = executor.execute(Step([Chunk(0, tokens[:190], 0, table, list(range(190)))])).clone()
    decoded = [executor.execute(Step([Chunk(0, [tokens[i]], i, table, [0])])).clone() for i in range(190, 200)]
    given = torch.cat([prefill, *decoded])
    exact = reference_logits(model, tokens)
    error = (given - exact).norm() / exact.norm()
    if bits is None:
        assert error < 1e-4
        assert torch.equal(given.argmax(-1), exact.argmax(-1))
    else:  # through many layers the few codes that round otherwise decide the next ones: equal in size, not in detail
        caused = (reference_logits(model, tokens, RoundedActivationOps()) - exact).norm() / exact.norm()
        assert error < 1.3 * caused
        assert (given.argmax(-1) == exact.argmax(-1)).float().mean() > 0.85
