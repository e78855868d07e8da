"""Errors that name the field, the value and what would work."""

from __future__ import annotations

from typing import Any


class OctavoError(Exception):
    """Base of every error Octavo raises on purpose; its text is written for the user."""


class InvalidField(OctavoError, ValueError):
    """A value the user gave cannot be honoured.

    `field` is the dotted name as the user wrote it, `value` what was given, `expected` what would work.
    """

    def __init__(self, field: str, value: Any, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"{field}: got {_short(value)}; {expected}")


class CapacityError(OctavoError):
    """A request or a plan can never fit; the text carries both figures."""


class CheckpointError(OctavoError):
    """A checkpoint is damaged, incomplete or in a form that is not read; names the file or tensor."""


class StorageFull(OctavoError):
    """There is no room for a file; names it. What stood under its name before is still there."""


class UnsupportedModel(OctavoError):
    """A config asks for a computation that is not understood; names the config field."""


class DownloadError(OctavoError):
    """A model could not be fetched; says what was tried and what to do without a network."""


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
