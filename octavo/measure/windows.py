"""Evaluation text and its windows: the part of the protocol that moves a perplexity most, so it is always reported."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import InvalidField
from octavo.quantize.calibration_sources import BUILT_IN, bos_prefix, built_in_documents

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

DEFAULT_WINDOW_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class EvaluationText:
    """A text, where it came from and what was done to its lines."""

    source: str
    text: str
    joining: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_evaluation_text(source: Path | str | None, rows: bool | None = None) -> EvaluationText:
    """Read a UTF-8 text file; None is the held-out part of the built-in text.

    `rows` is the WikiText protocol: every line is a row (empty for a blank line, else the line with its newline) and
    rows are joined by two newlines. None applies it to `*.raw` files only.
    """
    if source is None:
        return EvaluationText(
            f"{BUILT_IN}, held-out topics", "\n\n".join(built_in_documents(held_out=True)), "as it is"
        )
    path = Path(source)
    if not path.is_file():
        raise InvalidField("text", str(source), "name a text file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidField("text", str(source), f"must be UTF-8 ({error})") from None
    if rows if rows is not None else path.suffix == ".raw":
        return EvaluationText(str(path), join_rows(text), "lines are rows, joined by two newlines")
    return EvaluationText(str(path), text, "as it is")


def join_rows(text: str) -> str:
    """WikiText's usual protocol, from the raw file."""
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return "\n\n".join("" if not line.strip() else f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a number was measured. Numbers of different protocols cannot be compared."""

    text: str
    text_sha256: str
    joining: str
    window_tokens: int
    num_windows: int
    num_available_windows: int
    bos: str
    num_scored_tokens: int
    num_unscored_tail_tokens: int
    arithmetic: str = "float32"

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        return (
            f"{self.text} ({self.joining}), first {self.num_windows} of {self.num_available_windows} non-overlapping "
            f"windows of {self.window_tokens} tokens, BOS {self.bos}, first token of a window not scored: "
            f"{self.num_scored_tokens:,} predictions, {self.arithmetic}"
        )


def cut_windows(
    tokenizer: Tokenizer,
    text: EvaluationText,
    window_tokens: int = DEFAULT_WINDOW_TOKENS,
    num_windows: int | None = None,
) -> tuple[list[list[int]], Protocol]:
    """Tokenize once and cut into windows of exactly `window_tokens`, each starting with BOS if the tokenizer adds one.

    The rest that fills no window is not scored, except that a text shorter than one window is one shorter window.
    Raises `InvalidField` for fewer than two tokens or a bad count.
    """
    if window_tokens < 2:
        raise InvalidField("window_tokens", window_tokens, "a window needs two tokens to score one")
    if num_windows is not None and num_windows < 1:
        raise InvalidField("windows", num_windows, "at least one")
    bos = bos_prefix(tokenizer)
    tokens = tokenizer.encode(text.text, add_special_tokens=False)
    stride = window_tokens - len(bos)
    cuts: list[Sequence[int]] = [tokens[i : i + stride] for i in range(0, len(tokens) - stride + 1, stride)] or [tokens]
    chosen = [[*bos, *cut] for cut in cuts[:num_windows]]
    if len(chosen[0]) < 2:
        raise InvalidField("text", text.source, "too short: at least two tokens are needed")
    protocol = Protocol(
        text=text.source,
        text_sha256=text.sha256,
        joining=text.joining,
        window_tokens=len(chosen[0]),
        num_windows=len(chosen),
        num_available_windows=len(cuts),
        bos=f"on every window (id {bos[0]})" if bos else "none (the tokenizer adds none)",
        num_scored_tokens=sum(len(window) - 1 for window in chosen),
        num_unscored_tail_tokens=len(tokens) - sum(map(len, cuts)),
    )
    return chosen, protocol
