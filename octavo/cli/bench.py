"""`octavo bench`: latency, throughput, shared prefixes, and a server under load. Flags have vLLM's names."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
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
    from octavo.engine import LLM
    from octavo.measure.bench.prefix import PrefixRun, PrefixWork

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
SeedOption = Annotated[int, typer.Option(help="Draws prompts and arrivals; the same seed is the same work.")]
MaxNumSeqsOption = Annotated[int, typer.Option(help="Most sequences in one step.")]
MaxNumBatchedTokensOption = Annotated[int, typer.Option(help="Most tokens in one step.")]


@app.callback()
def run() -> None:
    """Measure speed on this machine. Prompts are distinct token ids, greedy, without early stop."""


@app.command()
def latency(
    model: ModelArgument,
    batch_size: Annotated[list[int] | None, typer.Option(help="Requests at once; may be given again. [1]")] = None,
    input_len: Annotated[list[int] | None, typer.Option(help="Prompt tokens; may be given again. [32]")] = None,
    output_len: Annotated[int, typer.Option(help="New tokens of each request.")] = 128,
    num_iters: Annotated[int, typer.Option(help="Measured batches of each kind.")] = 5,
    num_iters_warmup: Annotated[int, typer.Option(help="Batches before these that do not count.")] = 1,
    seed: SeedOption = 0,
    memory: MemoryOption = None,
    max_model_len: MaxModelLenOption = None,
    max_num_batched_tokens: MaxNumBatchedTokensOption = 512,
    dtype: DtypeOption = "float32",
    executor: ExecutorOption = "auto",
    threads: ThreadsOption = None,
    kv_dtype: KvDtypeOption = "auto",
    isa: IsaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time to first token and time per output token, by batch and context."""
    from octavo.measure.bench.latency import LatencyPlan, measure_latency
    from octavo.measure.bench.offline import facts

    plan = LatencyPlan(batch_size or (1,), input_len or (32,), output_len, num_iters, num_iters_warmup, seed)
    if min(plan.batch_sizes) < 1:
        raise InvalidField("--batch-size", min(plan.batch_sizes), "must be at least 1")
    llm = _llm(
        model, memory=memory, max_model_len=max_model_len, max_num_seqs=max(plan.batch_sizes),
        max_num_batched_tokens=max_num_batched_tokens, dtype=dtype, executor=executor, threads=threads,
        kv_dtype=kv_dtype, isa=isa,
    )  # fmt: skip
    points = measure_latency(llm, plan, _say)
    _print(as_json, "latency", model, facts(llm), {"points": [each.to_dict() for each in points]}, _joined(points))


@app.command()
def throughput(
    model: ModelArgument,
    num_prompts: Annotated[int, typer.Option(help="Requests, all given at once.")] = 32,
    input_len: Annotated[int, typer.Option(help="Prompt tokens of each request.")] = 256,
    output_len: Annotated[int, typer.Option(help="New tokens of each request.")] = 128,
    seed: SeedOption = 0,
    memory: MemoryOption = None,
    max_model_len: MaxModelLenOption = None,
    max_num_seqs: MaxNumSeqsOption = 32,
    max_num_batched_tokens: MaxNumBatchedTokensOption = 512,
    dtype: DtypeOption = "float32",
    executor: ExecutorOption = "auto",
    threads: ThreadsOption = None,
    kv_dtype: KvDtypeOption = "auto",
    isa: IsaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Many requests at once, offline."""
    from octavo.measure.bench.offline import facts
    from octavo.measure.bench.throughput import measure_throughput

    llm = _llm(
        model, memory=memory, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens, dtype=dtype, executor=executor, threads=threads,
        kv_dtype=kv_dtype, isa=isa,
    )  # fmt: skip
    result = measure_throughput(llm, num_prompts, input_len, output_len, seed, _say)
    _print(as_json, "throughput", model, facts(llm), result.to_dict(), result.lines())


@app.command()
def prefix(
    model: ModelArgument,
    num_prompts: Annotated[int, typer.Option(help="Requests, all given at once.")] = 32,
    num_prefixes: Annotated[int, typer.Option(help="Groups of requests, each with a beginning of its own.")] = 1,
    prefix_len: Annotated[int, typer.Option(help="Tokens that a group shares.")] = 512,
    suffix_len: Annotated[int, typer.Option(help="Prompt tokens of each request after them.")] = 32,
    output_len: Annotated[int, typer.Option(help="New tokens of each request.")] = 64,
    compare: Annotated[bool, typer.Option(help="Also without the prefix cache; the tokens must be equal.")] = True,
    seed: SeedOption = 0,
    memory: MemoryOption = None,
    max_model_len: MaxModelLenOption = None,
    max_num_seqs: MaxNumSeqsOption = 32,
    max_num_batched_tokens: MaxNumBatchedTokensOption = 512,
    dtype: DtypeOption = "float32",
    executor: ExecutorOption = "auto",
    threads: ThreadsOption = None,
    kv_dtype: KvDtypeOption = "auto",
    isa: IsaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Requests that begin alike, with the prefix cache and without."""
    from octavo.measure.bench.prefix import PrefixWork

    work = PrefixWork(num_prompts, num_prefixes, prefix_len, suffix_len, output_len, seed)
    settings = {
        "memory": memory, "max_model_len": max_model_len, "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens, "dtype": dtype, "executor": executor, "threads": threads,
        "kv_dtype": kv_dtype, "isa": isa,
    }  # fmt: skip
    cached, tokens, engine = _measured(model, settings, work, "with the prefix cache")
    result: dict[str, Any] = {"cached": cached.to_dict(), "uncached": None, "speedup": None, "same_tokens": None}
    lines = [cached.line()]
    if compare:
        uncached, others, _ = _measured(model, {**settings, "prefix_caching": False}, work, "without it")
        result |= {"uncached": uncached.to_dict(), "speedup": uncached.seconds / cached.seconds}
        result["same_tokens"] = tokens == others
        sameness = "the same tokens" if tokens == others else "DIFFERENT TOKENS: this is a bug"
        lines += [uncached.line(), f"{result['speedup']:.2f} times as fast with the cache, {sameness}"]
    _print(as_json, "prefix", model, engine, result, lines)


@app.command()
def serve(
    model: ModelArgument,
    base_url: Annotated[str | None, typer.Option(help="A running server of MODEL (unset: start one here).")] = None,
    api_key: Annotated[str | None, typer.Option(help="For --base-url: sent as a Bearer token.")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="For --base-url (unset: its only model).")] = None,
    num_prompts: Annotated[int, typer.Option(help="Requests.")] = 100,
    request_rate: Annotated[float | None, typer.Option(help="Arrivals a second; inf: all at once. [1]")] = None,
    burstiness: Annotated[float | None, typer.Option(help="1: Poisson arrivals; less: burstier. [1]")] = None,
    input_len: Annotated[int | None, typer.Option(help="Prompt tokens of each request. [256]")] = None,
    output_len: Annotated[int | None, typer.Option(help="New tokens of each request. [64]")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Arrivals and lengths from an Azure (.csv) or Mooncake (.jsonl) trace.")
    ] = None,
    length_scale: Annotated[float | None, typer.Option(help="For --trace: lengths times this. [1]")] = None,
    speedup: Annotated[float | None, typer.Option(help="For --trace: this many times as fast. [1]")] = None,
    goodput: Annotated[
        list[str] | None, typer.Option(help="A limit, NAME:MILLISECONDS of ttft, tpot, e2el; may be given again.")
    ] = None,
    metric_percentiles: Annotated[str, typer.Option(help="Which percentiles to show.")] = "50,90,99",
    timeout_seconds: Annotated[float, typer.Option(help="Give up this long after the last arrival.")] = 300.0,
    seed: SeedOption = 0,
    memory: MemoryOption = None,
    max_model_len: MaxModelLenOption = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most sequences in one step. [32]")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16, for dense weights. [float32]")] = None,
    executor: Annotated[str | None, typer.Option(help="auto, native or reference. [auto]")] = None,
    threads: ThreadsOption = None,
    kv_dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, int8, fp8 or fp8-e5m2. [auto]")] = None,
    isa: IsaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open-loop load: requests leave at their time, answered or not; percentiles and goodput as clients see them."""
    from octavo.measure.bench.serving import ServingWork, Target, measure_serving

    _only_with(base_url, "--base-url", {"--api-key": api_key, "--served-model-name": served_model_name})
    own = {
        "--memory": memory, "--max-model-len": max_model_len, "--max-num-seqs": max_num_seqs, "--dtype": dtype,
        "--executor": executor, "--threads": threads, "--kv-dtype": kv_dtype, "--isa": isa,
    }  # fmt: skip
    synthetic = {
        "--request-rate": request_rate, "--burstiness": burstiness, "--input-len": input_len,
        "--output-len": output_len,
    }  # fmt: skip
    _never_with(base_url, "--base-url", own)
    _never_with(trace, "--trace", synthetic)
    _only_with(trace, "--trace", {"--length-scale": length_scale, "--speedup": speedup})
    work = ServingWork(
        num_prompts, _or(request_rate, 1.0), _or(burstiness, 1.0), _or(input_len, 256), _or(output_len, 64), trace,
        _or(length_scale, 1.0), _or(speedup, 1.0), tuple(goodput or ()), metric_percentiles, timeout_seconds, seed,
    )  # fmt: skip
    target = Target(model, base_url, api_key, served_model_name, _server_options(own))
    report, surroundings = measure_serving(target, work, _say)
    result = {**report.to_dict(), **surroundings}
    _print(as_json, "serve", model, None, result, [*report.lines(), *_shown(surroundings)])


def _llm(model: str, **settings: Any) -> LLM:
    from octavo.engine import LLM

    _say(f"loading {model}")
    return LLM(model, **settings)


def _measured(
    model: str, settings: dict[str, Any], work: PrefixWork, name: str
) -> tuple[PrefixRun, list[list[int]], dict[str, Any]]:
    """One engine's pass over the work; the engine's memory is free again when this returns."""
    from octavo.measure.bench.offline import facts
    from octavo.measure.bench.prefix import measure_prefix

    llm = _llm(model, **settings)
    return *measure_prefix(llm, work, name, _say), facts(llm)


def _server_options(own: dict[str, Any]) -> list[str]:
    return [text for name, value in own.items() if value is not None for text in (name, str(value))]


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _only_with(chosen: object, name: str, options: dict[str, Any]) -> None:
    for option, value in options.items():
        if chosen is None and value is not None:
            raise InvalidField(option, value, f"has a meaning only with {name}")


def _never_with(chosen: object, name: str, options: dict[str, Any]) -> None:
    for option, value in options.items():
        if chosen is not None and value is not None:
            raise InvalidField(option, value, f"cannot be given with {name}, which settles it")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _joined(points: Sequence[Any]) -> list[str]:
    return [line for point in points for line in point.lines()]


def _shown(surroundings: dict[str, Any]) -> list[str]:
    return [f"  {name.replace('_', ' ')}: {value}" for name, value in surroundings.items()]


def _print(
    as_json: bool, kind: str, model: str, engine: dict[str, Any] | None, result: dict[str, Any], lines: list[str]
) -> None:
    """The result, with what it was measured on; `engine` is None where it runs in another process."""
    from octavo.quantize.provenance import machine

    measured_on = {"machine": machine(), **({} if engine is None else {"engine": engine})}
    if as_json:
        print(json.dumps({"benchmark": kind, "model": model, **measured_on, **result}, allow_nan=False))
        return
    for line in lines:
        print(line)
    for name, known in measured_on.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in known.items()))
