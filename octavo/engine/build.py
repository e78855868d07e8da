"""From a model's name to a running engine: load, plan the memory, allocate once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from octavo.core.errors import CapacityError, InvalidField
from octavo.core.units import format_bytes
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.executors import plan_executor
from octavo.engine.memory import MemoryPlan, plan_memory
from octavo.engine.process_memory import (
    available_bytes,
    limit_allocator_growth,
    resident_bytes,
    return_free_memory,
    return_free_pages,
)
from octavo.models.load import build_model, open_model_checkpoint
from octavo.models.registry import read_spec
from octavo.models.spec import ModelSpec
from octavo.ops.base import Executor
from octavo.weights.checkpoint import Checkpoint

log = logging.getLogger(__name__)

#: (layers loaded, layers in all)
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine with what it was made of: `plan` is the sum to show, `source` the checkpoint's file or directory,
    `executor` the executor's name. The model as it was loaded is not kept: an executor may have packed it anew."""

    engine: Engine
    plan: MemoryPlan
    source: Path
    executor: str
    config: EngineConfig


def build_engine(config: EngineConfig, progress: Progress | None = None) -> BuiltEngine:
    """Load the model and make an engine within `config.memory`.

    Raises `CapacityError` (before loading where the weights alone are too much), and what loading raises.
    """
    limit_allocator_growth()
    process_bytes = resident_bytes()
    dtype = getattr(torch, config.dtype)
    checkpoint = open_model_checkpoint(config.model)
    spec = read_spec(checkpoint.config)
    _check_length(config.max_model_len, spec.max_position_embeddings)
    _check_weights_fit(checkpoint, config.memory_bytes, process_bytes, dtype)
    tokenizer = checkpoint.tokenizer()
    executor, plan, name = _load_and_plan(checkpoint, spec, config, process_bytes, progress)
    return_free_memory()  # the weights as they were loaded, where the executor has packed its own
    engine = Engine(
        executor,
        tokenizer,
        spec.vocab_size,
        max_model_len=plan.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        prefix_caching=config.prefix_caching,
    )
    return BuiltEngine(engine, plan, Path(checkpoint.source), name, config)


def _load_and_plan(
    checkpoint: Checkpoint, spec: ModelSpec, config: EngineConfig, process_bytes: int, progress: Progress | None
) -> tuple[Executor, MemoryPlan, str]:
    """The executor with its name, and the sum it is part of. `process_bytes`: before anything was loaded."""
    model = build_model(checkpoint, spec, getattr(torch, config.dtype), progress)
    checkpoint.close()
    return_free_pages()
    model_bytes = model.weight_bytes
    planned = plan_executor(model, config)
    plan = plan_memory(
        limit_bytes=config.memory_bytes,
        available_bytes=available_bytes(),
        process_bytes=max(process_bytes, resident_bytes() - model_bytes),
        weight_bytes=planned.plan.weight_bytes,
        scratch_bytes=planned.plan.scratch_bytes,
        block_bytes=planned.plan.block_bytes,
        block_size=config.block_size,
        trained_model_len=spec.max_position_embeddings,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
    )
    log.info("memory plan\n%s", plan)
    return planned.make(plan.num_blocks), plan, planned.name


def _check_length(max_model_len: int | None, trained: int) -> None:
    if max_model_len is not None and max_model_len > trained:
        raise InvalidField("max_model_len", max_model_len, f"the model was trained on at most {trained} positions")


def _check_weights_fit(checkpoint: Checkpoint, limit_bytes: int | None, process_bytes: int, dtype: torch.dtype) -> None:
    """Stop before loading what cannot fit. Only a lower bound is known here: a packed matrix keeps its stored size."""
    if limit_bytes is None:
        return
    packed = "quantization_config" in checkpoint.config
    lowest = 0
    for name in checkpoint.names():
        dense = math.prod(checkpoint.shape(name)) * dtype.itemsize
        lowest += min(dense, checkpoint.tensor_bytes(name)) if packed else dense
    if process_bytes + lowest >= limit_bytes:
        raise CapacityError(
            f"memory {format_bytes(limit_bytes)} is too small: process {format_bytes(process_bytes)} + weights "
            f"{format_bytes(lowest)} leave nothing for KV blocks; give more than {format_bytes(process_bytes + lowest)}"
        )
