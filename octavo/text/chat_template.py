"""Chat templates: a conversation to one text, with jinja2 in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

from octavo.core.errors import CheckpointError, InvalidField
from octavo.text.messages import prepare_messages, prepare_tools

#: Names that `render` sets itself or that are not a request's to set.
_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

#: What a template can raise: its own refusals, and Python's where it does not fit the messages.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
    *(RecursionError, MemoryError),
)


class ChatTemplate:
    """A model's chat template.

    `sources` maps names to template texts: `default`, and perhaps `tool_use` for conversations with tools.
    `special_tokens` (`bos_token`, ...) are variables of the template. Raises `CheckpointError` if a template cannot
    be parsed.
    """

    def __init__(self, sources: str | Mapping[str, str], special_tokens: Mapping[str, str] | None = None) -> None:
        self.sources = {"default": sources} if isinstance(sources, str) else dict(sources)
        self.special_tokens = dict(special_tokens or {})
        self._templates = {name: _compile(source) for name, source in self.sources.items()}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The conversation's text. `messages` are in OpenAI's shape (see `prepare_messages`); `variables` reach the
        template as they are (`enable_thinking`, ...). Raises `InvalidField` with the template's own words."""
        return self.render_prepared(
            prepare_messages(messages), prepare_tools(tools), add_generation_prompt, **variables
        )

    def render_prepared(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """`render` for messages and tools that are prepared already."""
        for name in _OWN_VARIABLES & variables.keys():
            raise InvalidField(f"chat_template_kwargs.{name}", variables[name], "is set by the request itself")
        chosen = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        try:
            return self._templates[chosen].render(
                **{**self.special_tokens, **variables},
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except _RENDER_ERRORS as error:
            given = [message["role"] for message in messages]
            raise InvalidField("messages", given, f"the model's chat template refuses them: {error}") from None


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's words for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """`namespace(...)` in a template, closed to names with a leading underscore (Python's own attributes)."""

    def __init__(*arguments: Any, **entries: Any) -> None:  # an entry may be called self
        self, *given = arguments
        for name in dict(*given, **entries):
            _refuse_underscore(name)
        jinja2.utils.Namespace.__init__(self, *given, **entries)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


class _TemplateDict:
    """`dict(...)` in a template, without the type's other attributes."""

    def __call__(self, *arguments: Any, **entries: Any) -> dict[Any, Any]:
        return dict(*arguments, **entries)


@lru_cache(maxsize=64)
def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _TemplateDict()
    environment.globals["namespace"] = _Namespace
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise CheckpointError(f"chat template: cannot be read ({error})") from None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it; jinja2's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
