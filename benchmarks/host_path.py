"""What a step costs outside the executor: scheduling, sampling, detokenizing, publishing.

    python -m benchmarks.host_path [MODEL] [--steps 200] [--json] [--profile]

The executor does nothing but hand back prepared logits, so that all other time of a step is the engine's own. Each
line is a number of sequences, a way of sampling and a context length. Times are medians over steps, in microseconds of
the engine thread's processor time: a neighbour on the machine does not count. `served` adds what `AsyncEngine` and its
readers do for each step, in processor time of the whole process.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import Step
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.engine import Engine
from octavo.models.load import open_model_checkpoint
from octavo.ops.base import Executor
from octavo.text.tokenizer import Tokenizer

SAMPLING = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
    "top-k": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 1},
    "logprobs": {"temperature": 0.0, "logprobs": 5},
    "penalties": {"temperature": 0.8, "top_p": 0.95, "seed": 1, "repetition_penalty": 1.1, "presence_penalty": 0.2},
}
_WARM_STEPS = 20


class NullExecutor(Executor):
    """Answers every step with rows of logits that were made beforehand, counting the steps."""

    def __init__(self, num_blocks: int, vocab_size: int, num_rows: int, block_size: int = 16) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.num_steps = 0
        # As a language model's: the probability of the r-th likeliest token falls like a power of r.
        generator = torch.Generator().manual_seed(0)
        by_rank = -1.3 * torch.arange(1, vocab_size + 1).log()
        self._logits = torch.stack(
            [by_rank[torch.randperm(vocab_size, generator=generator)] for _ in range(num_rows + 2)]
        )

    def execute(self, step: Step) -> Tensor:
        first = self.num_steps % 3
        self.num_steps += 1
        return self._logits[first : first + step.num_logit_rows]


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds of a step outside the executor: of `schedule` alone, in the median, and of the fastest step (a busy
    neighbour takes caches and half a core even from processor time)."""

    num_seqs: int
    sampling: str
    context: int
    schedule_us: float
    step_us: float
    fastest_step_us: float


def make_engine(tokenizer: Tokenizer, num_seqs: int, num_tokens: int) -> Engine:
    """An engine with room for `num_seqs` sequences of `num_tokens` tokens over a `NullExecutor`."""
    num_blocks = num_seqs * (num_tokens // 16 + 2)
    executor = NullExecutor(num_blocks, tokenizer.vocab_size, num_seqs)
    return Engine(
        executor,
        tokenizer,
        tokenizer.vocab_size,
        max_model_len=num_tokens,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=max(2048, num_seqs),
    )


def requests(num_seqs: int, context: int, num_steps: int, sampling: str) -> Iterator[Request]:
    """`num_seqs` different prompts of `context` tokens that never stop by themselves."""
    params = SamplingParams(max_tokens=num_steps, ignore_eos=True, **SAMPLING[sampling])  # type: ignore[arg-type]
    for number in range(num_seqs):
        yield Request(f"r{number}", [number + 3, *(3 + i % 997 for i in range(context - 1))], params)


def measure(tokenizer: Tokenizer, num_seqs: int, sampling: str, context: int, num_steps: int) -> Measured:
    """Decode steps of `num_seqs` sequences whose prompts have been computed."""
    engine = make_engine(tokenizer, num_seqs, context + num_steps + 64)
    for request in requests(num_seqs, context, num_steps + 40, sampling):
        engine.add(request)
    executor, scheduler = engine.executor, engine.scheduler
    assert isinstance(executor, NullExecutor)
    while scheduler.num_waiting or executor.num_steps < _WARM_STEPS:
        engine.step()
    schedule_seconds, step_seconds = [], []
    for _ in range(num_steps - executor.num_steps):
        start = time.thread_time()
        engine.step()
        step_seconds.append(time.thread_time() - start)
    for _ in range(20):
        start = time.thread_time()
        scheduled = engine.schedule()
        schedule_seconds.append(time.thread_time() - start)
        assert scheduled is not None
        list(engine.publish(scheduled, engine.execute(scheduled)))
    times = _us(statistics.median(schedule_seconds)), _us(statistics.median(step_seconds)), _us(min(step_seconds))
    return Measured(num_seqs, sampling, context, *times)


async def measure_served(tokenizer: Tokenizer, num_seqs: int, sampling: str, context: int, num_steps: int) -> float:
    """Mean microseconds of a step with `AsyncEngine` and a reading task for each sequence, outside the executor."""
    engine = make_engine(tokenizer, num_seqs, context + num_steps + 64)
    executor = engine.executor
    assert isinstance(executor, NullExecutor)
    served = AsyncEngine(engine)
    streams = [await served.open(request) for request in requests(num_seqs, context, num_steps, sampling)]
    num_before, start = executor.num_steps, time.process_time()

    async def read(stream: object) -> None:
        async for _ in stream:  # type: ignore[attr-defined]
            pass

    await asyncio.gather(*(read(stream) for stream in streams))
    seconds, num_measured = time.process_time() - start, executor.num_steps - num_before
    await served.drain_and_stop()
    return _us(seconds / max(num_measured, 1))


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="whose tokenizer and vocabulary are used")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seqs", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--contexts", type=int, nargs="*", default=[32, 1024])
    parser.add_argument("--sampling", nargs="*", default=list(SAMPLING), choices=list(SAMPLING))
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--profile", action="store_true", help="a profile of 8 greedy sequences instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = open_model_checkpoint(arguments.model).tokenizer()
    if arguments.profile:
        profiler = cProfile.Profile()
        profiler.runcall(measure, tokenizer, 8, arguments.sampling[0], 32, 10 * arguments.steps)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
        return
    found = [
        measure(tokenizer, num_seqs, sampling, context, arguments.steps)
        for num_seqs in arguments.seqs
        for sampling in arguments.sampling
        for context in arguments.contexts
    ]
    served = {
        num_seqs: asyncio.run(measure_served(tokenizer, num_seqs, "greedy", 32, arguments.steps))
        for num_seqs in arguments.seqs
    }
    if arguments.json:
        print(json.dumps({"steps": [asdict(each) for each in found], "served_step_us": served}))
        return
    print(f"{'sequences':>9} {'sampling':>10} {'context':>8} {'schedule us':>12} {'step us':>9} {'fastest us':>13}")
    for each in found:
        times = f"{each.schedule_us:12.1f} {each.step_us:9.1f} {each.fastest_step_us:13.1f}"
        print(f"{each.num_seqs:9d} {each.sampling:>10} {each.context:8d} {times}")
    for num_seqs, microseconds in served.items():
        print(f"{num_seqs:9d} {'greedy':>10} {32:8d} served: {microseconds:.1f} us a step in the mean")


if __name__ == "__main__":
    main()
