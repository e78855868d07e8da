"""The one error of this room."""

from __future__ import annotations

from octavo.core.errors import OctavoError


class KVCorruption(OctavoError):
    """The accounting of KV blocks broke its own rules: a bug in Octavo, never the user's fault."""
