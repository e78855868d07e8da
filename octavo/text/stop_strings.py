"""Stop strings in a stream of text."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.errors import InvalidField


class StopChecker:
    """Watches one sequence's text for stop strings and says what may be sent.

    Text is held back only while it is the beginning of a stop string. The stop string that is complete first ends the
    text; of two complete at the same character, the longer. So the outcome depends on the text alone, not on how it
    is cut into pieces. With `include_stop` the stop string itself is sent too. Work per character is constant
    (Knuth, Morris, Pratt 1977). Raises `InvalidField` for an empty stop string.
    """

    def __init__(self, stop_strings: Sequence[str] = (), include_stop: bool = False) -> None:
        self._matchers = [_Matcher(text) for text in sorted(set(stop_strings), key=len, reverse=True)]
        self._include_stop = include_stop
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """New text -> (text safe to send, the stop string found or None). After a hit nothing more is sent."""
        if self.hit is not None:
            return "", self.hit
        if not self._matchers:
            return text, None
        pending = self._held + text
        for position, character in enumerate(text, start=len(self._held) + 1):
            self.hit = self._advance(character)
            if self.hit is not None:
                self._held = ""
                return pending[: position - (0 if self._include_stop else len(self.hit))], self.hit
        num_safe = len(pending) - max(matcher.num_matched for matcher in self._matchers)
        self._held = pending[num_safe:]
        return pending[:num_safe], None

    def flush(self) -> str:
        """What was held back, once no more text comes and no stop string was found."""
        text, self._held = self._held, ""
        return text

    def _advance(self, character: str) -> str | None:
        """Show a character to every matcher; the longest stop string it completes, if any."""
        complete = [matcher.text for matcher in self._matchers if matcher.advance(character)]
        return complete[0] if complete else None


class _Matcher:
    """How much of `text` the characters seen so far end in."""

    __slots__ = ("_borders", "num_matched", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text:
            raise InvalidField("stop", text, "stop strings must be texts of at least one character")
        self.text = text
        self.num_matched = 0
        self._borders = _borders(text)

    def advance(self, character: str) -> bool:
        """Whether `character` completes `text`; nothing may be shown after that."""
        while self.num_matched and self.text[self.num_matched] != character:
            self.num_matched = self._borders[self.num_matched - 1]
        if self.text[self.num_matched] == character:
            self.num_matched += 1
        return self.num_matched == len(self.text)


def _borders(text: str) -> list[int]:
    """For each prefix of `text`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        if text[index] == text[length]:
            length += 1
        borders[index] = length
    return borders
