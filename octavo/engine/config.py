"""How an engine is set up: few settings, each with a documented default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.core.errors import InvalidField
from octavo.core.units import parse_bytes
from octavo.ops.kv_format import KV_DTYPES

DTYPES = ("float32", "bfloat16")
EXECUTORS = ("auto", "native", "reference")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`model` is a directory, a .gguf file or a catalog name.

    `dtype` is what dense weights are kept in; packed weights stay packed. `executor` computes the steps: "auto" is the
    native one where it can, else the reference. `kv_dtype` is what keys and values are kept in; "auto" is what the
    checkpoint has calibrated scales for (int8, fp8), or else the executor's own choice. `threads` None: one for each
    core this process may use. `isa` forces one of the native executor's instruction sets (`octavo doctor` lists them).
    `memory` is a hard total for the process ("4GiB"; None: see `memory.plan_memory`). `max_model_len` None means the
    model's trained context, or what the KV memory holds if that is less. `max_num_batched_tokens` is a step's token
    budget: a long prompt is computed in chunks of it.
    """

    model: str | Path
    dtype: str = "float32"
    memory: str | int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    prefix_caching: bool = True
    executor: str = "auto"
    kv_dtype: str = "auto"
    threads: int | None = None
    isa: str | None = None

    def __post_init__(self) -> None:
        for name, choices in (("dtype", DTYPES), ("executor", EXECUTORS), ("kv_dtype", KV_DTYPES)):
            if getattr(self, name) not in choices:
                raise InvalidField(name, getattr(self, name), f"must be one of {', '.join(choices)}")
        if self.isa is not None and not (isinstance(self.isa, str) and self.isa):
            raise InvalidField("isa", self.isa, "must be the name of an instruction set; `octavo doctor` lists them")
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "threads"):
            value = getattr(self, name)
            if name in ("max_model_len", "threads") and value is None:
                continue
            lowest = 2 if name == "max_model_len" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise InvalidField(name, value, f"must be a whole number of at least {lowest}")
        if not isinstance(self.prefix_caching, bool):
            raise InvalidField("prefix_caching", self.prefix_caching, "must be true or false")

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_bytes(self.memory)
