"""Messages in OpenAI's shape, made ready for a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.core.errors import InvalidField

ROLES = ("system", "developer", "user", "assistant", "tool")
_COMMON_KEYS = frozenset({"role", "content", "name"})
_ROLE_KEYS = {
    "assistant": _COMMON_KEYS | {"tool_calls", "reasoning_content"},
    "tool": _COMMON_KEYS | {"tool_call_id"},
}
#: Keys that OpenAI's own answers carry; empty ones say nothing, so a client may send an answer back as it came.
_EMPTY_WHEN_ECHOED = frozenset(
    {"refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning_content", "reasoning", "name"}
)


def prepare_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of `messages` as templates expect them.

    Text parts are joined, `developer` becomes `system`, an assistant's null content becomes `""`, tool call
    arguments become objects (`""` is `{}`), null keys are left out. Raises `InvalidField` naming what cannot be
    honoured: an unknown role or key, a part that is not text, arguments that are not a JSON object.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidField("messages", messages, "must be a list of messages")
    if not messages:
        raise InvalidField("messages", [], "must hold at least one message")
    return [_prepare_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def prepare_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools as plain dicts; None for none. Raises `InvalidField` for one that is not a named function."""
    if not tools:
        return None
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type") != "function":
            raise InvalidField(f"tools[{index}]", tool, 'must be {"type": "function", "function": {...}}')
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise InvalidField(f"tools[{index}].function.name", function.get("name"), "must be a function's name")
    return [dict(tool) for tool in tools]


def _prepare_message(message: Mapping[str, Any], field: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidField(field, message, "must be an object with role and content")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidField(f"{field}.role", role, f"must be one of {', '.join(ROLES)}")
    allowed = _ROLE_KEYS.get(role, _COMMON_KEYS)
    prepared: dict[str, Any] = {"role": "system" if role == "developer" else role}
    for key, value in message.items():
        if key in ("role", "content") or (key in _EMPTY_WHEN_ECHOED and value in (None, [])):
            continue
        if key not in allowed:
            raise InvalidField(f"{field}.{key}", value, f"a {role} message has {', '.join(sorted(allowed))}")
        if key == "tool_calls":
            prepared[key] = _prepare_tool_calls(value, f"{field}.tool_calls")
        elif isinstance(value, str):
            prepared[key] = value
        else:
            raise InvalidField(f"{field}.{key}", value, "must be a string")
    prepared["content"] = _prepare_content(message.get("content"), role, f"{field}.content")
    return prepared


def _prepare_content(content: Any, role: str, field: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidField(field, content, "must be a string or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise InvalidField(f"{field}[{index}]", part, 'this model reads text: {"type": "text", "text": "..."}')
        if not isinstance(part.get("text"), str):
            raise InvalidField(f"{field}[{index}].text", part.get("text"), "must be a string")
        unknown = sorted(set(part) - {"type", "text"})
        if unknown:
            raise InvalidField(f"{field}[{index}].{unknown[0]}", part[unknown[0]], "a text part has type and text")
        texts.append(part["text"])
    return "".join(texts)


def _prepare_tool_calls(calls: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise InvalidField(field, calls, "must be a list of tool calls")
    return [_prepare_tool_call(call, f"{field}[{index}]") for index, call in enumerate(calls)]


def _prepare_tool_call(call: Any, field: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidField(field, call, 'must be {"id": ..., "type": "function", "function": {"name", "arguments"}}')
    if call.get("type", "function") != "function":
        raise InvalidField(f"{field}.type", call["type"], "must be function")
    _refuse_unknown(call, {"id", "type", "function"}, field)
    _refuse_unknown(function, {"name", "arguments"}, f"{field}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidField(f"{field}.function.name", name, "must be the called function's name")
    arguments = _prepare_arguments(function.get("arguments"), f"{field}.function.arguments")
    identity = {} if call.get("id") is None else {"id": str(call["id"])}
    return {**identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _prepare_arguments(arguments: Any, field: str) -> dict[str, Any]:
    parsed = arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError as error:
            raise InvalidField(field, arguments, f"must be a JSON object as text ({error})") from None
    if not isinstance(parsed, Mapping):
        raise InvalidField(field, arguments, "must be a JSON object")
    return dict(parsed)


def _refuse_unknown(entry: Mapping[str, Any], known: set[str], field: str) -> None:
    for key in sorted(set(entry) - known):
        raise InvalidField(f"{field}.{key}", entry[key], f"known keys are {', '.join(sorted(known))}")
