"""Messages made ready for templates, and refused where they cannot be honoured (bug A9)."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.errors import InvalidField
from octavo.text.messages import prepare_messages, prepare_tools


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}


def test_a9_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}]
    assert prepare_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "Say hi"}]


def test_a9_null_content_and_empty_arguments_are_accepted() -> None:
    history = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [call("")]},
        {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
    ]
    prepared = prepare_messages(history)
    assert prepared[1] == {"role": "assistant", "content": "", "tool_calls": [call({})]}
    assert prepared[2] == {"role": "tool", "content": "nothing", "tool_call_id": "c1"}


def test_arguments_become_objects() -> None:
    for given in ('{"a": [1]}', {"a": [1]}):
        message = {"role": "assistant", "content": "", "tool_calls": [call(given)]}
        assert prepare_messages([message])[0]["tool_calls"][0]["function"]["arguments"] == {"a": [1]}


def test_an_answer_may_be_sent_back_as_it_came() -> None:
    echoed = {"role": "assistant", "content": "hi", "refusal": None, "annotations": [], "audio": None,
              "function_call": None, "tool_calls": None}  # fmt: skip
    assert prepare_messages([echoed]) == [{"role": "assistant", "content": "hi"}]


def test_developer_is_system_and_the_input_is_left_alone() -> None:
    given = [{"role": "developer", "content": "be short", "name": "boss"}]
    assert prepare_messages(given) == [{"role": "system", "content": "be short", "name": "boss"}]
    assert given[0]["role"] == "developer"


REFUSED = [
    ([], "messages"),
    ("hi", "messages"),
    (["hi"], "messages[0]"),
    ([{"content": "x"}], "messages[0].role"),
    ([{"role": "wizard", "content": "x"}], "messages[0].role"),
    ([{"role": ["user"], "content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": 7}], "messages[0].content"),
    ([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]}],
     "messages[0].content[1]"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": "a"}, {"role": "user", "content": "b", "mood": "x"}], "messages[1].mood"),
    ([{"role": "user", "content": "a", "tool_calls": [call("")]}], "messages[0].tool_calls"),
    ([{"role": "assistant", "content": "a", "refusal": "no"}], "messages[0].refusal"),
    ([{"role": "assistant", "tool_calls": [call("{oops")]}], "messages[0].tool_calls[0].function.arguments"),
    ([{"role": "assistant", "tool_calls": [call("[1]")]}], "messages[0].tool_calls[0].function.arguments"),
    ([{"role": "assistant", "tool_calls": [{"type": "custom", "function": {}}]}], "messages[0].tool_calls[0].type"),
    ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name"),
    ([{"role": "assistant", "tool_calls": 3}], "messages[0].tool_calls"),
    ([{"role": "tool", "content": "x", "tool_call_id": 3}], "messages[0].tool_call_id"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "field"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(messages: Any, field: str) -> None:
    with pytest.raises(InvalidField) as refusal:
        prepare_messages(messages)
    assert refusal.value.field == field


def test_tools_must_be_named_functions() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    assert prepare_tools([tool]) == [tool]
    assert prepare_tools([]) is None is prepare_tools(None)
    for bad, field in (
        ([{"type": "web_search"}], "tools[0]"),
        ([tool, {"type": "function", "function": {}}], "tools[1].function.name"),
    ):
        with pytest.raises(InvalidField) as refusal:
            prepare_tools(bad)
        assert refusal.value.field == field
