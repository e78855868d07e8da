"""Where calibration text comes from: files, chats, data sets of the hub, and what is built in.

medical.txt        a text file: one document
turns.jsonl        {"text": ...} or {"messages": [...]} a line
hf:ORG/NAME        a data set of the Hugging Face hub, or hf:ORG/NAME:SPLIT:COLUMN
built-in           the topics of Python's own manual
medical.txt@2      any of these with a weight: twice as many windows as a source of weight 1
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import InvalidField
from octavo.quantize.calibration_windows import Document, Piece

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

#: How users name the built-in text, and what it is.
BUILT_IN_NAME, BUILT_IN = "built-in", "pydoc_data.topics"
#: Every n-th topic of the built-in text is kept for evaluation.
_HELD_OUT_EVERY = 4
_HUB_PREFIX = "hf:"
_WHAT_WORKS = "name a text file, a .jsonl of texts or chats, or hf:ORG/NAME; a weight follows as @2"


@dataclass(frozen=True, slots=True)
class CalibrationSource:
    """A source by the name users give it, and its share of the windows."""

    name: str
    weight: float = 1.0

    @classmethod
    def parse(cls, text: str | Path) -> CalibrationSource:
        """`PATH` or `PATH@WEIGHT`. An existing path is a path, whatever signs it holds. Raises `InvalidField`."""
        name, at, weight = str(text).rpartition("@")
        if not at or Path(text).exists():
            return cls(str(text))
        try:
            value = float(weight)
        except ValueError:
            raise InvalidField("calibration", str(text), _WHAT_WORKS) from None
        if not (value > 0 and math.isfinite(value)):
            raise InvalidField("calibration", str(text), "a weight is a number above 0")
        return cls(name, value)


def parse_sources(sources: str | Path | Sequence[str | Path] | None) -> list[CalibrationSource]:
    """One source or several; none is the built-in text. Raises `InvalidField` for one that is named twice."""
    given = [sources] if isinstance(sources, str | Path) else list(sources or [BUILT_IN_NAME])
    parsed = [CalibrationSource.parse(source) for source in given]
    names = [source.name for source in parsed]
    for name in names:
        if names.count(name) > 1:
            raise InvalidField("calibration", name, f"is named {names.count(name)} times; give it a weight: {name}@2")
    return parsed


def read_documents(source: CalibrationSource, tokenizer: Tokenizer) -> tuple[list[Document], str]:
    """(the source's documents that hold any token, what it is in words). Raises `InvalidField` for a source that is
    unreadable, malformed or empty, `DownloadError` for a data set that cannot be fetched."""
    name, column, title = source.name, None, source.name
    if name == BUILT_IN_NAME:
        documents: Iterable[Document] = _texts(tokenizer, built_in_documents())
        title = BUILT_IN
    elif name.startswith(_HUB_PREFIX):
        from octavo.weights.pull_dataset import pull_dataset

        data = pull_dataset(name.removeprefix(_HUB_PREFIX))
        documents, title, column = _rows(tokenizer, data.path, data.column), data.title, data.column
    else:
        documents = _file_documents(tokenizer, Path(name))
    try:
        kept = [document for document in documents if any(piece.tokens for piece in document)]
    except UnicodeDecodeError as error:
        raise InvalidField("calibration", name, f"must be UTF-8 ({error})") from None
    if not kept:
        raise InvalidField("calibration", name, f"the source holds no text{f' in {column!r}' if column else ''}")
    return kept, title


def built_in_documents(held_out: bool = False) -> list[str]:
    """The topics of Python's own manual (`pydoc_data.topics`), by name: the part for calibration, or the other."""
    from pydoc_data.topics import topics

    return [
        text
        for index, (_, text) in enumerate(sorted(topics.items()))
        if (index % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1) == held_out
    ]


def bos_prefix(tokenizer: Tokenizer) -> list[int]:
    """`[bos]` if the tokenizer itself starts a text with BOS, else nothing: the BOS policy of every measurement."""
    encoded = tokenizer.encode("a", add_special_tokens=True)
    starts = bool(encoded) and encoded[0] == tokenizer.bos_id
    return encoded[:1] if starts else []


def _texts(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[Document]:
    for text in texts:
        yield [Piece(tokenizer.encode(text, add_special_tokens=False))]


def _file_documents(tokenizer: Tokenizer, path: Path) -> Iterator[Document]:
    if not path.is_file():
        raise InvalidField("calibration", str(path), _WHAT_WORKS)
    if path.suffix in (".jsonl", ".parquet"):
        yield from _rows(tokenizer, path, None)
    else:
        yield from _texts(tokenizer, [path.read_text(encoding="utf-8")])


def _rows(tokenizer: Tokenizer, path: Path, column: str | None) -> Iterator[Document]:
    read = _parquet_rows if path.suffix == ".parquet" else _json_rows
    for where, row in read(path):
        yield _row_document(tokenizer, row, column, where)


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"calibration line {number}"
            try:
                yield where, json.loads(line)
            except ValueError as error:
                raise InvalidField(where, line, f"not JSON: {error}") from None


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        expected = "reading .parquet needs pyarrow (pip install octavo[parquet]); or convert the text to .jsonl"
        raise InvalidField("calibration", str(path), expected) from None
    number = 0
    for batch in parquet.ParquetFile(path).iter_batches():
        for row in batch.to_pylist():
            number += 1
            yield f"calibration row {number}", row


def _row_document(tokenizer: Tokenizer, row: Any, column: str | None, where: str) -> Document:
    """A row's text or chat: that of `column`, or else of "messages" or "text". Null is as good as absent: a parquet
    file has all of its columns in every row."""
    names = ("messages", "text") if column is None else (column,)
    present = (row[name] for name in names if row.get(name) is not None) if isinstance(row, Mapping) else iter(())
    value = next(present, None)
    if isinstance(value, str):
        return [Piece(tokenizer.encode(value, add_special_tokens=False))]
    if isinstance(value, list):
        return _chat_turns(tokenizer, value, where)
    expected = 'write {"text": "..."} or {"messages": [...]}'
    if column is not None:
        has = ", ".join(row) if isinstance(row, Mapping) else "no columns"
        expected = f"the column must hold a text or a list of messages; the row has {has}"
    raise InvalidField(where, column or row, expected)


def _chat_turns(tokenizer: Tokenizer, messages: list[dict[str, Any]], where: str) -> Document:
    """Each turn as the model's own template renders it. Where a longer chat does not render as a continuation of a
    shorter one, the turns in question stay one piece.

    What the assistant says counts, the rest is context; so does a turn of `"weight": 0` (as in OpenAI's training
    files). A chat in which the assistant says nothing counts whole.
    """
    template = tokenizer.chat_template
    if template is None:
        expected = 'the model has no chat template to render "messages" with; calibrate on {"text": "..."}'
        raise InvalidField(where, "messages", expected)
    counted, turns = [_counts(message) for message in messages], [_without_weight(message) for message in messages]
    if not any(isinstance(message, Mapping) and message.get("role") == "assistant" for message in messages):
        counted = [True] * len(messages)
    whole = template.render(turns, add_generation_prompt=False)
    pieces: Document = []
    start = first = 0
    for end in range(1, len(turns) + 1):
        try:
            part = whole if end == len(turns) else template.render(turns[:end], add_generation_prompt=False)
        except InvalidField:  # a template may refuse half a chat: then there is no cut here
            continue
        if whole.startswith(part) and len(part) > start:
            tokens = tokenizer.encode(whole[start : len(part)], add_special_tokens=False)
            pieces.append(Piece(tokens, any(counted[first:end])))
            start, first = len(part), end
    bos = bos_prefix(tokenizer)
    if bos and pieces and pieces[0].tokens[:1] == bos:
        pieces[0] = Piece(pieces[0].tokens[1:], pieces[0].counts)
    return pieces


def _counts(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant" and message.get("weight", 1) != 0


def _without_weight(message: Any) -> Any:
    """A training file's weight is not the template's business."""
    if not isinstance(message, Mapping):
        return message
    return {key: value for key, value in message.items() if key != "weight" and value is not None}
