"""`octavo serve`: a model over HTTP."""

from __future__ import annotations

import logging
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
    build_with_progress,
)
from octavo.core.errors import InvalidField

if TYPE_CHECKING:
    from octavo.serve.model_info import ModelInfo


def run(
    model: ModelArgument,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    api_key: Annotated[str | None, typer.Option(help="Clients must send it as a Bearer token.")] = None,
    memory: MemoryOption = None,
    max_model_len: MaxModelLenOption = None,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences in one step.")] = 32,
    dtype: DtypeOption = "float32",
    executor: ExecutorOption = "auto",
    threads: ThreadsOption = None,
    kv_dtype: KvDtypeOption = "auto",
    isa: IsaOption = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="The name clients use (unset: the model's own).")
    ] = None,
    drain_seconds: Annotated[float, typer.Option(help="How long running requests may go on after SIGTERM.")] = 30.0,
) -> None:
    """Serve a model in the shapes of the OpenAI API, until Ctrl-C or SIGTERM: then running requests finish first."""
    _check(api_key, drain_seconds, served_model_name)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    # Before the model: a taken port is said at once, and the plan counts the server's libraries as well.
    from octavo.engine import AsyncEngine, EngineConfig
    from octavo.serve.app import create_app
    from octavo.serve.model_info import ModelInfo, read_quality
    from octavo.serve.server import bind, is_loopback, run_server

    listening = bind(host, port)
    if api_key is None and not is_loopback(listening):
        _say(f"warning: {host} can be reached from other machines and no --api-key is set: anyone may use the model")
    config = EngineConfig(
        model, dtype=dtype, memory=memory, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
        executor=executor, threads=threads, kv_dtype=kv_dtype, isa=isa,
    )  # fmt: skip
    built = build_with_progress(config)
    source = built.source
    info = ModelInfo(
        served_model_name or _own_name(model), str(source), built.engine.max_model_len, read_quality(source)
    )
    for line in built.plan.lines():
        _say(line)
    app = create_app(AsyncEngine(built.engine), info, api_key)
    run_server(app, listening, drain_seconds, on_ready=lambda url: _say_ready(info, url))


def _check(api_key: str | None, drain_seconds: float, served_model_name: str | None) -> None:
    if api_key is not None and not api_key.strip():
        raise InvalidField("--api-key", api_key, "must not be empty; leave it out for a server without a key")
    if not drain_seconds >= 0:
        raise InvalidField("--drain-seconds", drain_seconds, "must be 0 or more")
    if served_model_name == "":
        raise InvalidField("--served-model-name", served_model_name, "must not be empty")


def _own_name(model: str) -> str:
    """A path's last part without `.gguf`; a catalog name as it is."""
    path = Path(model)
    return path.resolve().name.removesuffix(".gguf") if path.exists() else model


def _say_ready(info: ModelInfo, url: str) -> None:
    for line in quality_lines(info.quality):
        _say(line)
    _say(f"ready: {info.name} at {url}/v1 (at most {info.max_model_len} tokens a request)")


def quality_lines(quality: dict[str, Any] | None) -> list[str]:
    """The measured loss in a line or two."""
    if quality is None:
        return ["quality: not measured (octavo quantize and octavo evaluate do that)"]
    parts = [f"perplexity {quality['perplexity']:.3f}", f"{quality['bits_per_weight']:.2f} bits per weight"]
    comparison = quality.get("comparison")
    if comparison:
        parts.append(f"base {comparison['base_perplexity']:.3f}")
        parts.append(f"KL {comparison['mean_divergence']:.4f} nats")
        parts.append(f"top-1 agreement {100 * comparison['top1_agreement']:.1f} %")
    return ["quality: " + ", ".join(parts), *(f"  note: {caveat}" for caveat in quality.get("caveats", []))]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
