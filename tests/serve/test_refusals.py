"""What the server refuses, and that a refusal harms nobody else. Bugs A6 and A7; key, model name, paths."""

import json
import threading

import pytest

from tests.scripted import scripted_async_engine
from tests.serve.live import MODEL, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
LONG_ANSWER = " seven eight" * 100


@pytest.fixture(scope="module")
def server(tokenizer):
    with serving(scripted_async_engine(tokenizer, LONG_ANSWER, max_model_len=256, step_seconds=0.001)) as live:
        yield live


@pytest.fixture
def neighbour(server):
    """A stream that runs meanwhile and must end as if nothing had happened."""
    texts = []

    def read():
        chunks = server.chat("hello", stream=True, max_tokens=200)
        texts.extend(chunk.choices[0].delta.content or "" for chunk in chunks)

    thread = threading.Thread(target=read)
    thread.start()
    yield
    thread.join(30)
    assert "".join(texts) == LONG_ANSWER


def check_error(response, status, param):
    assert response.status_code == status, response.text
    error = json.loads(response.text, parse_constant=pytest.fail)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert param is None or param.split(".")[0].split("[")[0] in error["message"]
    return error


@pytest.mark.usefixtures("neighbour")
def test_bad_bodies_end_nothing_but_themselves(server):
    """A6: 4xx in valid JSON for every bad body, while another stream runs; the next request works."""
    for raw in (b"[]", b"null", b"7", b'"x"', b"", b"{oops"):
        for path in (CHAT, COMPLETIONS):
            check_error(server.http.post(path, content=raw), 400, None)
    for param, fields in (
        ("messages", '"messages": []'),
        ("response_format", '"messages": [], "response_format": {"type": "json_schema", "schema": {}}'),
    ):
        check_error(server.http.post(CHAT, content=f'{{"model": "{MODEL}", {fields}}}'), 400, param)
    vocabulary = server.engine.engine.vocab_size
    for prompt in ('""', '[""]', "[]", "[[]]", f"[{vocabulary}]", "[-1]", '["a", ""]', f"[[3], [{vocabulary}]]"):
        response = server.http.post(COMPLETIONS, content=f'{{"model": "{MODEL}", "prompt": {prompt}}}')
        param = response.json()["error"]["param"]
        check_error(response, 400, param)
        assert param.startswith("prompt")
    for name, value in (
        ("logit_bias", f'{{"{vocabulary}": 5}}'), ("logit_bias", '{"abc": 1}'), ("logit_bias.5", '{"5": 1e39}'),
        ("temperature", "NaN"), ("temperature", "Infinity"), ("temperature", "-1"), ("top_p", "0"), ("top_p", "1.5"),
        ("n", "0"), ("max_tokens", "-1"), ("presence_penalty", "1e308"), ("stop_token_ids", f"[{vocabulary}]"),
    ):  # fmt: skip
        for stream in ("true", "false"):
            body = f'{{"model": "{MODEL}", "prompt": "hi", "stream": {stream}, "{name.split(".")[0]}": {value}}}'
            check_error(server.http.post(COMPLETIONS, content=body), 400, name)
    assert server.complete("hi", max_tokens=1).choices[0].text == " seven"


def test_without_a_limit_an_answer_ends_at_the_context(server):
    """A7 (a): 256 tokens in all, reason length."""
    answer = server.chat("hello", extra_body={"ignore_eos": True, "logit_bias": {"2": -100}})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 256


@pytest.mark.parametrize(("num_prompt", "accepted"), [(254, True), (255, True), (256, False), (257, False)])
def test_one_rule_for_long_prompts(server, num_prompt, accepted):
    """A7 (b): a prompt and its answer fit into 256 together, or the refusal names all figures."""
    response = server.post(COMPLETIONS, prompt=[5] * num_prompt, max_tokens=1)
    assert response.status_code == (200 if accepted else 400), response.text
    if not accepted:
        message = check_error(response, 400, "prompt")["message"]
        assert "256" in message
        assert str(num_prompt) in message


def test_the_rule_counts_the_answer_on_every_endpoint(server):
    """A7 (c): 8 + 253 is above 256; so it is said, with the field's own name."""
    error = check_error(server.post(COMPLETIONS, prompt=[5] * 8, max_tokens=253), 400, "max_tokens")
    assert all(figure in error["message"] for figure in ("256", "253", "8"))
    assert server.post(COMPLETIONS, prompt=[5] * 8, max_tokens=248).status_code == 200
    error = check_error(server.post(CHAT, messages=HI, max_completion_tokens=253), 400, "max_completion_tokens")
    assert "256" in error["message"]
    response = server.post(CHAT, messages=HI, max_tokens=253, stream=True)  # before the first byte of a stream
    check_error(response, 400, "max_tokens")
    check_error(server.post(CHAT, messages=[{"role": "user", "content": "x" * 300}]), 400, "messages")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_fields_that_are_not_honoured(server, path):
    content = {"messages": HI} if path == CHAT else {"prompt": "hi"}
    for field, value in (("best_of", 2), ("tools", [{}]), ("guided_json", {}), ("temprature", 1)):
        check_error(server.post(path, **content, **{field: value}), 400, field)


def test_names_and_paths(server):
    error = check_error(server.http.post(CHAT, json={"model": "gpt-5", "messages": HI}), 404, "model")
    assert error["code"] == "model_not_found"
    assert server.http.get("/v1/models/tiny").json()["id"] == MODEL
    check_error(server.http.get("/v1/models/other"), 404, "model")
    check_error(server.http.get("/v1/nothing"), 404, None)
    check_error(server.http.get(CHAT), 405, None)
    too_long = server.http.post(COMPLETIONS, content=b" " * (33 * 2**20))
    check_error(too_long, 413, None)


def test_key(tokenizer):
    with serving(scripted_async_engine(tokenizer, " ten"), api_key="secret") as locked:
        assert locked.chat("hi").choices[0].message.content == " ten"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            response = locked.http.post(CHAT, json={"model": MODEL, "messages": HI}, headers=headers)
            assert check_error(response, 401, None)["code"] == "invalid_api_key"
            check_error(locked.http.get("/v1/models", headers=headers), 401, None)
        check_error(locked.http.get("/v1/models", headers={"Authorization": "Bearer ø".encode()}), 401, None)
        assert locked.http.get("/health").json() == {"status": "ok"}
        assert locked.http.get("/metrics").status_code == 200


def test_a_key_may_be_any_text(tokenizer):
    with serving(scripted_async_engine(tokenizer, " ten"), api_key="ключ") as locked:
        headers = {"Authorization": "Bearer ключ".encode()}
        assert locked.http.get("/v1/models", headers=headers).status_code == 200
