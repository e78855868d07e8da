"""Who may use the server: anyone, or whoever sends the key."""

from __future__ import annotations

import hmac

from starlette.requests import Request as HTTPRequest

from octavo.serve.errors import APIError


def check_key(request: HTTPRequest, api_key: str | None) -> None:
    """`Authorization: Bearer KEY`, compared in constant time. Raises `APIError` 401."""
    if api_key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(given.strip().encode("latin-1"), api_key.encode())  # the header's own bytes
    if scheme.lower() != "bearer" or not right:
        raise APIError(401, "send the server's key as `Authorization: Bearer KEY`", code="invalid_api_key")
