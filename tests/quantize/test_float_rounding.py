"""GPTQ on floating-point grids, and what fused linears share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from octavo.models.load import load_model
from octavo.numerics.float_grid import encode_float
from octavo.numerics.float_scheme import MXFP4, MXFP8, NVFP4, FloatFormat, FloatScheme, Granularity
from octavo.numerics.float_tensor import FloatTensor
from octavo.quantize.fused import fused_members
from octavo.quantize.gptq import gptq, invert
from octavo.quantize.recipe import Recipe
from octavo.quantize.rounding import round_without_data
from tests.checkpoints import make_tiny
from tests.quantize.test_gptq import _inputs, _statistics, _weight


@pytest.mark.parametrize(
    "scheme",
    [NVFP4, MXFP4, MXFP8, *(FloatScheme(FloatFormat.E4M3, granularity) for granularity in list(Granularity)[:3])],
    ids=str,
)
@pytest.mark.parametrize("act_order", [True, False])
def test_gptq_beats_rounding_on_the_same_grid(scheme: FloatScheme, act_order: bool) -> None:
    """192 inputs: the second block of 128 x 128 is ragged."""
    weight, statistics = _weight(136, 192), _statistics(_inputs(3000, 192))
    result = gptq("m", weight, statistics, invert(statistics.hessian, 0.01, act_order), scheme)
    assert isinstance(result.packed, FloatTensor)
    assert result.report.error < 0.8 * result.report.rtn_error
    importance = statistics.hessian.diagonal()
    assert torch.equal(result.packed.row_scales(), encode_float(weight, scheme, importance=importance).row_scales())


def test_dead_inputs_become_zero() -> None:
    weight, inputs = _weight(32, 64), _inputs(400, 64)
    inputs[:, 5] = 0
    statistics = _statistics(inputs)
    result = gptq("m", weight, statistics, invert(statistics.hessian), NVFP4)
    assert (result.packed.dequantize()[:, 5] == 0).all()
    assert result.report.num_dead_inputs == 1


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_fused_members_share_one_global_scale(family: str, tmp_path: Path) -> None:
    layer = load_model(make_tiny(family, tmp_path / "m")).model.layers[0]
    layer.replace_linear(replace(layer.k, weight=layer.k.weight * 3))
    wanted = [max(float(linear.weight.abs().max()) for linear in members) for members in fused_members(layer)]
    round_without_data(layer, Recipe(method="rtn", scheme="nvfp4"))
    for members, largest in zip(fused_members(layer), wanted, strict=True):
        scales = [linear.weight.global_scale for linear in members]
        assert all(torch.equal(scale, scales[0]) for scale in scales)
        assert float(scales[0]) == pytest.approx(2688 / largest)
    assert float(layer.o.weight.global_scale) != float(layer.q.weight.global_scale)
