"""The tables: which features go together, tried out. A cell works, or is refused with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from octavo.core.errors import OctavoError
from octavo.engine.config import KV_DTYPES
from octavo.quantize.recipe import KV_CACHES, METHODS, TRANSFORMS
from tests.matrix.models import SCHEMES, TinyModels, logits, serve, weights_of

WORKS = "works"
#: What an outcome begins with where a pair works at a price.
LOSSY = "with a loss: "
#: What follows the reason for the first of several modules.
_MORE = re.compile(r" \(\d+ more modules are refused\).*")
#: What is lost (None: nothing), or `OctavoError`.
Attempt = Callable[[TinyModels, str, str], str | None]
EXECUTORS = ("native", "reference")


@dataclass(frozen=True)
class Table:
    """`attempt(models, row, column)` returns if the pair works, with what is lost if something is, and raises
    `OctavoError` if it is refused."""

    name: str
    about: str
    rows: Sequence[str]
    columns: Sequence[str]
    attempt: Attempt

    def outcomes(self, models: TinyModels) -> dict[tuple[str, str], str]:
        return {
            (row, column): _outcome(models, self.attempt, row, column) for row in self.rows for column in self.columns
        }


def _outcome(models: TinyModels, attempt: Attempt, row: str, column: str) -> str:
    """`works`, what is lost, or the reason of a refusal. Any other exception is a bug and is not caught."""
    try:
        outcome = attempt(models, row, column) or WORKS
    except OctavoError as refusal:
        outcome = str(refusal)
    outcome = _MORE.sub("", outcome.replace(f"{models.folder}/", ""))
    for scheme in {row, column} & set(SCHEMES):
        outcome = outcome.replace(str(weights_of(scheme)), "SCHEME")
    return outcome


def _method(models: TinyModels, method: str, scheme: str) -> None:
    models.walk(models.recipe(scheme, method=method))


def _transform(models: TinyModels, transform: str, scheme: str) -> None:
    method = "qat" if scheme == "ternary" else "rtn"
    models.walk(models.recipe(scheme, method=method, transforms=(transform,)))


def _kv_recipe(models: TinyModels, kv_cache: str, scheme: str) -> None:
    method = "qat" if scheme == "ternary" else "rtn"
    models.walk(models.recipe(scheme, method=method, kv_cache=kv_cache))


def _format(models: TinyModels, scheme: str, format_name: str) -> str | None:
    return _export(models, models.quantized(scheme), format_name)


def _executor(models: TinyModels, scheme: str, executor: str) -> None:
    serve(models.quantized(scheme), executor)


def _kv(models: TinyModels, kv: str, executor: str) -> None:
    kv_dtype, _, calibrated = kv.partition(", ")
    serve(models.quantized("int8", kv_cache=kv_dtype if calibrated else None), executor, kv_dtype)


def _conversion(models: TinyModels, read: str, written: str) -> str | None:
    unquantized = read == "unquantized"
    source = models.source if unquantized else models.exported(models.quantized(HELD_BY[read]), read)[0]
    return _export(models, source, written)


def _export(models: TinyModels, source: Path, format_name: str) -> str | None:
    """What is called lossless has the same logits, but for the order of sums; other losses are named."""
    target, report = models.exported(source, format_name)
    expected, found = logits(source), logits(target)
    if report.lossless:
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
        return None
    assert found.isfinite().all()
    assert report.notes, "a loss that is not named"
    return f"{LOSSY}{'; '.join(report.notes)}"


#: Format -> a scheme that it can hold.
HELD_BY = {
    "compressed-tensors": "int4", "gptq": "int4", "awq": "int4 asymmetric", "gguf": "int4", "fp8": "fp8-block",
    "bitnet": "ternary", "hf": "int4",
}  # fmt: skip


def formats() -> list[str]:
    """What `octavo export` can write."""
    from octavo.weights.formats import FORMATS

    return list(FORMATS)


def kv_rows() -> list[str]:
    """Every type of keys and values; with scales in the checkpoint, those a recipe can calibrate."""
    plain = [name for name in (*KV_DTYPES, *KV_CACHES) if name != "auto"]
    return [*dict.fromkeys(plain), *(f"{name}, calibrated" for name in KV_CACHES)]


def tables() -> list[Table]:
    written = formats()
    unheld = set(written) - set(HELD_BY)
    assert not unheld, f"tests/matrix/tables.py: name a scheme that {unheld} can hold"
    return [
        Table("Method and scheme", "How codes are chosen, for each grid.", METHODS, list(SCHEMES), _method),
        Table("Transform and scheme", "Rounded to nearest after it.", TRANSFORMS, list(SCHEMES), _transform),
        Table("KV cache and scheme", "Calibrated in the same walk.", KV_CACHES, list(SCHEMES), _kv_recipe),
        Table(
            "Scheme and format", "A quantized checkpoint through `octavo export`; the logits are the same.",
            list(SCHEMES), written, _format,
        ),
        Table("Scheme and executor", "The engine serves the checkpoint.", list(SCHEMES), EXECUTORS, _executor),
        Table("Keys and values and executor", "`--kv-dtype`, served.", kv_rows(), EXECUTORS, _kv),
        Table(
            "Format read and format written", "Through `octavo export`; the logits are the same.",
            ["unquantized", *written], written, _conversion,
        ),
    ]  # fmt: skip
