"""Ternary weights (BitNet b1.58, Ma et al., 2024): -1, 0 or 1 times one scale for the whole matrix, int8 inputs.

Rounding a trained model to ternary destroys it, so this is only where training starts: `block_training` and `distill`
repair what they can. The published recipe trains from scratch; converting a model took up to 10^11 tokens and still
trailed. Minutes of training give a model that speaks, not one that replaces its source: the measured loss says so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.numerics.integer import round_half_even_, to_storage
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.quantize.result import ModuleReport, QuantizedWeight, relative_error
from octavo.quantize.statistics import InputStatistics

TERNARY = IntegerScheme(2, None, True, ternary=True)


def ternarize(name: str, weight: Tensor, statistics: InputStatistics, scale_dtype: torch.dtype) -> QuantizedWeight:
    """The absmean rule for `weight` `[outputs, inputs]`: codes round(W / mean |W|) within -1..1, latent weight W."""
    weight = weight.to(torch.float32)
    mean = weight.abs().mean().clamp_min(torch.finfo(torch.float32).tiny)
    scale = to_storage(mean.reshape(1, 1), scale_dtype)
    codes = round_half_even_(weight / scale.to(torch.float32)).clamp_(TERNARY.lowest, TERNARY.highest)
    rows = scale.expand(len(weight), 1).contiguous()
    packed = PackedTensor.from_codes(codes.to(torch.int8), rows, None, TERNARY)
    error = relative_error(weight, packed.dequantize(), statistics.hessian)
    report = ModuleReport(
        name=name,
        method="absmean",
        scheme=str(TERNARY),
        shape=packed.shape,
        num_tokens=statistics.num_tokens,
        damping=None,
        num_dead_inputs=0,
        error=error,
        rtn_error=error,
        num_lent_tokens=statistics.num_lent_tokens,
    )
    return QuantizedWeight(packed, report, latent=weight)
