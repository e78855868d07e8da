"""`octavo bench serve`: percentiles of what clients saw, and how much of it was within their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.core.errors import InvalidField
from octavo.measure.bench.load import RequestRecord
from octavo.measure.bench.summary import DEFAULT_PERCENTILES, Summary

#: Metric -> what it is, in vLLM's names. All in seconds here, limits are written in milliseconds.
METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}
LIMITED = ("ttft", "tpot", "e2el")


def parse_limits(texts: Sequence[str]) -> dict[str, float]:
    """`["ttft:500", "tpot:50"]`, milliseconds -> seconds by metric. Raises `InvalidField`."""
    limits = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            milliseconds = float(value)
        except ValueError:
            milliseconds = -1.0
        if name not in LIMITED or not milliseconds > 0 or name in limits:
            works = f"write NAME:MILLISECONDS, each once, with NAME of {', '.join(LIMITED)}"
            raise InvalidField("--goodput", text, works)
        limits[name] = milliseconds / 1000
    return limits


@dataclass(frozen=True, slots=True)
class ServingReport:
    """One load as its clients saw it. `num_good` answers kept every limit; all of them without limits.

    `seconds` runs from the first arrival to the last answer. `largest_lag` is how late the client itself was at worst:
    when that is not small beside the latencies, the machine was too busy to measure on.
    """

    num_requests: int
    failures: dict[str, int]
    seconds: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    limits: Mapping[str, float]
    num_good: int
    largest_lag: float
    metrics: dict[str, Summary | None]

    @property
    def num_completed(self) -> int:
        return self.num_requests - sum(self.failures.values())

    def per_second(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "num_requests": self.num_requests,
            "completed": self.num_completed,
            "failures": self.failures,
            "duration_seconds": self.seconds,
            "request_throughput": self.per_second(self.num_completed),
            "output_throughput": self.per_second(self.num_output_tokens),
            "total_token_throughput": self.per_second(self.num_output_tokens + self.num_prompt_tokens),
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_output_tokens": self.num_output_tokens,
            "goodput_limits_seconds": dict(self.limits),
            "request_goodput": self.per_second(self.num_good),
            "good_share": self.num_good / self.num_requests,
            "largest_client_lag_seconds": self.largest_lag,
            **{name: None if each is None else each.to_dict("seconds") for name, each in self.metrics.items()},
        }

    def lines(self) -> list[str]:
        """For people."""
        limits = ", ".join(f"{name} <= {1000 * value:g} ms" for name, value in self.limits.items()) or "no limit given"
        lines = [
            f"{self.num_completed} of {self.num_requests} requests answered in {self.seconds:.2f} s",
            *(f"  failed: {count} x {reason}" for reason, count in self.failures.items()),
            f"  {self.per_second(self.num_completed):10.2f} requests/s",
            f"  {self.per_second(self.num_output_tokens):10.1f} output tokens/s",
            f"  {self.per_second(self.num_good):10.2f} requests/s goodput: {self.num_good} requests ({limits})",
            f"  {self.num_cached_tokens} of {self.num_prompt_tokens} prompt tokens from the server's cache",
        ]
        for name, summary in self.metrics.items():
            lines.append(f"  {METRICS[name]:24} {'-' if summary is None else summary.milliseconds()}")
        return [*lines, f"  the client was late by at most {1000 * self.largest_lag:.1f} ms"]


def summarize(
    records: Sequence[RequestRecord],
    limits: Mapping[str, float],
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
) -> ServingReport:
    """Reduce a load. A request without a whole answer counts as a failure and is never good."""
    answered = [each for each in records if each.error is None]
    failures: dict[str, int] = {}
    for each in records:
        if each.error is not None:
            failures[each.error] = failures.get(each.error, 0) + 1
    values = {
        "ttft": [each.ttft for each in answered],
        "tpot": [each.tpot for each in answered if each.tpot is not None],
        "itl": [gap for each in answered for gap in each.inter_token],
        "e2el": [each.end_to_end for each in answered],
    }
    return ServingReport(
        num_requests=len(records),
        failures=failures,
        seconds=max((each.finished for each in answered), default=0.0) - min(each.scheduled for each in records),
        num_prompt_tokens=sum(each.num_prompt_tokens for each in answered),
        num_cached_tokens=sum(each.num_cached_tokens for each in answered),
        num_output_tokens=sum(each.num_output_tokens for each in answered),
        limits=limits,
        num_good=sum(_is_good(each, limits) for each in answered),
        largest_lag=max(((each.sent - each.scheduled) for each in records if each.sent), default=0.0),
        metrics={name: Summary.of(each, percentiles) for name, each in values.items()},
    )


def _is_good(record: RequestRecord, limits: Mapping[str, float]) -> bool:
    seen = {"ttft": record.ttft, "tpot": record.tpot or 0.0, "e2el": record.end_to_end}
    return all(seen[name] <= limit for name, limit in limits.items())
