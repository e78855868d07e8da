"""The `octavo` command: a table of commands, each in its own file, imported only when it is the one asked for."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo import __version__
from octavo.core.errors import OctavoError

#: Command -> its line in `octavo --help`. The file `octavo/cli/<command>.py` holds a function `run` with typer's
#: annotations; its docstring is the command's own help. Where commands hang below it, the file also holds their `app`.
COMMANDS = {
    "pull": "Fetch a model: from the catalog, or ORG/NAME from the Hugging Face hub.",
    "quantize": "Make a model smaller and measure what that costs.",
    "calibrate": "Keep what quantization needs to know of a model, so that it is run once.",
    "fit": "Mixed precision: the best model that fits a number of bytes, bits per weight or a loss.",
    "evaluate": "Measure perplexity, and the distance to another model.",
    "compare": "Put several checkpoints side by side: quality, bytes, speed.",
    "export": "Write a model in another format: gptq, awq, compressed-tensors, gguf, bitnet, hf.",
    "inspect": "Show what a model is: shapes, schemes, bytes, measured quality.",
    "serve": "Serve a model over HTTP in the shapes of the OpenAI API.",
    "chat": "Talk to a model in the terminal.",
    "generate": "Continue prompts, offline.",
    "bench": "Measure latency, throughput, shared prefixes, or a server under load.",
    "doctor": "Show what this machine offers and what Octavo chose.",
    "demo": "Quantize a small model, measure it, serve it and ask it something.",
}

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process: 0 done, 2 the user's input cannot be honoured, 130 Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    sys.exit(_plain_errors(lambda: build_app(chosen)(args=arguments, prog_name="octavo"))())


def build_app(chosen: str | None) -> typer.Typer:
    """The app with every command of the table that is on disk; only `chosen` is imported, the others can only
    print their line of help."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_root)
    for name, line in COMMANDS.items():
        if not Path(__file__).with_name(f"{name}.py").exists():
            continue
        if name == chosen:
            module = importlib.import_module(f"octavo.cli.{name}")
            if hasattr(module, "app"):  # a command with commands of its own
                app.add_typer(module.app, name=name, short_help=line)
            else:
                app.command(name, short_help=line)(_plain_errors(module.run))
        else:
            app.command(name, help=line)(_not_loaded)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Quantize language models with a measured loss and serve them from paged, prefix-shared memory."""


def _not_loaded() -> None:
    raise AssertionError("only the chosen command is run")


def _plain_errors(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, with the errors that are written for users printed plainly on stderr; anything else is a bug and
    keeps its traceback."""

    @functools.wraps(run)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except OctavoError as error:
            print(f"octavo: {error}", file=sys.stderr)
            sys.exit(EXIT_USER_ERROR)
        except KeyboardInterrupt:
            print("octavo: interrupted", file=sys.stderr)
            sys.exit(EXIT_INTERRUPTED)

    return guarded


if __name__ == "__main__":
    main()
