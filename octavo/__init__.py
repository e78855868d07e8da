"""Octavo: quantize language models with a measured loss and serve them from paged, prefix-shared memory.

The public names below are loaded when first used, so that `import octavo` imports neither torch nor a server.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.api import calibrate, compare, evaluate, export, fit, quantize
    from octavo.core.outputs import RequestOutput
    from octavo.core.request import Request
    from octavo.core.sampling_params import SamplingParams
    from octavo.engine import LLM, AsyncEngine

__version__ = "0.1.0"

# How torch's OpenMP threads wait, read once when torch is loaded. By default they spin, which beside any other work on
# the same cores costs a time slice at every operation: seconds a step (docs/decisions.md, "Threads wait passively").
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = [
    "LLM",
    "AsyncEngine",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "calibrate",
    "compare",
    "evaluate",
    "export",
    "fit",
    "quantize",
]

#: Public name -> the module that holds it.
_HOMES = {
    "LLM": "octavo.engine",
    "AsyncEngine": "octavo.engine",
    "Request": "octavo.core.request",
    "RequestOutput": "octavo.core.outputs",
    "SamplingParams": "octavo.core.sampling_params",
    "compare": "octavo.api",
    "calibrate": "octavo.api",
    "evaluate": "octavo.api",
    "export": "octavo.api",
    "fit": "octavo.api",
}


def __getattr__(name: str) -> Any:
    if name == "quantize":
        return importlib.import_module("octavo.quantize")
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _QuantizeRoom(ModuleType):
    """The room `octavo.quantize`, which is also the function users call: `octavo.quantize(model, ...)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module("octavo.api").quantize(*args, **kwargs)


class _FrontDoor(ModuleType):
    """This module. Whoever imports the room `quantize` binds it here; that is when it becomes callable."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "quantize" and isinstance(value, ModuleType):
            value.__class__ = _QuantizeRoom
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _FrontDoor
