"""Bytes of a request -> a checked model, or an error that names what is wrong with them."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request as HTTPRequest

from octavo.serve.errors import APIError, invalid
from octavo.serve.fields import drop_inert

#: A prompt of 100,000 tokens is about half a megabyte; anything near this bound is a mistake.
MAX_BODY_BYTES = 32 * 2**20

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: HTTPRequest, shape: type[Body]) -> Body:
    """Read and check the body of `request`. Raises `APIError` 400 or 413."""
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > MAX_BODY_BYTES:
            raise APIError(413, f"the body is above {MAX_BODY_BYTES} bytes", code="body_too_large")
        chunks.append(chunk)
    return parse_body(b"".join(chunks), shape)


def parse_body(raw: bytes, shape: type[Body]) -> Body:
    """A JSON object -> `shape`. Nulls and inert values of known fields are dropped; unknown fields are refused.

    Bare NaN and Infinity, which are not JSON, are let through here so that the refusal can name their field.
    """
    fields = _json_object(raw)
    for name, value in fields.items():
        _refuse_lone_surrogates(name, value)
    try:
        return shape.model_validate(drop_inert(fields, shape))
    except ValidationError as error:
        raise _first_error(error) from None


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw, object_pairs_hook=_unique)
    except RecursionError:
        raise APIError(400, "the body is nested too deeply", code="invalid_json") from None
    except ValueError as error:
        raise APIError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise APIError(400, f"the body must be a JSON object, not {_json_type(value)}", code="invalid_json")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return fields


def _refuse_lone_surrogates(name: str, value: Any) -> None:
    """Half of a UTF-16 pair is legal in JSON's escapes, but it is no text: no tokenizer can read it."""
    try:
        json.dumps({name: value}, ensure_ascii=False).encode()
    except RecursionError:
        raise APIError(400, "the body is nested too deeply", code="invalid_json") from None
    except UnicodeEncodeError:
        shown = name.encode("ascii", "backslashreplace").decode()
        raise invalid(shown, "holds half of a surrogate pair, which is not Unicode text") from None


def _first_error(error: ValidationError) -> APIError:
    """The first complaint that is not an alternative of a union which merely did not match."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    deepest = max(len(detail["loc"]) for detail in details)
    detail = details[0] if len(details) == 1 else next(one for one in details if len(one["loc"]) == deepest)
    param = _dotted(detail["loc"])
    return APIError(400, f"{param}: {detail['msg']}", param=param)


def _dotted(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "content")` -> `messages[0].content`; the labels pydantic adds for unions are left out."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and part not in _UNION_LABELS:
            text += f".{part}" if text else part
        elif not text:
            text = part
    return text


_UNION_LABELS = {"str", "int", "float", "bool", "TextPart", "none"}


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
