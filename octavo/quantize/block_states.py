"""What enters a block while a model is walked."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from octavo.ops.reference.batch import Batch


@dataclass(slots=True)
class BlockStates:
    """Hidden states of all calibration tokens, float32 `[tokens, hidden]`, and the sequences they belong to.

    `hidden` come from quantized predecessors; `reference` from the source's own blocks, None unless the method trains
    a block towards what the source computes. `mask` bool `[tokens]`: which tokens statistics count (the others are
    context, such as the user's turns of a chat); None is all of them.
    """

    hidden: Tensor
    batch: Batch
    reference: Tensor | None = None
    mask: Tensor | None = None

    def named(self) -> dict[str, Tensor]:
        """For the journal."""
        states = {"hidden": self.hidden}
        return states if self.reference is None else {**states, "reference": self.reference}
