"""Recorded traffic: when requests came, how long they were, what they had in common.

Two formats, told apart by the file's name:

* `.csv`, Azure LLM inference traces (2023): `TIMESTAMP,ContextTokens,GeneratedTokens`.
* `.jsonl`, Mooncake (FAST 2025): `timestamp` in milliseconds, `input_length`, `output_length`, and `hash_ids`, one for
  each block of 512 prompt tokens; equal ids are equal tokens.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from octavo.core.errors import InvalidField

MOONCAKE_BLOCK_TOKENS = 512
_AZURE_COLUMNS = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request; `at_seconds` counts from the first of the trace.

    `block_ids[i]` names the content of prompt tokens `[i * block_tokens, (i + 1) * block_tokens)`; empty where the
    trace says nothing about content.
    """

    at_seconds: float
    input_len: int
    output_len: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS

    def scaled(self, length_scale: float, speedup: float) -> TraceRequest:
        """Lengths times `length_scale` (at least one token each), times divided by `speedup`; blocks shrink alike, so
        that what was shared stays shared."""
        return TraceRequest(
            self.at_seconds / speedup,
            max(1, round(self.input_len * length_scale)),
            max(1, round(self.output_len * length_scale)),
            self.block_ids,
            max(1, round(self.block_tokens * length_scale)),
        )


def read_trace(path: Path, count: int) -> list[TraceRequest]:
    """The first `count` requests that have a prompt and an answer. Raises `InvalidField` naming file and line."""
    readers = {".csv": _azure, ".jsonl": _mooncake}
    if path.suffix not in readers:
        raise InvalidField("--trace", str(path), "must be an Azure trace (.csv) or a Mooncake trace (.jsonl)")
    try:
        requests = list(itertools.islice(readers[path.suffix](path), count))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField("--trace", str(path), f"cannot be read ({error})") from None
    if len(requests) < count:
        raise InvalidField("--num-prompts", count, f"{path} holds {len(requests)} requests")
    requests.sort(key=lambda each: each.at_seconds)
    first = requests[0].at_seconds
    return [TraceRequest(each.at_seconds - first, each.input_len, each.output_len, each.block_ids) for each in requests]


def _azure(path: Path) -> Iterator[TraceRequest]:
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if not set(rows.fieldnames or ()) >= _AZURE_COLUMNS:
            raise InvalidField(
                "--trace", str(path), f"an Azure trace has the columns {', '.join(sorted(_AZURE_COLUMNS))}"
            )
        for number, row in enumerate(rows, start=2):
            yield _checked(path, number, lambda row=row: _azure_request(row))


def _azure_request(row: dict[str, str]) -> TraceRequest:
    moment = datetime.fromisoformat(row["TIMESTAMP"][:26])  # a seventh decimal is finer than Python's clock
    return TraceRequest(moment.timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _mooncake(path: Path) -> Iterator[TraceRequest]:
    with path.open() as file:
        for number, line in enumerate(file, start=1):
            yield _checked(path, number, lambda line=line: _mooncake_request(json.loads(line)))


def _mooncake_request(entry: dict[str, Any]) -> TraceRequest:
    block_ids = tuple(int(each) for each in entry.get("hash_ids", ()))
    return TraceRequest(entry["timestamp"] / 1000, int(entry["input_length"]), int(entry["output_length"]), block_ids)


def _checked(path: Path, number: int, read: Any) -> TraceRequest:
    try:
        request: TraceRequest = read()
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidField("--trace", f"{path}:{number}", f"is no request of this format ({error!r})") from None
    if request.input_len < 1 or request.output_len < 1:
        raise InvalidField("--trace", f"{path}:{number}", "a request needs at least one token in and one out")
    return request
