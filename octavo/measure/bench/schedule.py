"""The requests a server will get: times, prompts, lengths; all known before the first is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.errors import InvalidField
from octavo.measure.bench.prompts import PromptSource
from octavo.measure.bench.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """Sent `at_seconds` after the start, whatever has been answered by then."""

    at_seconds: float
    prompt_token_ids: list[int]
    output_len: int


def from_arrivals(
    times: Sequence[float], source: PromptSource, input_len: int, output_len: int
) -> list[PlannedRequest]:
    """Distinct prompts of one length."""
    return [PlannedRequest(at, source.prompt(input_len), output_len) for at in times]


def from_trace(requests: Sequence[TraceRequest], token_ids: Sequence[int], seed: int) -> list[PlannedRequest]:
    """Prompts of the recorded lengths. Blocks with equal ids get equal tokens, all else is distinct."""
    rest = PromptSource(token_ids, f"rest {seed}")
    return [PlannedRequest(each.at_seconds, _tokens(each, token_ids, seed, rest), each.output_len) for each in requests]


def check_fits(requests: Sequence[PlannedRequest], max_model_len: int, field: str) -> None:
    """Raise `InvalidField` when some request is longer than the server takes: nothing is cut in silence. `field` is
    the flag that makes them shorter."""
    lengths = [len(each.prompt_token_ids) + each.output_len for each in requests]
    too_long = sum(length > max_model_len for length in lengths)
    if too_long:
        scale = max_model_len / max(lengths)
        raise InvalidField(
            field,
            f"{too_long} of {len(lengths)} requests are beyond {max_model_len} tokens",
            f"all lengths times {scale:.3f} of what they are now would fit",
        )


def _tokens(request: TraceRequest, token_ids: Sequence[int], seed: int, rest: PromptSource) -> list[int]:
    tokens: list[int] = []
    for block_id in request.block_ids:
        if len(tokens) >= request.input_len:
            break
        tokens += PromptSource(token_ids, f"block {seed} {block_id}").prompt(request.block_tokens)
    tokens = tokens[: request.input_len]
    return tokens + rest.prompt(request.input_len - len(tokens))
