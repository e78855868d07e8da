"""Penalties: what a sequence has already said, and how that changes its next logits.

Presence and frequency penalties count output tokens only (OpenAI); the repetition penalty looks at prompt and output
(CTRL, Keskar et al. 2019, section 4.1). Updates are sparse: the cost grows with the tokens said, not the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.core.sampling_params import SamplingParams


def has_penalties(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty) or params.repetition_penalty != 1.0


class TokenCounts:
    """The distinct tokens of one sequence, each with the number of times the output holds it.

    Owns two growing tensors so that a step reads them without rebuilding anything.
    """

    def __init__(self, prompt_token_ids: list[int]) -> None:
        distinct = list(dict.fromkeys(prompt_token_ids))
        capacity = len(distinct) + 64
        self._slots = {token: slot for slot, token in enumerate(distinct)}
        self._ids = torch.zeros(capacity, dtype=torch.int64)
        self._ids[: len(distinct)] = torch.tensor(distinct, dtype=torch.int64)
        self._output_counts = torch.zeros(capacity, dtype=torch.float32)

    def add(self, token_id: int) -> None:
        """One more output token."""
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._slots[token_id] = len(self._slots)
            if slot == self._ids.numel():
                self._ids = torch.cat([self._ids, torch.zeros_like(self._ids)])
                self._output_counts = torch.cat([self._output_counts, torch.zeros_like(self._output_counts)])
            self._ids[slot] = token_id
        self._output_counts[slot] += 1

    def penalize(self, logits: Tensor, params: SamplingParams) -> None:
        """Change `logits` `[vocabulary]` in place."""
        ids, counts = self._ids[: len(self._slots)], self._output_counts[: len(self._slots)]
        said = logits[ids]
        if params.repetition_penalty != 1.0:
            said = torch.where(said > 0, said / params.repetition_penalty, said * params.repetition_penalty)
        said = said - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
        logits[ids] = said
