"""Prometheus metrics of one server, all named `octavo_...`; their help texts are their documentation.

Gauges and token counters are read from the engine when Prometheus asks; times are observed as deltas arrive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.core.outputs import OutputDelta
from octavo.core.request import FinishReason, Request
from octavo.engine.async_engine import AsyncEngine

#: Seconds. A small CPU answers between these; the finest bound is well under one step of a tiny model.
_STEP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_WHOLE_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The metrics of one app, in a registry of their own."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine))
        self.time_to_first_token = self._histogram(
            "octavo_time_to_first_token_seconds", "Arrival of a request to its first token.", _WAIT_BUCKETS
        )
        self.inter_token = self._histogram(
            "octavo_inter_token_seconds", "Between one token of a sequence and its next.", _STEP_BUCKETS
        )
        self.queue = self._histogram(
            "octavo_queue_seconds", "Arrival of a request to the first step that computes some of it.", _WAIT_BUCKETS
        )
        self.end_to_end = self._histogram(
            "octavo_end_to_end_seconds", "Arrival of a request to the end of its last sequence.", _WHOLE_BUCKETS
        )

    def exposition(self) -> bytes:
        """The text Prometheus reads."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help_text, buckets=buckets, registry=self.registry)


class RequestObserver:
    """Times one request from the deltas it gives. Every sequence counts its tokens; the request counts once."""

    def __init__(self, metrics: Metrics, request: Request) -> None:
        self._metrics = metrics
        self._arrival = request.arrival_seconds
        self._num_unfinished = request.sampling.n
        self._last_token: dict[int, float] = {}

    def observe(self, delta: OutputDelta) -> None:
        now = time.monotonic()
        if delta.token_ids:
            self._observe_tokens(delta, now)
        if delta.finish_reason is not None:
            self._num_unfinished -= 1
            if self._num_unfinished == 0:
                self._finish(delta, now)

    def _observe_tokens(self, delta: OutputDelta, now: float) -> None:
        if not self._last_token:
            self._metrics.time_to_first_token.observe(now - self._arrival)
        previous = self._last_token.get(delta.index)
        self._last_token[delta.index] = now
        if previous is not None:
            for _ in delta.token_ids:
                self._metrics.inter_token.observe((now - previous) / len(delta.token_ids))

    def _finish(self, delta: OutputDelta, now: float) -> None:
        self._metrics.end_to_end.observe(now - self._arrival)
        if delta.timing is not None and delta.timing.first_scheduled is not None:
            self._metrics.queue.observe(max(delta.timing.first_scheduled - self._arrival, 0.0))


class _EngineCollector(Collector):
    """The engine's own counts, read at the moment of asking."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats
        for name, help_text, value in (
            ("octavo_requests_running", "Sequences in the batch.", stats.num_running),
            ("octavo_requests_waiting", "Sequences waiting for their first step, or preempted.", stats.num_waiting),
            ("octavo_kv_usage_ratio", "Share of KV blocks that running sequences hold (0 to 1).", stats.kv_use),
        ):
            yield GaugeMetricFamily(name, help_text, value=value)
        for name, help_text, value in (
            ("octavo_prefix_cache_queried_tokens", "Prompt tokens looked up.", stats.num_prefix_queried_tokens),
            ("octavo_prefix_cache_hit_tokens", "Prompt tokens found.", stats.num_prefix_hit_tokens),
            ("octavo_steps", "Forward passes.", stats.num_steps),
            (
                "octavo_steps_failed",
                "Steps that raised; the server went on.",
                stats.num_failed_steps,
            ),
            ("octavo_preemptions", "Times a sequence gave its blocks back.", stats.num_preemptions),
            ("octavo_prompt_tokens", "Prompt tokens of requests that ended.", stats.num_prompt_tokens),
            ("octavo_generation_tokens", "Tokens generated.", stats.num_generation_tokens),
        ):
            yield CounterMetricFamily(name, help_text, value=value)
        finished = CounterMetricFamily(
            "octavo_sequences_finished",
            "Sequences that ended, by reason; `abort` counts those whose client left.",
            labels=["finish_reason"],
        )
        for reason in FinishReason:
            finished.add_metric([reason.value], stats.finish_reasons[reason])
        yield finished
