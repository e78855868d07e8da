"""Bodies: everything honoured is read, everything else is refused by name, and refusals are valid JSON."""

import json

import pytest

from octavo.serve.body import parse_body
from octavo.serve.errors import APIError
from octavo.serve.fields import INERT
from octavo.serve.protocol import ChatCompletionRequest, CompletionRequest

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}


def chat(**fields):
    return parse_body(json.dumps({**CHAT, **fields}).encode(), ChatCompletionRequest)


def completion(**fields):
    return parse_body(json.dumps({**COMPLETION, **fields}).encode(), CompletionRequest)


def refusal(make) -> APIError:
    with pytest.raises(APIError) as caught:
        make()
    error = caught.value
    json.loads(json.dumps(error.body(), allow_nan=False))  # strict JSON
    return error


def test_every_sampling_field_arrives():
    body = completion(
        n=3, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.5, logit_bias={"5": -3}, seed=11, stop=["a", "b", "c", "d", "e"],
        max_tokens=9, min_tokens=2,
        ignore_eos=True, stop_token_ids=[4], skip_special_tokens=False, include_stop_str_in_output=True, logprobs=2,
        priority=3,
    )  # fmt: skip
    params = body.sampling_params()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (3, 0.5, 0.9, 7, 0.1)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, -1, 1.5)
    assert (params.logit_bias, params.seed, params.stop_strings) == ({5: -3.0}, 11, ("a", "b", "c", "d", "e"))
    assert (params.max_tokens, params.min_tokens, params.logprobs, params.prompt_logprobs) == (9, 2, 2, None)
    assert params.ignore_eos
    assert params.include_stop_str_in_output
    assert not params.skip_special_tokens
    assert (params.stop_token_ids, body.priority) == ([4], 3)


def test_defaults_are_the_apis_own():
    params = chat().sampling_params()
    assert (params.temperature, params.top_p, params.n, params.max_tokens, params.logprobs) == (1.0, 1.0, 1, None, None)
    assert completion().sampling_params().max_tokens == 16
    assert chat(max_completion_tokens=5).sampling_params().max_tokens == 5


def test_echo_asks_for_the_prompts_logprobs():
    scored = completion(echo=True, max_tokens=0, logprobs=1).sampling_params()
    assert (scored.max_tokens, scored.prompt_logprobs) == (0, 1)
    assert completion(echo=True).sampling_params().prompt_logprobs is None


@pytest.mark.parametrize("raw", [b"[]", b"null", b"7", b'"x"', b"", b"{oops", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_a_body_that_is_no_object_is_refused(raw):
    error = refusal(lambda: parse_body(raw, ChatCompletionRequest))
    assert (error.status, error.code) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("field", "raw"),
    [
        ("temperature", "NaN"), ("temperature", "Infinity"), ("temperature", "-1"), ("temperature", '"1"'),
        ("top_p", "0"), ("top_p", "1.5"), ("top_k", "1.5"), ("n", "0"), ("n", "NaN"), ("max_tokens", "-1"),
        ("presence_penalty", "1e308"), ("frequency_penalty", "-1e999"), ("repetition_penalty", "1e308"),
        ("logit_bias", '{"abc": 1}'), ("logit_bias.5", '{"5": 1e39}'), ("logit_bias.5", '{"5": NaN}'),
        ("stop", '[""]'), ("stop", "[3]"), ("seed", "1.5"), ("seed", "99999999999999999999"), ("stream", '"yes"'),
        ("logprobs", "true"), ("logprobs", "21"), ("model", "3"), ("prompt", "null"), ("prompt", "{}"),
        ("stop_token_ids[0]", '["a"]'), ("stream_options", '{"include_usage": true}'),
        ("stream_options.other", '{"other": true}'), ("min_tokens", "17"), ("user", "3"), ("store", "true"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_name(field, raw):
    """A6: the error names the field and is itself valid JSON, even if the value was NaN."""
    name = field.split(".")[0].split("[")[0]
    fields = {key: json.dumps(value) for key, value in COMPLETION.items()} | {name: raw}
    text = "{" + ",".join(f'"{key}": {value}' for key, value in fields.items()) + "}"
    error = refusal(lambda: parse_body(text.encode(), CompletionRequest).sampling_params())
    assert error.status == 400
    assert (error.param or "").startswith(field), error.message
    assert name in error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]), ("tool_choice", "required"), ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "schema": {}}), ("functions", [{}]), ("store", True),
        ("guided_json", {}), ("modalities", ["audio"]), ("reasoning_effort", "high"), ("temprature", 1), ("best_of", 1),
        ("service_tier", "flex"), ("echo", True), ("no_such_field", None), ("store", 0),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_refused_by_name(field, value):
    error = refusal(lambda: chat(**{field: value}))
    assert (error.status, error.param) == (400, field)


def test_values_that_ask_for_nothing_are_accepted():
    chat(
        tools=[], tool_choice="none", response_format={"type": "text"}, user="u", store=False, functions=None,
        parallel_tool_calls=True, metadata={}, modalities=["text"], guided_json=None, logit_bias={}, stop=[],
    )  # fmt: skip
    completion(best_of=1, suffix=None, user="u")
    assert refusal(lambda: completion(best_of=2)).param == "best_of"


def test_a_field_has_one_home():
    for shape in (ChatCompletionRequest, CompletionRequest):
        assert not set(shape.model_fields) & set(INERT[shape.__name__])


def test_names_are_those_the_user_wrote():
    assert refusal(lambda: chat(max_completion_tokens=-1).sampling_params()).param == "max_completion_tokens"
    assert refusal(lambda: chat(logprobs=True, top_logprobs=21).sampling_params()).param == "top_logprobs"
    assert refusal(lambda: chat(top_logprobs=2).sampling_params()).param == "top_logprobs"
    error = refusal(lambda: chat(max_tokens=3, max_completion_tokens=4).sampling_params())
    assert error.param == "max_completion_tokens"


def test_keys_given_twice_and_half_characters_are_refused():
    error = refusal(lambda: parse_body(b'{"model": "a", "model": "b"}', ChatCompletionRequest))
    assert "twice" in error.message
    error = refusal(lambda: parse_body(rb'{"model": "a", "prompt": "\ud83d"}', CompletionRequest))
    assert error.param == "prompt"
    json.dumps(refusal(lambda: parse_body(rb'{"\ud83d": 1}', CompletionRequest)).body(), ensure_ascii=False).encode()


@pytest.mark.parametrize(("messages", "param"), [("hi", "messages"), (["hi"], "messages[0]"), ({}, "messages")])
def test_messages_are_a_list_of_objects(messages, param):
    assert refusal(lambda: chat(messages=messages)).param == param


@pytest.mark.parametrize(
    ("prompt", "count"), [("hi", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2), ("", 1), ([""], 1)]
)
def test_prompts(prompt, count):
    assert len(completion(prompt=prompt).prompts()) == count


@pytest.mark.parametrize("prompt", [[], [[]], [[1], []]])
def test_empty_prompts_are_refused(prompt):
    assert (refusal(lambda: completion(prompt=prompt).prompts()).param or "").startswith("prompt")


@pytest.mark.parametrize("prompt", [[1, "a"], [True], [[1], "a"], 5, [1.5]])
def test_mixed_prompts_are_refused(prompt):
    assert (refusal(lambda: completion(prompt=prompt)).param or "").startswith("prompt")
