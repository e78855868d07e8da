"""`octavo chat`: a conversation in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.engine_options import (
    DtypeOption,
    ExecutorOption,
    IsaOption,
    KvDtypeOption,
    MaxModelLenOption,
    MemoryOption,
    ModelArgument,
    ThreadsOption,
    build_with_progress,
)
from octavo.core.errors import InvalidField, OctavoError

if TYPE_CHECKING:
    from octavo.core.sampling_params import SamplingParams
    from octavo.engine import Engine

_HELP = "/reset forgets the conversation, /exit leaves; Ctrl-C stops an answer."


def run(
    model: ModelArgument,
    system: Annotated[str | None, typer.Option(help="What the model is told before the first turn.")] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens of this total probability.")] = 0.95,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens in an answer (unset: what the context holds).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed and turns give the same answers.")] = None,
    memory: MemoryOption = None,
    max_model_len: MaxModelLenOption = None,
    dtype: DtypeOption = "float32",
    executor: ExecutorOption = "auto",
    threads: ThreadsOption = None,
    kv_dtype: KvDtypeOption = "auto",
    isa: IsaOption = None,
) -> None:
    """Talk to a model. Every turn sees the whole conversation; its blocks are reused. Turns may be piped in, a line
    each."""
    from octavo.core.sampling_params import SamplingParams
    from octavo.engine import EngineConfig

    params = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    config = EngineConfig(
        model, dtype=dtype, memory=memory, max_model_len=max_model_len, max_num_seqs=1,
        executor=executor, threads=threads, kv_dtype=kv_dtype, isa=isa,
    )  # fmt: skip
    conversation = Conversation(build_with_progress(config).engine, params, system)
    _talk(conversation, sys.stdin.isatty())


class Conversation:
    """The turns so far and the engine that answers. A turn that fails or is refused leaves the history as it was."""

    def __init__(self, engine: Engine, params: SamplingParams, system: str | None = None) -> None:
        if engine.tokenizer.chat_template is None:
            raise InvalidField("MODEL", "a model without a chat template", "use `octavo generate` for plain prompts")
        self._engine = engine
        self._params = params
        self._opening: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self._num_turns = 0
        self.stopped = False
        self.messages = list(self._opening)

    def reset(self) -> None:
        """Forget all turns but the system's."""
        self.messages = list(self._opening)

    def stop(self) -> None:
        """End the answer that is coming, after the step that runs; what was said so far stays in the history."""
        self.stopped = True

    def answer(self, text: str) -> Iterator[str]:
        """The pieces of the answer as they come. Raises `InvalidField` where the conversation no longer fits."""
        from octavo.core.request import Request

        messages = [*self.messages, {"role": "user", "content": text}]
        self._num_turns += 1
        request_id = f"turn-{self._num_turns}"
        self._engine.add(Request(request_id, self._engine.tokenizer.encode_chat(messages), self._params))
        self.stopped = False
        pieces: list[str] = []
        try:
            while self._engine.has_work:
                for delta in self._engine.step():
                    if delta.error is not None:
                        raise OctavoError(f"the answer failed: {delta.error}")
                    pieces.append(delta.text)
                    yield delta.text
                if self.stopped:
                    self._engine.abort(request_id)
            self.messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]
        finally:
            self._engine.abort(request_id)
            while self._engine.has_work:
                self._engine.step()


def _talk(conversation: Conversation, interactive: bool) -> None:
    if interactive:
        print(_HELP, file=sys.stderr)
    while (line := _read_turn(interactive)) is not None:
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            print(f"{line.split()[0]} is no command. {_HELP}", file=sys.stderr)
        elif line:
            _say_answer(conversation, line)


def _read_turn(interactive: bool) -> str | None:
    """The next line, stripped; None at the end of input. Ctrl-C at the prompt leaves, as Ctrl-D does."""
    try:
        return input("> " if interactive else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return None


def _say_answer(conversation: Conversation, line: str) -> None:
    with _interrupt_calls(conversation.stop):
        try:
            for piece in conversation.answer(line):
                print(piece, end="", flush=True)
        except InvalidField as error:
            print(f"octavo: {error}. /reset starts anew.", file=sys.stderr)
    print(flush=True)


@contextmanager
def _interrupt_calls(stop: Any) -> Iterator[None]:
    """While an answer comes, Ctrl-C calls `stop` instead of breaking into a step."""
    previous = signal.signal(signal.SIGINT, lambda _number, _frame: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
