"""Calibration text: where it comes from and how it is packed into windows.

A window holds at most `sequence_length` tokens in segments: whole documents, whole turns of a chat, or a stretch of
a longer text. Each segment is a sequence of its own (attention never crosses documents, there is no padding), and
starts with BOS if the tokenizer adds one. What is not used is counted.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import InvalidField

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

#: A text's piece shorter than this starts a new window instead of filling the rest of one.
MIN_SEGMENT_TOKENS = 32
#: Every n-th topic of the built-in text is kept for evaluation.
_HELD_OUT_EVERY = 4
BUILT_IN = "pydoc_data.topics"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Packed calibration tokens. `windows[i]` are the segments (token lists) of one window."""

    source: str
    windows: list[list[list[int]]]
    sequence_length: int
    num_requested_windows: int
    num_documents: int
    num_unused_tokens: int
    num_split_turns: int = 0

    @property
    def segments(self) -> list[list[int]]:
        return [segment for window in self.windows for segment in window]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.segments))

    @property
    def num_masked_positions(self) -> int:
        """Positions of the windows that hold no token: a turn or document that did not fit began the next one."""
        return len(self.windows) * self.sequence_length - self.num_tokens

    @property
    def sha256(self) -> str:
        """Of the tokens and the cuts between segments."""
        digest = hashlib.sha256()
        for segment in self.segments:
            digest.update(array("q", [len(segment), *segment]).tobytes())
        return digest.hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "num_windows": len(self.windows),
            "num_requested_windows": self.num_requested_windows,
            "sequence_length": self.sequence_length,
            "num_segments": len(self.segments),
            "num_tokens": self.num_tokens,
            "num_documents": self.num_documents,
            "num_unused_tokens": self.num_unused_tokens,
            "num_masked_positions": self.num_masked_positions,
            "num_split_turns": self.num_split_turns,
            "sha256": self.sha256,
        }


def bos_prefix(tokenizer: Tokenizer) -> list[int]:
    """`[bos]` if the tokenizer itself starts a text with BOS, else nothing: the BOS policy of every measurement."""
    encoded = tokenizer.encode("a", add_special_tokens=True)
    starts = bool(encoded) and encoded[0] == tokenizer.bos_id
    return encoded[:1] if starts else []


def load_calibration(
    tokenizer: Tokenizer, source: Path | str | None = None, num_windows: int = 32, sequence_length: int = 512
) -> Calibration:
    """Read and pack calibration text: a text file (one document), a `.jsonl` of `{"text": ...}` or of
    `{"messages": [...]}`, or the built-in text for None.

    Windows are spread evenly over the source. A source with less text gives fewer windows, and the numbers say so.
    Raises `InvalidField` for an unreadable, empty or malformed source.
    """
    if num_windows < 1:
        raise InvalidField("samples", num_windows, "at least one window is needed")
    if sequence_length < MIN_SEGMENT_TOKENS:
        raise InvalidField("sequence_length", sequence_length, f"at least {MIN_SEGMENT_TOKENS} tokens")
    documents = [document for document in _documents(tokenizer, source) if any(document)]
    if not documents:
        raise InvalidField("calibration", str(source or BUILT_IN), "the source holds no text")
    windows, num_split = _pack(documents, bos_prefix(tokenizer), sequence_length)
    chosen = _spread(windows, num_windows)
    num_all, num_used = (sum(len(s) for w in group for s in w) for group in (windows, chosen))
    return Calibration(
        source=str(source or BUILT_IN),
        windows=chosen,
        sequence_length=sequence_length,
        num_requested_windows=num_windows,
        num_documents=len(documents),
        num_unused_tokens=num_all - num_used,
        num_split_turns=num_split,
    )


def built_in_documents(held_out: bool = False) -> list[str]:
    """The topics of Python's own manual (`pydoc_data.topics`), by name: the part for calibration, or the other."""
    from pydoc_data.topics import topics

    return [
        text
        for index, (_, text) in enumerate(sorted(topics.items()))
        if (index % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1) == held_out
    ]


#: A document is a list of pieces that should not be cut: a text is one piece, a chat one piece per turn.
_Document = list[list[int]]


def _documents(tokenizer: Tokenizer, source: Path | str | None) -> Iterator[_Document]:
    if source is None:
        texts: Iterable[str] = built_in_documents()
    else:
        path = Path(source)
        if not path.is_file():
            raise InvalidField("calibration", str(source), "name a text file, or a .jsonl of texts or chats")
        if path.suffix == ".jsonl":
            yield from _json_lines(tokenizer, path)
            return
        texts = [path.read_text(encoding="utf-8")]
    for text in texts:
        yield [tokenizer.encode(text, add_special_tokens=False)]


def _json_lines(tokenizer: Tokenizer, path: Path) -> Iterator[_Document]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidField(f"calibration line {number}", line, f"not JSON: {error}") from None
        if isinstance(row, dict) and isinstance(row.get("messages"), list):
            yield _chat_turns(tokenizer, row["messages"], number)
        elif isinstance(row, dict) and isinstance(row.get("text"), str):
            yield [tokenizer.encode(row["text"], add_special_tokens=False)]
        else:
            raise InvalidField(f"calibration line {number}", line, 'write {"text": "..."} or {"messages": [...]}')


def _chat_turns(tokenizer: Tokenizer, messages: list[dict[str, Any]], number: int) -> _Document:
    """Tokens of each turn as the model's own template renders it. Where a longer chat does not render as a
    continuation of a shorter one, the turns in question stay one piece."""
    template = tokenizer.chat_template
    if template is None:
        expected = 'the model has no chat template to render "messages" with; calibrate on {"text": "..."}'
        raise InvalidField(f"calibration line {number}", "messages", expected)
    whole = template.render(messages, add_generation_prompt=False)
    cuts = [0]
    for count in range(1, len(messages)):
        try:
            part = template.render(messages[:count], add_generation_prompt=False)
        except InvalidField:  # a template may refuse half a chat: then there is no cut here
            continue
        if whole.startswith(part) and len(part) > cuts[-1]:
            cuts.append(len(part))
    pieces = [whole[start:stop] for start, stop in zip(cuts, [*cuts[1:], len(whole)], strict=True)]
    turns = [tokenizer.encode(piece, add_special_tokens=False) for piece in pieces]
    bos = bos_prefix(tokenizer)
    if bos and turns and turns[0][:1] == bos:
        turns[0] = turns[0][1:]
    return turns


def _pack(documents: Sequence[_Document], bos: list[int], length: int) -> tuple[list[list[list[int]]], int]:
    """(windows, number of turns that had to be cut). Every token of every document is in exactly one segment."""
    packer = _Packer(bos, length)
    for document in documents:
        packer.start_segment()
        for piece in document:
            packer.add(piece, splittable=len(document) == 1)
    return packer.finish(), packer.num_split


class _Packer:
    def __init__(self, bos: list[int], length: int) -> None:
        self.bos, self.length = bos, length
        self.windows: list[list[list[int]]] = [[]]
        self.segment: list[int] = []
        self.num_split = 0

    @property
    def room(self) -> int:
        """Tokens that still fit, the BOS of a new segment set aside."""
        used = sum(map(len, self.windows[-1])) + len(self.segment)
        return self.length - used - (0 if self.segment else len(self.bos))

    def start_segment(self) -> None:
        if self.segment:
            self.windows[-1].append(self.segment)
        self.segment = []

    def next_window(self) -> None:
        self.start_segment()
        self.windows.append([])

    def add(self, piece: list[int], splittable: bool) -> None:
        if not splittable and len(piece) > self.length - len(self.bos):
            self.num_split += 1
            splittable = True
        if self.room < (min(MIN_SEGMENT_TOKENS, len(piece)) if splittable else len(piece)):
            self.next_window()
        while piece:
            if self.room <= 0:
                self.next_window()
            head, piece = piece[: self.room], piece[self.room :]
            self.segment = self.segment or list(self.bos)
            self.segment += head

    def finish(self) -> list[list[list[int]]]:
        self.start_segment()
        return [window for window in self.windows if window]


def _spread(windows: list[list[list[int]]], count: int) -> list[list[list[int]]]:
    """`count` windows at even distances, all of them if there are not more."""
    if len(windows) <= count:
        return windows
    return [windows[index * len(windows) // count] for index in range(count)]
