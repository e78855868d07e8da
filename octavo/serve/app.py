"""The routes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from octavo import __version__
from octavo.core.errors import OctavoError
from octavo.engine.async_engine import AsyncEngine
from octavo.serve import metrics
from octavo.serve.auth import check_key
from octavo.serve.body import read_body
from octavo.serve.chat import ChatCall
from octavo.serve.completions import CompletionCall
from octavo.serve.context import Admission, ServerContext
from octavo.serve.errors import APIError, from_exception, from_status, model_not_found
from octavo.serve.model_info import ModelInfo
from octavo.serve.openapi import describe, operation
from octavo.serve.protocol import ChatCompletionRequest, CompletionRequest
from octavo.serve.responses import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Health,
    ModelCard,
    ModelList,
    Version,
)
from octavo.serve.streaming import ClientLeft, EventStream, encode, unless_client_leaves

logger = logging.getLogger("octavo.serve")

#: nginx's number for "the client closed the request"; nobody is there to read it, the access log is.
CLIENT_CLOSED_REQUEST = 499


def create_app(engine: AsyncEngine, model_info: ModelInfo, api_key: str | None = None) -> FastAPI:
    """The server's app over a running engine. `app.state.context` holds what the routes work with.

    With `api_key` every path under /v1 needs it; /health, /metrics, /version and /openapi.json are open, as
    probes and Prometheus expect.
    """
    app = FastAPI(title="Octavo", version=__version__, docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.context = ServerContext(engine, model_info, metrics.Metrics(engine), api_key)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    _add_error_answers(app)
    _add_generation_routes(app, app.state.context)
    _add_model_routes(app, app.state.context)
    _add_operations_routes(app, app.state.context)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.context.engine.start()
    yield


def _add_generation_routes(app: FastAPI, context: ServerContext) -> None:
    refusals = (400, 401, 404, 413, 500, 503)

    @app.post(
        "/v1/chat/completions",
        openapi_extra=operation(ChatCompletion, ChatCompletionRequest, ChatCompletionChunk, refusals),
    )
    async def chat_completions(request: HTTPRequest) -> Response:
        """Continue a conversation."""
        check_key(request, context.api_key)
        body = await read_body(request, ChatCompletionRequest)
        return await _answer(request, context, body, ChatCall)

    @app.post("/v1/completions", openapi_extra=operation(Completion, CompletionRequest, Completion, refusals))
    async def completions(request: HTTPRequest) -> Response:
        """Continue one prompt or several."""
        check_key(request, context.api_key)
        body = await read_body(request, CompletionRequest)
        return await _answer(request, context, body, CompletionCall)


async def _answer(request: HTTPRequest, context: ServerContext, body: Any, call_class: type[Any]) -> Response:
    """Admit first: what the engine refuses is a 4xx before any byte of a stream."""
    context.check_model(body.model)
    try:
        call: ChatCall | CompletionCall = await call_class.make(context, body)
        admission = await Admission.of(context, call.requests)
    except OctavoError as error:
        raise from_exception(error, body.renamed) from error
    if body.stream:
        return EventStream(call.events(admission.deltas()), on_end=admission.close)
    try:
        return _json(await unless_client_leaves(request.receive, call.whole(admission.deltas())))
    except ClientLeft:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        admission.close()


def _add_model_routes(app: FastAPI, context: ServerContext) -> None:
    @app.get("/v1/models", openapi_extra=operation(ModelList, errors=(401,)))
    async def models(request: HTTPRequest) -> Response:
        """The model that is served, with its measured quality."""
        check_key(request, context.api_key)
        listing: ModelList = {"object": "list", "data": [context.model_info.card()]}
        return _json(listing)

    @app.get("/v1/models/{model:path}", openapi_extra=operation(ModelCard, errors=(401, 404)))
    async def model_card(request: HTTPRequest, model: str) -> Response:
        """One model."""
        check_key(request, context.api_key)
        if model != context.model_info.name:
            raise model_not_found(model, context.model_info.name)
        return _json(context.model_info.card())


def _add_operations_routes(app: FastAPI, context: ServerContext) -> None:
    @app.get("/health", openapi_extra=operation(Health))
    async def health() -> Response:
        """200 while requests are taken, 503 while draining."""
        state: Health = {"status": "draining" if context.draining else "ok"}
        return _json(state, 503 if context.draining else 200)

    @app.get("/metrics", response_class=Response)
    async def prometheus_metrics() -> Response:
        """Prometheus text."""
        return Response(context.metrics.exposition(), media_type=metrics.CONTENT_TYPE)

    @app.get("/version", openapi_extra=operation(Version))
    async def version() -> Response:
        """Octavo's version."""
        stated: Version = {"version": __version__}
        return _json(stated)


def _add_error_answers(app: FastAPI) -> None:
    @app.exception_handler(APIError)
    @app.exception_handler(OctavoError)
    async def known_error(_request: HTTPRequest, error: Exception) -> Response:
        return from_exception(error).response()

    @app.exception_handler(HTTPException)
    async def http_error(_request: HTTPRequest, error: HTTPException) -> Response:
        return from_status(error.status_code, error.detail).response()

    @app.exception_handler(Exception)
    async def any_error(_request: HTTPRequest, error: Exception) -> Response:
        answer = from_exception(error)
        if answer.status >= 500:
            logger.error("a request failed", exc_info=error)
        return answer.response()


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")
