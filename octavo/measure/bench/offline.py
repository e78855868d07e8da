"""What the offline measurements share: a batch through the `LLM`, timed, and the facts about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.core.errors import InvalidField
from octavo.core.outputs import RequestOutput
from octavo.core.sampling_params import SamplingParams
from octavo.engine import LLM
from octavo.measure.bench.prompts import PromptSource, ordinary_token_ids

#: Told what is being done, for people.
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Batch:
    """Finished requests that were given at once, and the seconds from the first to the last."""

    results: list[RequestOutput]
    seconds: float

    @property
    def num_output_tokens(self) -> int:
        return sum(len(output.token_ids) for result in self.results for output in result.outputs)

    @property
    def num_cached_tokens(self) -> int:
        return sum(result.num_cached_tokens for result in self.results)

    @property
    def ttft_seconds(self) -> list[float]:
        """Time to first token of every request."""
        return [_known(result).first - _known(result).arrival for result in self.results]

    @property
    def tpot_seconds(self) -> list[float]:
        """Time per output token after the first; of requests with at least two."""
        counted = [(result, len(result.outputs[0].token_ids)) for result in self.results]
        return [(_known(result).last - _known(result).first) / (count - 1) for result, count in counted if count > 1]


@dataclass(frozen=True, slots=True)
class _Times:
    arrival: float
    first: float
    last: float


def run_batch(llm: LLM, prompts: list[list[int]], output_len: int) -> Batch:
    """Continue every prompt greedily by exactly `output_len` tokens."""
    sampling = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    started = time.perf_counter()
    results = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling)
    return Batch(results, time.perf_counter() - started)


def prompt_source(llm: LLM, seed: int) -> PromptSource:
    """Prompts of the model's ordinary tokens."""
    special = llm.get_tokenizer().special_ids
    return PromptSource(ordinary_token_ids(llm.engine.vocab_size, special), seed)


def check_lengths(llm: LLM, input_len: int, output_len: int) -> None:
    """Raise `InvalidField` for lengths below 1 or beyond what the engine takes."""
    check_at_least_one("--input-len", input_len)
    check_at_least_one("--output-len", output_len)
    longest = llm.engine.max_model_len
    if input_len + output_len > longest:
        raise InvalidField(
            "--input-len", input_len, f"with --output-len {output_len} it is beyond the {longest} tokens of the engine"
        )


def check_at_least_one(field: str, value: int) -> None:
    if value < 1:
        raise InvalidField(field, value, "must be at least 1")


def facts(llm: LLM) -> dict[str, Any]:
    """What was measured: versions, executor, sizes."""
    import torch

    import octavo

    plan = llm.memory_plan
    return {
        "octavo": octavo.__version__,
        "torch": torch.__version__,
        "executor": type(llm.engine.executor).__name__,
        "threads": llm.config.threads,
        "isa": llm.config.isa,
        "dtype": llm.config.dtype,
        "kv_dtype": llm.config.kv_dtype,
        "weight_bytes": plan.weight_bytes,
        "kv_bytes": plan.kv_bytes,
        "num_kv_tokens": plan.num_kv_tokens,
        "max_num_seqs": llm.config.max_num_seqs,
        "max_num_batched_tokens": llm.config.max_num_batched_tokens,
        "prefix_caching": llm.config.prefix_caching,
    }


def _known(result: RequestOutput) -> _Times:
    timing = result.timing
    assert timing is not None
    assert timing.first_token is not None
    assert timing.last_token is not None
    return _Times(timing.arrival, timing.first_token, timing.last_token)
