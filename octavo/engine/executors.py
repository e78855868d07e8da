"""Which executor an engine gets, what it will occupy, and how it is made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo.core.errors import InvalidField
from octavo.engine.config import EngineConfig
from octavo.engine.process_memory import return_free_memory
from octavo.engine.scheduler import MAX_SCORED_TOKENS
from octavo.models.decoder import DecoderModel
from octavo.ops.base import Executor
from octavo.ops.executor_plan import ExecutorPlan, ExecutorUnavailable, StepLimits

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedExecutor:
    """An executor before it has memory: `make(num_blocks)` packs the weights and allocates the KV blocks."""

    name: str
    plan: ExecutorPlan
    make: Callable[[int], Executor]


def plan_executor(model: DecoderModel, config: EngineConfig) -> PlannedExecutor:
    """The executor `config.executor` names; `auto`: the native one, or the reference where that is unavailable, with
    a logged reason. Raises `ExecutorUnavailable` for a named one, `InvalidField` for settings it cannot honour."""
    if config.executor == "reference":
        return _plan_reference(model, config)
    try:
        return _plan_native(model, config)
    except ExecutorUnavailable as error:
        if config.executor == "native":
            raise
        log.warning("native executor not used: %s; the reference executor runs instead, which is slow", error)
        return _plan_reference(model, config)


def _kv_dtype(model: DecoderModel, config: EngineConfig, own_choice: str) -> str:
    """What `config.kv_dtype` asks for; "auto": what the checkpoint has scales for, or else the executor's own choice.
    Raises `InvalidField` for scales that are missing."""
    from octavo.ops.kv_format import calibrated_dtype, chosen_dtype, describe, kv_format

    layers = model.attention_layers
    calibrated, kv_dtype = calibrated_dtype(layers), chosen_dtype(config.kv_dtype, layers, own_choice)
    format = kv_format(kv_dtype, layers)
    unused = f" (its calibrated {calibrated} scales are not used)" if calibrated and not format.is_calibrated else ""
    log.info("keys and values: %s%s", describe(format), unused)
    return kv_dtype


def step_limits(config: EngineConfig) -> StepLimits:
    """The largest step the scheduler makes: one row of logits a sequence, more where prompts are scored."""
    num_logit_rows = min(config.max_num_batched_tokens, config.max_num_seqs + MAX_SCORED_TOKENS)
    return StepLimits(config.max_num_batched_tokens, config.max_num_seqs, num_logit_rows)


def _plan_native(model: DecoderModel, config: EngineConfig) -> PlannedExecutor:
    try:
        from octavo.ops.native.executor import NativeExecutor, unit_named
        from octavo.ops.native.packed_model import pack_model
        from octavo.ops.native.plan import plan_native
    except ImportError as error:
        raise ExecutorUnavailable(f"its C++ extension cannot be loaded ({error}); reinstall Octavo") from error
    kv_dtype = _kv_dtype(model, config, "bfloat16")
    limits, isa, threads = step_limits(config), unit_named(config.isa), config.threads
    max_positions = config.max_model_len or model.spec.max_position_embeddings
    plan = plan_native(model, config.block_size, limits, max_positions, kv_dtype, threads)

    def make(num_blocks: int) -> Executor:
        packed = pack_model(model, threads, consume=True)
        return_free_memory()  # what was loaded is gone before the blocks are there
        return NativeExecutor(
            packed, num_blocks, config.block_size, limits, kv_dtype=kv_dtype, threads=threads, isa=isa
        )

    return PlannedExecutor("native", plan, make)


def _plan_reference(model: DecoderModel, config: EngineConfig) -> PlannedExecutor:
    from octavo.ops.kv_format import kv_format
    from octavo.ops.reference.executor import ReferenceExecutor
    from octavo.ops.reference.kv_storage import KVStorage
    from octavo.ops.reference.plan import scratch_bytes

    kv_dtype = _kv_dtype(model, config, config.dtype)
    if config.isa is not None:
        raise InvalidField("isa", config.isa, "leave it out: only the native executor has any to choose from")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    format = kv_format(kv_dtype, model.attention_layers)
    linears = (linear for layer in model.layers for linear in layer.linears())
    plan = ExecutorPlan(
        weight_bytes=model.weight_bytes,
        scratch_bytes=scratch_bytes(model.attention_layers, linears, model.head, step_limits(config)),
        block_bytes=KVStorage.bytes_per_block(model.attention_layers, config.block_size, format),
    )
    return PlannedExecutor(
        "reference", plan, lambda num_blocks: ReferenceExecutor(model, num_blocks, config.block_size, kv_dtype)
    )
