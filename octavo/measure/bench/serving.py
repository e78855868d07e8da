"""From what the user asked for to a load on a server, and its report."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.core.errors import InvalidField, OctavoError
from octavo.measure.bench.arrivals import arrival_seconds
from octavo.measure.bench.goodput import ServingReport, parse_limits, summarize
from octavo.measure.bench.http_stream import Endpoint
from octavo.measure.bench.load import Load, RequestRecord
from octavo.measure.bench.local_server import LocalServer
from octavo.measure.bench.prompts import PromptSource, ordinary_token_ids
from octavo.measure.bench.schedule import PlannedRequest, check_fits, from_arrivals, from_trace
from octavo.measure.bench.summary import parse_percentiles
from octavo.measure.bench.trace import read_trace

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServingWork:
    """What is sent, and how it is judged. With `trace`, rate, burstiness and lengths are the trace's own."""

    num_prompts: int = 100
    request_rate: float = 1.0
    burstiness: float = 1.0
    input_len: int = 256
    output_len: int = 64
    trace: Path | None = None
    length_scale: float = 1.0
    speedup: float = 1.0
    goodput: tuple[str, ...] = ()
    metric_percentiles: str = "50,90,99"
    timeout_seconds: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_prompts", "input_len", "output_len"):
            if getattr(self, name) < 1:
                raise InvalidField("--" + name.replace("_", "-"), getattr(self, name), "must be at least 1")
        for name in ("length_scale", "speedup", "timeout_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidField("--" + name.replace("_", "-"), getattr(self, name), "must be a number above 0")

    def requests(self, token_ids: list[int]) -> list[PlannedRequest]:
        """All requests, in order of arrival."""
        if self.trace is None:
            times = arrival_seconds(self.num_prompts, self.request_rate, self.burstiness, self.seed)
            return from_arrivals(times, PromptSource(token_ids, self.seed), self.input_len, self.output_len)
        recorded = read_trace(self.trace, self.num_prompts)
        return from_trace([each.scaled(self.length_scale, self.speedup) for each in recorded], token_ids, self.seed)


@dataclass(frozen=True, slots=True)
class Target:
    """Which server: the one at `base_url`, or one that is started with `server_options` and stopped afterwards."""

    model: str
    base_url: str | None = None
    api_key: str | None = None
    served_model_name: str | None = None
    server_options: tuple[str, ...] | list[str] = ()


def measure_serving(target: Target, work: ServingWork, say: Say) -> tuple[ServingReport, dict[str, Any]]:
    """Run the load; returns the report and facts about the server. Raises `InvalidField` before anything is started
    where it can be known, `OctavoError` when the server cannot be reached."""
    limits, percentiles = parse_limits(work.goodput), parse_percentiles(work.metric_percentiles)
    requests = work.requests(_token_ids(target.model))
    with _server(target, say) as (endpoint, server):
        name, max_model_len = asyncio.run(_served_model(endpoint, target.served_model_name))
        if max_model_len is not None:
            check_fits(requests, max_model_len, "--input-len" if work.trace is None else "--length-scale")
        say(f"{len(requests)} requests to {name} over {requests[-1].at_seconds:.1f} s")
        records = asyncio.run(_load(endpoint, name, work, requests, say))
        facts: dict[str, Any] = {"served_model": name, "server": target.base_url or f"started here, {_memory(server)}"}
        if server is not None:
            facts["server_peak_rss_bytes"] = server.peak_rss_bytes()
    return summarize(records, limits, percentiles), facts


def _memory(server: LocalServer | None) -> str:
    """The line of the server's own memory sum."""
    total = next((line.strip() for line in (server.lines if server else []) if line.startswith("= total")), "")
    return " ".join(total.split())


def _token_ids(model: str) -> list[int]:
    """Ordinary tokens of the model, read without its weights."""
    from octavo.models.load import open_model_checkpoint
    from octavo.models.registry import read_spec

    checkpoint = open_model_checkpoint(model)
    spec, special = read_spec(checkpoint.config), checkpoint.tokenizer().special_ids
    checkpoint.close()
    return ordinary_token_ids(spec.vocab_size, special)


@contextmanager
def _server(target: Target, say: Say) -> Iterator[tuple[Endpoint, LocalServer | None]]:
    if target.base_url is not None:
        yield Endpoint.parse(target.base_url, target.api_key), None
        return
    say(f"starting octavo serve {target.model}")
    with LocalServer(target.model, list(target.server_options)) as server:
        yield Endpoint.parse(server.url), server


async def _served_model(endpoint: Endpoint, wanted: str | None) -> tuple[str, int | None]:
    """(name, longest request in tokens where the server tells it)."""
    try:
        models = (await endpoint.get_json("/v1/models"))["data"]
    except (OSError, OctavoError, ValueError, KeyError, TypeError) as error:
        raise OctavoError(f"no server answers at {endpoint.host}:{endpoint.port} ({error})") from None
    names = [each["id"] for each in models]
    if wanted is None and len(names) != 1:
        raise InvalidField("--served-model-name", wanted, f"the server has {', '.join(names)}; say which")
    if wanted is not None and wanted not in names:
        raise InvalidField("--served-model-name", wanted, f"the server has {', '.join(names)}")
    found = next(each for each in models if each["id"] == (wanted or names[0]))
    return found["id"], found.get("max_model_len")


async def _load(
    endpoint: Endpoint, name: str, work: ServingWork, requests: list[PlannedRequest], say: Say
) -> list[RequestRecord]:
    """One short request first, so that nothing is loaded or compiled while measured; then the load."""
    shortest = PlannedRequest(0.0, requests[0].prompt_token_ids[:1], 1)
    [warm_up] = await Load(endpoint, name, work.timeout_seconds).run([shortest])
    if warm_up.error is not None:
        raise OctavoError(f"the server does not take a request: {warm_up.error}")

    def progress(sent: int, answered: int, failed: int, total: int) -> None:
        say(f"{sent} of {total} sent, {answered} answered, {failed} failed")

    return await Load(endpoint, name, work.timeout_seconds, progress).run(requests)
