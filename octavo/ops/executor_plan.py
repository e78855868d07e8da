"""What an executor will occupy, said before it is made: the terms it adds to the memory plan."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.errors import OctavoError


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step an executor will be given: tokens, sequences and rows of logits in all."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_num_logit_rows: int


@dataclass(frozen=True, slots=True)
class ExecutorPlan:
    """Bytes: `weight_bytes` as the executor keeps them (in its own layout, whatever was loaded is gone then),
    `scratch_bytes` at most beside them in the largest step, `block_bytes` of one KV block over all layers."""

    weight_bytes: int
    scratch_bytes: int
    block_bytes: int


class ExecutorUnavailable(OctavoError):
    """This executor cannot compute this model on this machine; the text says why and what would work."""
