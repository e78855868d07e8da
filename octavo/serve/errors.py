"""Every error as an OpenAI error object: `{"error": {"message", "type", "param", "code"}}` and the right status."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse, Response

from octavo.core.errors import CapacityError, InvalidField, OctavoError
from octavo.engine.async_engine import EngineStopped

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    503: "service_unavailable_error",
}


class APIError(Exception):
    """An answer that is an error: the HTTP status, the text for the user, the field at fault and a stable code."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        """The error object; it holds texts only, so it is valid JSON whatever the user sent."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "5"}}.get(self.status)
        return JSONResponse(self.body(), status_code=self.status, headers=headers)


def invalid(param: str, message: str, code: str | None = None) -> APIError:
    """400 naming the field."""
    return APIError(400, f"{param}: {message}", param=param, code=code)


def draining() -> APIError:
    """503: the server finishes what it has and takes nothing new."""
    return APIError(503, "the server is shutting down and takes no new requests", code="server_draining")


def model_not_found(name: str, served: str) -> APIError:
    return APIError(404, f"model: {name!r} is not served here; the model is {served!r}", "model", "model_not_found")


def from_exception(error: BaseException, renamed: dict[str, str] | None = None) -> APIError:
    """Any exception -> the error a client may see. `renamed` maps internal field names to those the user wrote."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, InvalidField):
        field = (renamed or {}).get(error.field, error.field)
        return APIError(400, str(InvalidField(field, error.value, error.expected)), param=field)
    if isinstance(error, CapacityError):
        return APIError(400, str(error), code="context_length_exceeded")
    if isinstance(error, EngineStopped):
        return draining()
    if isinstance(error, OctavoError):
        return APIError(500, str(error))
    return APIError(500, f"internal error: {type(error).__name__}; the server's log has the details")


def from_status(status: int, detail: object) -> APIError:
    """An error raised by the HTTP framework itself (no such path, method not allowed)."""
    return APIError(status, detail if isinstance(detail, str) and detail else HTTPStatus(status).phrase)
