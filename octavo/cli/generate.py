"""`octavo generate`: prompts in, continuations out, offline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
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
)
from octavo.core.errors import InvalidField

if TYPE_CHECKING:
    from octavo.core.outputs import CompletionOutput, RequestOutput


def run(
    model: ModelArgument,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", "-p", help="A prompt; may be given again.")] = None,
    prompts_file: Annotated[
        Path | None, typer.Option(help='One prompt a line; a .jsonl file has {"prompt": ...} a line.')
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Each prompt is a user's turn for the chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most new tokens for each answer.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens of this total probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from this many likeliest tokens; 0: from all.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    n: Annotated[int, typer.Option(help="Answers for each prompt.")] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="End at this text; may be given again.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on to --max-tokens.")] = False,
    logprobs: Annotated[int | None, typer.Option(help="With --json: log-probabilities, this many a token.")] = None,
    memory: MemoryOption = None,
    max_model_len: MaxModelLenOption = None,
    dtype: DtypeOption = "float32",
    executor: ExecutorOption = "auto",
    threads: ThreadsOption = None,
    kv_dtype: KvDtypeOption = "auto",
    isa: IsaOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Continue prompts and print the answers."""
    prompts = _read_prompts(prompt, prompts_file)
    if logprobs is not None and not as_json:
        raise InvalidField("--logprobs", logprobs, "needs --json")
    from octavo.core.sampling_params import SamplingParams
    from octavo.engine import LLM

    params = SamplingParams(
        n=n, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, stop=stop, ignore_eos=ignore_eos,
        max_tokens=max_tokens, logprobs=logprobs,
    )  # fmt: skip
    llm = LLM(
        model, memory=memory, max_model_len=max_model_len, dtype=dtype, executor=executor, threads=threads,
        kv_dtype=kv_dtype, isa=isa,
    )  # fmt: skip
    watched = sys.stderr.isatty() and len(prompts) > 1
    if chat:
        results = llm.chat([[{"role": "user", "content": text}] for text in prompts], params, use_tqdm=watched)
    else:
        results = llm.generate(prompts, params, use_tqdm=watched)
    if as_json:
        answers = [_as_json(text, result) for text, result in zip(prompts, results, strict=True)]
        print(json.dumps({"model": model, "results": answers}, ensure_ascii=False, allow_nan=False))
    else:
        _print(prompts, results, continued=not chat)


def _read_prompts(prompts: list[str] | None, file: Path | None) -> list[str]:
    if bool(prompts) == (file is not None):
        raise InvalidField("--prompt", prompts, "give --prompt (again for more) or --prompts-file, one of the two")
    if file is None:
        return list(prompts or [])
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField("--prompts-file", str(file), f"cannot be read ({error})") from None
    read = _json_prompt if file.suffix == ".jsonl" else _plain_prompt
    found = [read(line, f"{file}:{number}") for number, line in enumerate(lines, start=1)]
    if not found:
        raise InvalidField("--prompts-file", str(file), "holds no prompts")
    return found


def _plain_prompt(line: str, place: str) -> str:
    if not line.strip():
        raise InvalidField(place, line, "an empty line is no prompt; take it out")
    return line


def _json_prompt(line: str, place: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or set(entry) != {"prompt"} or not isinstance(entry["prompt"], str):
        raise InvalidField(place, line, 'must be {"prompt": "..."} and nothing else')
    return str(entry["prompt"])


def _print(prompts: list[str], results: list[RequestOutput], continued: bool) -> None:
    """Prompt and answer run on for a plain continuation; a chat's prompt stands on a line of its own."""
    several = sum(len(result.outputs) for result in results) > 1
    for text, result in zip(prompts, results, strict=True):
        for output in result.outputs:
            if several:
                print(f"--- {text!r}" + (f" [{output.index}]" if len(result.outputs) > 1 else ""))
            print(text + output.text if continued else output.text)


def _as_json(prompt: str, result: RequestOutput) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "num_prompt_tokens": len(result.prompt_token_ids),
        "num_cached_tokens": result.num_cached_tokens,
        "outputs": [_output_as_json(output) for output in result.outputs],
    }


def _output_as_json(output: CompletionOutput) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    if output.logprobs is not None:
        fields["cumulative_logprob"] = output.cumulative_logprob
        fields["logprobs"] = [
            [
                {"token_id": token, "token": entry.decoded_token, "logprob": entry.logprob, "rank": entry.rank}
                for token, entry in position.items()
            ]
            for position in output.logprobs
        ]
    return fields
