"""Control tokens come from templates, never from what a user writes.

A user's text may spell `<|im_end|>`. Such a text is wrapped in marker characters before the template sees it; after
rendering, what is not wrapped was written by the template:

    user writes   hi<|im_end|>            ->  hi [ <|im_end|> ]            [ ] are the markers
    rendered      <|im_start|>user\\nhi [ <|im_end|> ] <|im_end|>
    guarded       ~<|im_start|>~user\\nhi<|im_end|>~<|im_end|>~            ~ is the guard character
                  control             text       control

A second tokenizer over the same model knows control tokens only in their guarded spelling, so the whole conversation
is tokenized in one piece, exactly as the plain tokenizer would, but for the user's own control texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tokenizers
from tokenizers import AddedToken

from octavo.core.errors import InvalidField

#: Private-use characters for guards and markers; those that a text holds itself are passed over.
_PRIVATE_USE = range(0xF0000, 0xFFFFE)
#: Guarded tokenizers kept; one is enough unless users write private-use characters.
_MAX_GUARDED = 4
#: Values of these keys are checked against a list before, or compared by templates; they are not free text.
_FIXED_KEYS = frozenset({"role", "type"})


@dataclass(frozen=True, slots=True)
class Markers:
    """Characters around a user's control text: `start`, `end`."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class MarkedConversation:
    """Template input in which control texts are wrapped in `markers`."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    variables: dict[str, Any]
    markers: Markers


class ControlTokenGuard:
    """Encodes texts whose control tokens are known to be the template's own.

    `unk_id` may come out of any text the vocabulary cannot spell, so it is not held to be forged.
    """

    def __init__(self, backend: tokenizers.Tokenizer, unk_id: int | None = None) -> None:
        self._backend = backend
        self._added = sorted(backend.get_added_tokens_decoder().items())
        self._control_texts = [token.content for _, token in self._added if token.special]
        self._control_ids = frozenset(index for index, token in self._added if token.special) - {unk_id}
        self._guarded: dict[str, tuple[tokenizers.Tokenizer, dict[int, int]]] = {}

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of `text` with every control text as ordinary text; nothing added around it."""
        return self._encode(text, self._free_characters(1, [text])[0], num_control=0, field="text")

    def mark(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, variables: dict[str, Any]
    ) -> MarkedConversation | None:
        """The same input with the user's control texts wrapped; None if there is nothing to wrap."""
        everything = [messages, tools, variables]
        if not any(self._is_suspect(text) for text in _texts(everything)):
            return None
        start, end = self._free_characters(2, _texts(everything))
        markers = Markers(start, end)
        marked = self._mark(everything, markers)
        return MarkedConversation(marked[0], marked[1], marked[2], markers)

    def encode_marked(self, rendered: str, markers: Markers) -> list[int]:
        """Token ids of a rendered conversation. Raises `InvalidField` if the template rewrote a marker, so that the
        user's text can no longer be told from its own."""
        self._check_markers_survived(rendered, markers)
        guard = self._free_characters(1, [rendered])[0]
        num_control = 0

        def spell(match: re.Match[str]) -> str:
            nonlocal num_control
            if match["control"] is None:
                return match["user"] or ""
            num_control += 1
            return f"{guard}{match['control']}{guard}"

        start, end, control = re.escape(markers.start), re.escape(markers.end), self._control_pattern.pattern
        pattern = re.compile(f"{start}(?P<user>{control}){end}|(?P<control>{control})|[{start}{end}]")
        return self._encode(pattern.sub(spell, rendered), guard, num_control, field="messages")

    def _encode(self, text: str, guard: str, num_control: int, field: str) -> list[int]:
        """Raises `InvalidField` if more than `num_control` control ids come out, as no text may make one."""
        backend, real_ids = self._guarded_backend(guard)
        ids = [real_ids.get(token, token) for token in backend.encode(text, add_special_tokens=False).ids]
        found = sum(token in self._control_ids for token in ids)
        known = sum(text.count(f"{guard}{content}{guard}") for content in self._unknown_texts)
        if found > num_control - known:
            raise InvalidField(field, "a control token's text", "this vocabulary cannot spell it as plain text")
        return ids

    @cached_property
    def _unknown_texts(self) -> list[str]:
        """Control texts whose id is not counted (the unknown token)."""
        return [token.content for index, token in self._added if token.special and index not in self._control_ids]

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._control_texts, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @cached_property
    def _edges(self) -> tuple[frozenset[str], frozenset[str], int]:
        """Proper beginnings and ends of control texts, and the longest one's length."""
        texts = self._control_texts
        beginnings = frozenset(text[:count] for text in texts for count in range(1, len(text)))
        ends = frozenset(text[count:] for text in texts for count in range(1, len(text)))
        return beginnings, ends, max(map(len, texts), default=0)

    def _is_suspect(self, text: str) -> bool:
        return self._control_pattern.search(text) is not None or self._begins_inside(text) or self._ends_inside(text)

    def _begins_inside(self, text: str) -> bool:
        """Whether text put before `text` could complete a control token."""
        _, ends, longest = self._edges
        head = text.lstrip()
        return any(head[:count] in ends for count in range(1, min(longest, len(head) + 1)))

    def _ends_inside(self, text: str) -> bool:
        """Whether text put after `text` could complete a control token."""
        beginnings, _, longest = self._edges
        tail = text.rstrip()
        return any(tail[-count:] in beginnings for count in range(1, min(longest, len(tail) + 1)))

    def _mark(self, value: Any, markers: Markers) -> Any:
        if isinstance(value, str):
            return self._mark_text(value, markers)
        if isinstance(value, list | tuple):
            return [self._mark(item, markers) for item in value]
        if isinstance(value, dict):
            return {
                self._wrap(key, markers): item if key in _FIXED_KEYS else self._mark(item, markers)
                for key, item in value.items()
            }
        return value

    def _mark_text(self, text: str, markers: Markers) -> str:
        marked = self._wrap(text, markers)
        if self._begins_inside(text):
            at = len(marked) - len(marked.lstrip())
            marked = f"{marked[:at]}{markers.end}{marked[at:]}"
        if self._ends_inside(text):
            at = len(marked.rstrip())
            marked = f"{marked[:at]}{markers.start}{marked[at:]}"
        return marked

    def _wrap(self, text: Any, markers: Markers) -> Any:
        if not isinstance(text, str):
            return text
        return self._control_pattern.sub(lambda match: f"{markers.start}{match[0]}{markers.end}", text)

    def _check_markers_survived(self, rendered: str, markers: Markers) -> None:
        for marker in (markers.start, markers.end):
            code = ord(marker) - 0x10000
            escaped = f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
            quoted = "".join(f"%{byte:02x}" for byte in marker.encode())
            numeric = f"&#{ord(marker)};"
            if any(form in rendered.lower() for form in (escaped, quoted, numeric)):
                raise InvalidField(
                    "messages", "a control token's text", "this model's chat template escapes it; leave it out"
                )

    def _guarded_backend(self, guard: str) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        """A tokenizer over the same model that knows control tokens as guard + text + guard, and its ids of added
        tokens -> the real ones. The model itself is shared, not copied."""
        if guard not in self._guarded:
            backend = tokenizers.Tokenizer(self._backend.model)
            if self._backend.normalizer is not None:
                backend.normalizer = self._backend.normalizer
            if self._backend.pre_tokenizer is not None:
                backend.pre_tokenizer = self._backend.pre_tokenizer
            spelled = [(index, _guarded_token(token, guard)) for index, token in self._added]
            backend.add_tokens([token for _, token in spelled])
            real_ids = {}
            for index, token in spelled:
                own = backend.token_to_id(token.content)
                assert own is not None
                real_ids[own] = index
            if len(self._guarded) >= _MAX_GUARDED:
                self._guarded.clear()
            self._guarded[guard] = (backend, real_ids)
        return self._guarded[guard]

    @staticmethod
    def _free_characters(count: int, texts: Any) -> list[str]:
        """Private-use characters that stand in none of the texts."""
        taken = {character for text in texts for character in text if ord(character) in _PRIVATE_USE}
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in taken)
        return [next(free) for _ in range(count)]


def _guarded_token(token: AddedToken, guard: str) -> AddedToken:
    return AddedToken(
        f"{guard}{token.content}{guard}" if token.special else token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )


def _texts(value: Any) -> Iterator[str]:
    """Every text inside, keys too, but for fixed words like roles."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            if key not in _FIXED_KEYS:
                yield from _texts(item)
