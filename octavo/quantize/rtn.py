"""Round to nearest: the data-free method, and the last resort of every other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from octavo.numerics.quantized_tensor import QuantizedTensor
from octavo.numerics.scheme import Scheme
from octavo.numerics.weight_grid import choose_weight_grid
from octavo.quantize.result import ModuleReport, QuantizedWeight, relative_error
from octavo.quantize.statistics import InputStatistics


def rtn(
    name: str,
    weight: Tensor,
    scheme: Scheme,
    *,
    scale_dtype: torch.dtype = torch.float16,
    search: bool = True,
    statistics: InputStatistics | None = None,
    fallback: str | None = None,
    global_scale: Tensor | None = None,
) -> QuantizedWeight:
    """Nearest codes for `weight` `[outputs, inputs]`. With `statistics` (a method that fell back) the error is
    measured on them and they weigh the scale search; `fallback` is the reason to record. `global_scale` is what fused
    members of an NVFP4 scheme share."""
    hessian = None if statistics is None else statistics.hessian
    importance = None if hessian is None else hessian.diagonal()
    options: dict[str, Any] = {"scale_dtype": scale_dtype, "search": search, "global_scale": global_scale}
    packed = nearest(weight, scheme, **options, importance=importance)
    error = relative_error(weight.to(torch.float32), packed.dequantize(), hessian)
    report = ModuleReport(
        name=name,
        method="rtn",
        scheme=str(scheme),
        shape=packed.shape,
        num_tokens=0 if statistics is None else statistics.num_tokens,
        num_lent_tokens=0 if statistics is None else statistics.num_lent_tokens,
        damping=None,
        num_dead_inputs=0,
        error=error,
        rtn_error=error,
        fallback=fallback,
    )
    return QuantizedWeight(packed, report)


def nearest(
    weight: Tensor,
    scheme: Scheme,
    *,
    scale_dtype: torch.dtype = torch.float16,
    search: bool = True,
    importance: Tensor | None = None,
    global_scale: Tensor | None = None,
) -> QuantizedTensor:
    """The nearest codes alone; `importance` `[inputs]` weighs squared errors in the scale search."""
    options: dict[str, Any] = {"scale_dtype": scale_dtype, "search": search, "global_scale": global_scale}
    return choose_weight_grid(weight, scheme, **options, importance=importance).round(weight)
