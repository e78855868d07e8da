"""From token texts (as the vocabulary spells them) to exact bytes, and from bytes to text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from octavo.core.errors import CheckpointError

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def byte_alphabet() -> dict[str, int]:
    """The byte-level BPE alphabet (GPT-2): 256 printable characters, one for each byte value."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(hidden)})
    return alphabet


_BYTE_OF_CHARACTER = byte_alphabet()


@dataclass(slots=True)
class TokenDecoder:
    """A tokenizer's decoder as a rule for one token's bytes and one for the start of a text.

    `byte_level`: characters stand for bytes. Otherwise `replacements` are made in the token's text and, with
    `byte_fallback`, `<0xNN>` is that byte. `strip_character` is taken off the start of a whole text at most
    `strip_count` times; `first_token_drops` is removed wherever it stands in the first token (Metaspace).
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: list[tuple[str, str]] = field(default_factory=list)
    strip_character: str = ""
    strip_count: int = 0
    first_token_drops: str = ""

    @classmethod
    def from_json(cls, decoder: dict[str, Any] | None) -> TokenDecoder:
        """Read the `decoder` entry of a tokenizer.json. Raises `CheckpointError` for a kind not made of bytes."""
        rule = cls()
        fused = False
        for step in _flatten(decoder):
            kind = step.get("type")
            if kind == "ByteLevel":
                rule.byte_level = True
            elif kind == "ByteFallback":
                rule.byte_fallback = True
            elif kind == "Fuse":
                fused = True
            elif kind == "Replace" and "String" in step["pattern"] and not fused:
                rule.replacements.append((step["pattern"]["String"], step["content"]))
            elif kind == "Strip" and fused and step["stop"] == 0:
                rule.strip_character, rule.strip_count = step["content"], step["start"]
            elif kind == "Metaspace" and not fused:
                rule.replacements.append((step["replacement"], " "))
                if step.get("prepend_scheme", "always") != "never":
                    rule.first_token_drops = step["replacement"]
            else:
                raise CheckpointError(
                    f"tokenizer.json: decoder {step} is not read; byte-level, byte-fallback and Metaspace decoders are"
                )
        return rule

    def token_bytes(self, token: str, first: bool = False) -> bytes:
        """The exact bytes `token` adds to a text; `first` if no token stands before it."""
        if self.byte_level:
            try:
                return bytes([_BYTE_OF_CHARACTER[character] for character in token])
            except KeyError:
                return token.encode()
        if first and self.first_token_drops:
            token = token.replace(self.first_token_drops, "")
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass
        return token.encode()

    @property
    def start_matters(self) -> bool:
        """Whether a text's first token is decoded in its own way."""
        return bool(self.strip_count or self.first_token_drops)


class TextAssembler:
    """Bytes in, text out: whole characters only, U+FFFD for each maximal ill-formed sequence (Unicode 3.9, D93b).

    Constant work per call and at most three bytes held back, whatever the bytes are. `is_clean`: nothing is held back
    and nothing more is taken off the start, so whole characters would come out as they are.
    """

    def __init__(self, decoder: TokenDecoder, at_start: bool = True) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_character = decoder.strip_character
        self._strips_left = decoder.strip_count if at_start else 0
        self.is_clean = not self._strips_left

    def push(self, data: bytes, final: bool = False) -> str:
        text = self._utf8.decode(data, final)
        while self._strips_left and text:
            if text[0] != self._strip_character:
                self._strips_left = 0
                break
            text = text[1:]
            self._strips_left -= 1
        self.is_clean = not (self._strips_left or self._utf8.getstate()[0])
        return text

    def push_all(self, pieces: Iterable[bytes]) -> str:
        return self.push(b"".join(pieces), final=True)


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        raise CheckpointError("tokenizer.json: has no decoder, so tokens cannot be turned into text")
    if decoder.get("type") == "Sequence":
        return [inner for step in decoder["decoders"] for inner in _flatten(step)]
    return [decoder]
