"""`/openapi.json`: FastAPI's description of the routes, with the shapes of bodies and answers from their own types.

The routes read raw bodies (so that every refusal is an OpenAI error object), hence FastAPI cannot see the shapes.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from octavo import __version__
from octavo.serve.protocol import ChatCompletionRequest, CompletionRequest
from octavo.serve.responses import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    ErrorBody,
    Health,
    ModelCard,
    ModelList,
    Version,
)

_REF = "#/components/schemas/{model}"
_BODIES = (ChatCompletionRequest, CompletionRequest)
_ANSWERS = (ChatCompletion, ChatCompletionChunk, Completion, ErrorBody, Health, ModelCard, ModelList, Version)


def operation(
    answer: type, body: type | None = None, chunk: type | None = None, errors: tuple[int, ...] = ()
) -> dict[str, Any]:
    """The `openapi_extra` of a route: what it takes, what it answers, with which statuses it refuses."""
    content = {"application/json": _reference(answer)}
    if chunk is not None:
        content["text/event-stream"] = _reference(chunk)
    described: dict[str, Any] = {"responses": {"200": {"description": "The answer.", "content": content}}}
    for status in errors:
        refusal = {"application/json": _reference(ErrorBody)}
        described["responses"][str(status)] = {"description": "Refused.", "content": refusal}
    if body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": _reference(body)}}
    return described


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole document."""
    document = get_openapi(title="Octavo", version=__version__, routes=app.routes)
    adapters: list[Any] = [(shape, "validation", TypeAdapter(shape)) for shape in _BODIES]
    adapters += [(shape, "serialization", TypeAdapter(shape)) for shape in _ANSWERS]
    _, schemas = TypeAdapter.json_schemas(adapters, ref_template=_REF)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(schemas["$defs"])
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _reference(shape: type) -> dict[str, Any]:
    return {"schema": {"$ref": _REF.format(model=shape.__name__)}}
