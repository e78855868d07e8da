"""From a model's name to a running engine: load, plan the memory, allocate once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo.core.errors import CapacityError, InvalidField
from octavo.core.units import format_bytes
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.memory import MemoryPlan, plan_memory
from octavo.engine.process_memory import (
    available_bytes,
    limit_allocator_growth,
    resident_bytes,
    return_free_memory,
)
from octavo.engine.scheduler import MAX_SCORED_TOKENS
from octavo.engine.scratch import scratch_bytes
from octavo.models.load import LoadedModel, build_model, open_model_checkpoint
from octavo.models.registry import read_spec
from octavo.ops.reference.executor import ReferenceExecutor
from octavo.ops.reference.kv_storage import KVStorage
from octavo.weights.checkpoint import Checkpoint

log = logging.getLogger(__name__)

#: (layers loaded, layers in all)
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine with what it was made of; `plan` is the sum to show."""

    engine: Engine
    plan: MemoryPlan
    loaded: LoadedModel
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
    model = build_model(checkpoint, spec, dtype, progress)
    tokenizer = checkpoint.tokenizer()
    checkpoint.close()
    return_free_memory()
    model_bytes = model.weight_bytes
    plan = plan_memory(
        limit_bytes=config.memory_bytes,
        available_bytes=available_bytes(),
        process_bytes=max(process_bytes, resident_bytes() - model_bytes),
        weight_bytes=model_bytes,
        scratch_bytes=scratch_bytes(
            model,
            config.max_num_batched_tokens,
            config.max_num_seqs,
            config.max_num_seqs + MAX_SCORED_TOKENS,
        ),
        block_bytes=KVStorage.bytes_per_block(model.attention_layers, config.block_size, dtype),
        block_size=config.block_size,
        trained_model_len=spec.max_position_embeddings,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
    )
    log.info("memory plan\n%s", plan)
    executor = ReferenceExecutor(model, plan.num_blocks, plan.block_size, dtype)
    engine = Engine(
        executor,
        tokenizer,
        spec.vocab_size,
        max_model_len=plan.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        prefix_caching=config.prefix_caching,
    )
    return BuiltEngine(engine, plan, LoadedModel(model, spec, tokenizer, checkpoint), config)


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
