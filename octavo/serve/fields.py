"""Fields of the APIs people come from that are not honoured here: accepted only where they change nothing.

A field is in exactly one of three places: in the request model (honoured), in `INERT` (known, accepted with a value
that asks for what happens anyway, refused with any other), or nowhere (refused as unknown).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from octavo.serve.errors import invalid

Inert = Callable[[Any], bool]


def _one_of(*values: Any) -> Inert:
    """JSON equality: `False` and `0` are different values."""
    return lambda given: any(type(given) is type(value) and given == value for value in values)


def _text(given: Any) -> bool:
    return isinstance(given, str)


def _never(_given: Any) -> bool:
    return False


#: Both endpoints: OpenAI's own fields, then vLLM's.
_SHARED: dict[str, Inert] = {
    "user": _text,  # names the end user in the caller's own books
    "safety_identifier": _text,
    "prompt_cache_key": _text,  # a routing hint; the prefix cache here needs none
    "metadata": lambda given: isinstance(given, dict),  # only kept together with `store`, which is refused
    "store": _one_of(False),
    "service_tier": _one_of("auto", "default"),
    "use_beam_search": _one_of(False),
    "length_penalty": _one_of(1, 1.0),
    "spaces_between_special_tokens": _one_of(True),
    "truncate_prompt_tokens": _never,
    "allowed_token_ids": _one_of([]),
    "bad_words": _one_of([]),
    "guided_json": _never,
    "guided_regex": _never,
    "guided_choice": _never,
    "guided_grammar": _never,
    "structured_outputs": _never,
    "response_format": _one_of({"type": "text"}),
    "logits_processors": _one_of([]),
    "prompt_logprobs": _never,
    "return_token_ids": _one_of(False),
    "return_tokens_as_token_ids": _one_of(False),
    "cache_salt": _never,
}

_CHAT: dict[str, Inert] = {
    "tools": _one_of([]),
    "tool_choice": _one_of("none", "auto"),
    "parallel_tool_calls": _one_of(True, False),  # says nothing while there are no tools
    "functions": _one_of([]),
    "function_call": _one_of("none", "auto"),
    "modalities": _one_of(["text"]),
    "audio": _never,
    "prediction": _never,
    "web_search_options": _never,
    "reasoning_effort": _one_of("none"),
    "verbosity": _one_of("medium"),
    "prompt_cache_retention": _never,
    "echo": _one_of(False),
    "documents": _one_of([]),
    "chat_template": _never,
    "continue_final_message": _one_of(False),
    "add_special_tokens": _one_of(False),
}

_COMPLETION: dict[str, Inert] = {
    "best_of": _one_of(1),
    "suffix": _one_of(""),
}

INERT = {"ChatCompletionRequest": {**_SHARED, **_CHAT}, "CompletionRequest": {**_SHARED, **_COMPLETION}}

#: What to do instead, where a plain "not supported" would leave the user searching.
_ADVICE = {
    "best_of": "use n and choose among the answers",
    "tools": "tool calls are not supported yet",
    "response_format": 'only {"type": "text"} is supported; constrained output is not supported yet',
    "store": "nothing is stored here; leave it out or send false",
}


def drop_inert(fields: dict[str, Any], shape: type[BaseModel]) -> dict[str, Any]:
    """The honoured fields of a body. Raises `APIError` 400 naming the first field that would be ignored.

    null means "left out" for every known field; for an unknown name it is refused like any other value.
    """
    honoured = shape.model_fields
    inert = INERT[shape.__name__]
    kept = {}
    for name, value in fields.items():
        if name in honoured:
            if value is not None:
                kept[name] = value
        elif name not in inert:
            raise invalid(name, "is not a field of this endpoint; nothing is ignored silently", "unknown_field")
        elif value is not None and not inert[name](value):
            advice = _ADVICE.get(name, "this value is not supported; leave the field out")
            raise invalid(name, advice, "unsupported_field")
    return kept
