"""Arrival times and recorded traces: the right rate, the right spread, the same work for the same seed."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from pathlib import Path

import pytest

from octavo.core.errors import InvalidField
from octavo.measure.bench.arrivals import arrival_seconds
from octavo.measure.bench.schedule import check_fits, from_trace
from octavo.measure.bench.trace import read_trace

TOKEN_IDS = range(3, 300)
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,480,10
2023-11-16 18:17:04.0319600,318,8
2023-11-16 18:17:05.4799600,11,27
"""


@pytest.mark.parametrize(("burstiness", "spread"), [(1.0, 1.0), (4.0, 0.5), (0.25, 2.0)])
def test_gaps_have_the_rate_and_the_spread(burstiness: float, spread: float) -> None:
    """A gamma distribution of shape k has a coefficient of variation of 1 / sqrt(k); k = 1 is a Poisson process."""
    times = arrival_seconds(20_000, 5.0, burstiness, seed=1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = statistics.fmean(gaps)
    assert times[0] == 0.0
    assert mean == pytest.approx(0.2, rel=0.05)
    assert statistics.pstdev(gaps) / mean == pytest.approx(spread, rel=0.08)


def test_arrivals_are_the_seeds() -> None:
    assert arrival_seconds(50, 2.0, seed=7) == arrival_seconds(50, 2.0, seed=7) != arrival_seconds(50, 2.0, seed=8)
    assert arrival_seconds(3, math.inf) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("rate", "burstiness"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, 0.0), (1.0, math.inf)]
)
def test_impossible_arrivals_are_refused(rate: float, burstiness: float) -> None:
    with pytest.raises(InvalidField, match=r"--request-rate|--burstiness"):
        arrival_seconds(3, rate, burstiness)


def test_an_azure_trace(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    requests = read_trace(path, 3)
    assert [(each.input_len, each.output_len) for each in requests] == [(480, 10), (318, 8), (11, 27)]
    assert [each.at_seconds for each in requests] == pytest.approx([0.0, 0.052, 1.5], abs=1e-5)


def mooncake(path: Path) -> Path:
    entries = [
        {"timestamp": 2000, "input_length": 1200, "output_length": 20, "hash_ids": [0, 1, 2]},
        {"timestamp": 1000, "input_length": 1030, "output_length": 8, "hash_ids": [0, 1, 7]},
        {"timestamp": 4000, "input_length": 600, "output_length": 3, "hash_ids": [9, 1]},
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in entries))
    return path


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_a_mooncake_trace_keeps_what_is_shared(tmp_path: Path, scale: float) -> None:
    """Equal block ids are equal tokens, in order of arrival, also when lengths shrink."""
    recorded = read_trace(mooncake(tmp_path / "trace.jsonl"), 3)
    planned = from_trace([each.scaled(scale, speedup=2.0) for each in recorded], TOKEN_IDS, seed=0)
    assert [each.at_seconds for each in planned] == [0.0, 0.5, 1.5]
    assert [len(each.prompt_token_ids) for each in planned] == [round(n * scale) for n in (1030, 1200, 600)]
    block = round(512 * scale)
    first, second, third = (each.prompt_token_ids for each in planned)
    assert first[: 2 * block] == second[: 2 * block]
    assert first[2 * block :] != second[2 * block : len(first)]
    assert third[:block] != first[:block]
    assert third[block:] == first[block : len(third)]


def test_what_does_not_fit_is_said_with_what_would(tmp_path: Path) -> None:
    planned = from_trace(read_trace(mooncake(tmp_path / "trace.jsonl"), 3), TOKEN_IDS, seed=0)
    with pytest.raises(InvalidField, match=r"--length-scale: got '2 of 3 requests.*times 0\.820"):
        check_fits(planned, 1000, "--length-scale")
    check_fits(planned, 1220, "--length-scale")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("trace.txt", "", "must be an Azure trace"),
        ("trace.csv", "a,b\n1,2\n", "has the columns"),
        ("trace.csv", AZURE.replace("318", "many"), "trace.csv:3"),
        ("trace.csv", AZURE.replace(",8", ",0"), "at least one token in and one out"),
        ("trace.jsonl", '{"timestamp": 0}\n', "trace.jsonl:1"),
        ("trace.csv", AZURE.rsplit("\n", 2)[0], "holds 2 requests"),
    ],
)
def test_damaged_traces_are_refused_by_place(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidField, match=words):
        read_trace(tmp_path / name, 3)
