"""`QualityReport`: what a model scores, how far it is from another, and by which protocol."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.measure.bootstrap import mean_interval
from octavo.measure.divergence import TokenScores
from octavo.measure.windows import Protocol

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Distance to a base model on the same tokens. Divergence is KL(base || model) per token in nats;
    `perplexity_ratio` is model / base, its interval from paired differences."""

    base: str
    base_perplexity: float
    perplexity_ratio: float
    perplexity_ratio_interval: Interval
    mean_divergence: float
    mean_divergence_interval: Interval
    divergence_999: float
    top1_agreement: float
    top1_agreement_interval: Interval
    base_bytes: int
    base_bits_per_weight: float


@dataclass(frozen=True, slots=True)
class QualityReport:
    """A measured model. Intervals are 95 % bootstrap intervals over stretches of text."""

    model: str
    protocol: Protocol
    perplexity: float
    perplexity_interval: Interval
    weight_bytes: int
    bits_per_weight: float
    seconds: float
    comparison: Comparison | None = None
    caveats: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model": self.model,
            "protocol": self.protocol.to_dict(),
            "perplexity": self.perplexity,
            "perplexity_interval": list(self.perplexity_interval),
            "weight_bytes": self.weight_bytes,
            "bits_per_weight": self.bits_per_weight,
            "seconds": round(self.seconds, 2),
            "caveats": list(self.caveats),
            "comparison": None,
        }
        if self.comparison is not None:
            pairs = ((name, getattr(self.comparison, name)) for name in self.comparison.__slots__)
            fields["comparison"] = {name: list(v) if isinstance(v, tuple) else v for name, v in pairs}
        return fields

    def __str__(self) -> str:
        low, high = self.perplexity_interval
        lines = [f"perplexity {self.perplexity:.4f}  (95 % {low:.2f} .. {high:.2f})"]
        if self.comparison is not None:
            c = self.comparison
            lines += [
                f"against {c.base}: perplexity {c.base_perplexity:.4f}, ratio {c.perplexity_ratio:.4f}  "
                f"(95 % {c.perplexity_ratio_interval[0]:.4f} .. {c.perplexity_ratio_interval[1]:.4f})",
                f"KL divergence mean {c.mean_divergence:.5f} nats, 99.9 % {c.divergence_999:.3f}",
                f"top-1 agreement {100 * c.top1_agreement:.2f} %",
            ]
        lines.append(f"{self.weight_bytes:,} bytes, {self.bits_per_weight:.2f} bits per weight")
        lines.append(f"protocol: {self.protocol}")
        return "\n".join([*lines, *(f"note: {caveat}" for caveat in self.caveats)])


def perplexity(loss: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, Interval]:
    """exp of the mean loss, and its interval."""
    low, high = mean_interval(loss)
    return math.exp(loss.mean()), (math.exp(low), math.exp(high))


def compare(scores: TokenScores, base: str, base_bytes: int, base_bits_per_weight: float) -> Comparison:
    """Reduce per-token scores that have a base. Percentiles interpolate between tokens."""
    assert scores.base_loss is not None
    assert scores.divergence is not None
    assert scores.agreement is not None
    loss, base_loss = scores.loss.double().numpy(), scores.base_loss.double().numpy()
    divergence, agreement = scores.divergence.double().numpy(), scores.agreement.double().numpy()
    low, high = mean_interval(loss - base_loss)
    return Comparison(
        base=base,
        base_perplexity=math.exp(base_loss.mean()),
        perplexity_ratio=math.exp((loss - base_loss).mean()),
        perplexity_ratio_interval=(math.exp(low), math.exp(high)),
        mean_divergence=float(divergence.mean()),
        mean_divergence_interval=mean_interval(divergence),
        divergence_999=float(np.percentile(divergence, 99.9)),
        top1_agreement=float(agreement.mean()),
        top1_agreement_interval=mean_interval(agreement),
        base_bytes=base_bytes,
        base_bits_per_weight=base_bits_per_weight,
    )
