"""Scores of next-token distributions: losses, and the distance of one model's to another's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenScores:
    """One entry per scored token, in text order. `loss` is -ln p(token); with a base model also `base_loss`,
    `divergence` = KL(base || model) in nats, and `agreement`: whether both have the same most likely token."""

    loss: Tensor
    base_loss: Tensor | None = None
    divergence: Tensor | None = None
    agreement: Tensor | None = None

    @staticmethod
    def concatenate(parts: list[TokenScores]) -> TokenScores:
        def joined(tensors: list[Tensor | None]) -> Tensor | None:
            present = [tensor for tensor in tensors if tensor is not None]
            return torch.cat(present) if present else None

        return TokenScores(
            torch.cat([part.loss for part in parts]),
            joined([part.base_loss for part in parts]),
            joined([part.divergence for part in parts]),
            joined([part.agreement for part in parts]),
        )


def score(logits: Tensor, targets: Tensor, base_logits: Tensor | None = None) -> TokenScores:
    """`logits` and `base_logits` `[rows, vocabulary]` float32, `targets` int64 `[rows]`."""
    log_p = torch.log_softmax(logits, -1)
    loss = -_chosen(log_p, targets)
    if base_logits is None:
        return TokenScores(loss)
    base_log_p = torch.log_softmax(base_logits, -1)
    divergence = (base_log_p.exp() * (base_log_p - log_p)).sum(-1).clamp_min_(0)
    agreement = logits.argmax(-1) == base_logits.argmax(-1)
    return TokenScores(loss, -_chosen(base_log_p, targets), divergence, agreement)


def _chosen(log_p: Tensor, targets: Tensor) -> Tensor:
    return log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
