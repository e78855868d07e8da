"""`octavo demo`: the main job on the default model, with the commands a user would type.

pull -> quantize to 4 bits -> the measured loss -> serve -> an answer through the official OpenAI client.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo.core.errors import InvalidField, OctavoError
from octavo.core.units import format_seconds
from octavo.models.catalog import DEMO_MODEL

_QUESTION = "Name three things a small library needs, one short line each."
_READY_SECONDS = 60.0


def run(
    output: Annotated[Path, typer.Option("--output", "-o", help="where the 4-bit checkpoint goes")] = Path(
        f"work/{DEMO_MODEL}-int4-g64"
    ),
    memory: Annotated[str, typer.Option(help="hard memory total of the server")] = "1GiB",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object on stdout")] = False,
) -> None:
    """Quantize the default model to 4 bits, show the measured loss, serve it and ask it something."""
    started = time.monotonic()
    _require_openai()
    report = _quantize(output)
    _octavo("inspect", str(output))
    with _server(output, memory) as address:
        answer = _ask(address, output.name)
    seconds = time.monotonic() - started
    _say(f"Done in {format_seconds(seconds)}. The checkpoint stays in {output}; try: octavo chat {output}")
    if as_json:
        print(json.dumps({"checkpoint": str(output), "report": report, "answer": answer, "seconds": round(seconds, 1)}))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _require_openai() -> None:
    try:
        import openai  # noqa: F401
    except ImportError:
        raise OctavoError("the demo speaks through the openai client: pip install 'octavo[demo]'") from None


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "octavo.cli.main", *arguments]


def _octavo(*arguments: str) -> None:
    """Run an octavo command as a user would, its output shown on stderr."""
    _say("\n$ octavo " + " ".join(arguments))
    code = subprocess.run(_command(*arguments), stdout=sys.stderr, check=False).returncode
    if code:
        raise OctavoError(f"octavo {arguments[0]} ended with exit code {code}")


def _quantize(output: Path) -> dict[str, Any]:
    """Quantize unless `output` already holds a measured checkpoint; a killed run resumes by itself."""
    report = output / "octavo.json"
    if report.exists():
        _say(f"{output} is there already and is used as it is (delete it to quantize again)")
    elif output.exists():
        raise InvalidField("output", str(output), "exists but holds no measured checkpoint; name another folder")
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        arguments = (
            "quantize",
            DEMO_MODEL,
            "--bits",
            "4",
            "--group",
            "64",
            "--method",
            "gptq",
            "-o",
            str(output),
            "--eval-windows",
            "2",
        )
        _octavo(*arguments)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@contextmanager
def _server(checkpoint: Path, memory: str) -> Iterator[str]:
    """`octavo serve` on a free loopback port for the length of the block; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ("serve", str(checkpoint), "--port", str(port), "--memory", memory)
    _say("\n$ octavo " + " ".join(arguments))
    process = subprocess.Popen(_command(*arguments), stdout=sys.stderr)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(process, address)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_until_ready(process: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise OctavoError(f"octavo serve ended with exit code {process.returncode}")
        try:
            with urllib.request.urlopen(address + "/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise OctavoError(f"octavo serve was not ready within {_READY_SECONDS:.0f} s")


def _ask(address: str, model: str) -> str:
    """Ask once, streamed, with the official client; the answer goes to stderr as it comes."""
    from openai import OpenAI

    _say(f"\n>>> OpenAI(base_url='{address}/v1').chat.completions.create(..., stream=True)")
    _say(f"user: {_QUESTION}")
    client = OpenAI(base_url=address + "/v1", api_key="unused", max_retries=0)
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": _QUESTION}],
        temperature=0.0,
        max_tokens=60,
        stream=True,
        stream_options={"include_usage": True},
    )
    print("assistant: ", end="", file=sys.stderr)
    pieces = []
    for chunk in stream:
        for choice in chunk.choices:
            piece = choice.delta.content or ""
            pieces.append(piece)
            print(piece, end="", file=sys.stderr, flush=True)
        if chunk.usage is not None:
            _say(f"\n[{chunk.usage.prompt_tokens} prompt tokens, {chunk.usage.completion_tokens} new tokens]")
    return "".join(pieces)
