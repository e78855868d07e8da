"""What the mixture-of-experts families read alike."""

from __future__ import annotations

from octavo.models.config import ConfigReader
from octavo.models.spec import ExpertsSpec


def read_experts(
    reader: ConfigReader, *, intermediate_size: int, renormalize: bool, default_experts: int, default_per_token: int
) -> ExpertsSpec:
    """The number of experts under either of its names (transformers 5 writes `num_local_experts` for every family),
    and how many of them a token uses."""
    names = [name for name in ("num_experts", "num_local_experts") if reader.take(name) is not None]
    counts = {name: reader.whole(name) for name in names}
    if len(set(counts.values())) > 1:
        reader.refuse("num_local_experts", f"it contradicts num_experts ({counts['num_experts']})")
    num_experts = next(iter(counts.values()), default_experts)
    experts_per_token = reader.whole("num_experts_per_tok", default_per_token)
    if experts_per_token > num_experts:
        reader.refuse("num_experts_per_tok", f"there are only {num_experts} experts")
    return ExpertsSpec(num_experts, experts_per_token, intermediate_size, renormalize)
