"""What a step costs outside the executor must not grow with what was said before."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.host_path import NullExecutor
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.engine.engine import Engine
from octavo.text.tokenizer import Tokenizer
from tests.kv.test_kv_cost import lines_executed
from tests.tokenizers import make_byte_tokenizer

NUM_SEQS = 4


def decoding_engine(tokenizer: Tokenizer, context: int) -> Engine:
    """Sequences whose prompts of `context` tokens have been computed. A block is one token, so that anything done for
    each block shows."""
    executor = NullExecutor(NUM_SEQS * (context + 500), tokenizer.vocab_size, NUM_SEQS, block_size=1)
    engine = Engine(
        executor,
        tokenizer,
        tokenizer.vocab_size,
        max_model_len=context + 400,
        max_num_batched_tokens=NUM_SEQS * context,
        prefix_caching=False,
    )
    params = SamplingParams(temperature=0.9, top_k=20, max_tokens=390, seed=3, ignore_eos=True, frequency_penalty=0.1)
    for number in range(NUM_SEQS):
        engine.add(Request(str(number), [number + 1, *([7] * (context - 1))], params))
    run(engine, 5)
    assert engine.scheduler.num_running == NUM_SEQS
    return engine


def run(engine: Engine, num_steps: int) -> None:
    for _ in range(num_steps):
        engine.step()


def fastest_step(engine: Engine) -> float:
    seconds = []
    for _ in range(150):
        start = time.thread_time()
        engine.step()
        seconds.append(time.thread_time() - start)
    return min(seconds)


def test_a_step_costs_the_same_after_a_long_prompt(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(make_byte_tokenizer(tmp_path))
    short, long = decoding_engine(tokenizer, 50), decoding_engine(tokenizer, 50_000)
    # Which tokens come differs, and so does the little work that their text is.
    assert lines_executed(lambda: run(long, 30)) < 1.2 * lines_executed(lambda: run(short, 30))
    # Copying the 50,000 entries of each table alone would take ten times as long as a whole step.
    assert fastest_step(long) < 2 * fastest_step(short)
