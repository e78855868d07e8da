"""What training costs, from shapes alone: for the pre-flight."""

from __future__ import annotations

from octavo.models.spec import ModelSpec
from octavo.quantize.pieces import MOST_HELD_OUT_TOKENS, STEP_TOKENS
from octavo.quantize.recipe import Recipe

#: Forward, and backward to inputs and to weights; with `distill`'s recomputation one more.
_PASSES, _CHECKPOINTED_PASSES = 3, 4
#: Evaluations of a distillation, the first before any step.
_EVALUATIONS = 9
#: A latent weight, its gradient and what the walk handed on; and what a weight is while its block is computed.
_LATENT_BYTES, _BLOCK_BYTES = 10, 24


def training_flops(spec: ModelSpec, recipe: Recipe, num_weights: int, num_tokens: int) -> float:
    """Of all updates and of the passes that only training needs. `num_weights` are those of the linears an average
    token meets, `num_tokens` calibration's."""
    head = spec.vocab_size * spec.hidden_size
    flops = 0.0
    if recipe.needs_source_states:
        flops += 2.0 * num_weights * num_tokens
    if recipe.trains_blocks:
        flops += 2.0 * num_weights * (num_tokens + _PASSES * recipe.steps * STEP_TOKENS)
    if recipe.distill_steps:
        per_token = _CHECKPOINTED_PASSES * num_weights + _PASSES * head
        flops += 2.0 * recipe.distill_steps * STEP_TOKENS * per_token
        flops += 2.0 * _EVALUATIONS * min(MOST_HELD_OUT_TOKENS, num_tokens / 8) * (num_weights + 2 * head)
    return flops


def training_bytes(spec: ModelSpec, recipe: Recipe, num_weights: int, num_tokens: int) -> int:
    """What training keeps beside the walk's own: states, and what is trained. `num_weights`: of all linears."""
    num_bytes = 4 * 2 * num_tokens * spec.hidden_size if recipe.needs_source_states else 0
    if recipe.trains_blocks:
        num_bytes += _BLOCK_BYTES * num_weights // spec.num_layers
    if recipe.distill_steps:
        num_bytes += 4 * 2 * spec.vocab_size * spec.hidden_size
        num_bytes += _LATENT_BYTES * num_weights if recipe.keeps_latents else 2 * num_weights
    return num_bytes
