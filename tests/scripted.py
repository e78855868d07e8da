"""An executor whose logits force a prescribed continuation, for tests that need the text to be known.

It stores token ids where a real executor stores keys and values, and reads a sequence's past through its block table:
a wrong table, a lost copy-on-write or a wrongly shared prefix shows as a wrong history, which is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from octavo.core.request import Request
from octavo.core.step import Chunk, Step
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.engine import Engine
from octavo.ops.base import Executor
from octavo.text.tokenizer import Tokenizer

#: A text or token ids for every prompt; or one per prompt text / prompt ids; or a function of the prompt's ids.
Continuation = str | list[int]
Script = Continuation | Mapping[str | tuple[int, ...], Continuation] | Callable[[list[int]], Continuation]


class ScriptedExecutor(Executor):
    """Gives the scripted next token a logit `gap` above all others; after the script's end, the end-of-sequence id.

    `step_seconds` makes each step take that long.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        script: Script,
        num_blocks: int = 256,
        block_size: int = 16,
        gap: float = 60.0,
        step_seconds: float = 0.0,
        vocab_size: int | None = None,
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.vocab_size = vocab_size or tokenizer.vocab_size
        self.gap, self.step_seconds = gap, step_seconds
        self.steps: list[Step] = []
        self._tokenizer, self._script = tokenizer, script
        self._blocks = [[-1] * block_size for _ in range(num_blocks)]
        self._prompts: list[tuple[list[int], list[int]]] = []

    def expect(self, prompt_token_ids: list[int]) -> None:
        """A request with this prompt may come; `ScriptedEngine.add` calls it."""
        continuation = self._continuation(prompt_token_ids)
        ids = continuation if isinstance(continuation, list) else self._tokenizer.encode(continuation, False)
        entry = (list(prompt_token_ids), ids)
        if entry not in self._prompts:
            self._prompts.append(entry)

    def execute(self, step: Step) -> Tensor:
        if self.step_seconds:
            time.sleep(self.step_seconds)
        self.steps.append(step)
        for source, target in step.block_copies:
            self._blocks[target] = list(self._blocks[source])
        for chunk in step.chunks:
            for offset, token in enumerate(chunk.tokens):
                block, place = divmod(chunk.start + offset, self.block_size)
                self._blocks[chunk.block_table[block]][place] = token
        logits = torch.zeros(step.num_logit_rows, self.vocab_size)
        wanted = [self._next_token(chunk, row) for chunk in step.chunks for row in chunk.logit_rows]
        logits[range(len(wanted)), wanted] = self.gap
        return logits

    def _continuation(self, prompt: list[int]) -> Continuation:
        script = self._script
        if isinstance(script, Mapping):
            text = self._tokenizer.decode(prompt, skip_special_tokens=False)
            return script[tuple(prompt)] if tuple(prompt) in script else script[text]
        return script(prompt) if callable(script) else script

    def _history(self, chunk: Chunk, num_tokens: int) -> list[int]:
        places = (divmod(position, self.block_size) for position in range(num_tokens))
        return [self._blocks[chunk.block_table[block]][place] for block, place in places]

    def _next_token(self, chunk: Chunk, row: int) -> int:
        history = self._history(chunk, chunk.start + row + 1)
        scripts = [entry for entry in self._prompts if history[: len(entry[0])] == entry[0]]
        if not scripts:
            inside = [prompt for prompt, _ in self._prompts if prompt[: len(history)] == history]
            assert inside, f"the block table shows a history that no prompt has: {history}"
            return inside[0][len(history)]  # a prompt being scored
        prompt, continuation = max(scripts, key=lambda entry: len(entry[0]))
        said = len(history) - len(prompt)
        return continuation[said] if said < len(continuation) else self._tokenizer.eos_ids[0]


class ScriptedEngine(Engine):
    """An engine over a `ScriptedExecutor` that learns each prompt as it is added."""

    executor: ScriptedExecutor

    def add(self, request: Request) -> None:
        self.executor.expect(request.prompt_token_ids)
        super().add(request)


def scripted_engine(
    tokenizer: Tokenizer,
    script: Script,
    *,
    num_blocks: int = 256,
    block_size: int = 16,
    max_model_len: int = 512,
    step_seconds: float = 0.0,
    **engine_options: int | bool,
) -> ScriptedEngine:
    """A whole engine that answers every prompt as `script` says."""
    executor = ScriptedExecutor(tokenizer, script, num_blocks, block_size, step_seconds=step_seconds)
    options = {"max_model_len": max_model_len, **engine_options}
    return ScriptedEngine(executor, tokenizer, executor.vocab_size, **options)


def scripted_async_engine(tokenizer: Tokenizer, script: Script, **options: int | bool | float) -> AsyncEngine:
    """The same, behind an `AsyncEngine`."""
    return AsyncEngine(scripted_engine(tokenizer, script, **options))
