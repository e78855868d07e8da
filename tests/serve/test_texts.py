"""What clients read: streamed and whole, with stop strings, log-probabilities and usage. Bugs A1 to A5, A9."""

import json

import pytest

from tests.scripted import scripted_async_engine
from tests.serve.live import MODEL, LiveServer, serving

CHARACTERS = "kite🪁🎈Ærø東京"
HI = [{"role": "user", "content": "hi"}]
#: Prompt -> what the model says.
SCRIPT = {
    "characters": CHARACTERS,
    "count": " seven eight nine ten",
    "bye": " Kim! Bye",
    "ask": "who?",
    "stray": [3 + 187] * 40,
}


def said(prompt_ids, tokenizer):
    text = tokenizer.decode(prompt_ids, skip_special_tokens=False)
    return next((answer for word, answer in SCRIPT.items() if word in text), " seven eight")


@pytest.fixture(scope="module")
def server(tokenizer):
    with serving(scripted_async_engine(tokenizer, lambda ids: said(ids, tokenizer))) as live:
        yield live


def streamed_chat(server: LiveServer, word: str, **options) -> tuple[str, list]:
    chunks = list(server.chat(word, stream=True, **options))
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks


def test_characters_of_several_tokens_are_whole(server):
    """A1: streamed = not streamed, no replacement character."""
    whole = server.chat("characters").choices[0].message.content
    text, chunks = streamed_chat(server, "characters")
    assert whole == text == CHARACTERS
    assert not any("\ufffd" in (c.choices[0].delta.content or "") for c in chunks)
    joined = "".join(c.choices[0].text for c in server.complete("characters", stream=True, max_tokens=64))
    assert joined == CHARACTERS == server.complete("characters", max_tokens=64).choices[0].text


def test_bytes_that_form_no_character_arrive(server, tokenizer):
    """A1, second half: 40 stray bytes are 40 replacement characters."""
    assert tokenizer.decode(SCRIPT["stray"]) == "\ufffd" * 40
    text, _ = streamed_chat(server, "stray")
    assert text == server.chat("stray").choices[0].message.content == "\ufffd" * 40


@pytest.mark.parametrize(
    ("word", "stop", "text", "reason"),
    [
        ("count", ["ight nin"], " seven e", "ight nin"),
        ("bye", ["\n", "Kim:"], " Kim! Bye", None),
        ("ask", ["?\n"], "who?", None),
        ("count", " nine", " seven eight", " nine"),
    ],
)
def test_stop_strings_across_tokens(server, word, stop, text, reason):
    """A2, by both endpoints, streamed and not."""
    whole = server.chat(word, stop=stop).choices[0]
    assert (whole.message.content, whole.finish_reason, whole.stop_reason) == (text, "stop", reason)
    joined, chunks = streamed_chat(server, word, stop=stop)
    assert joined == text
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert server.complete(word, stop=stop, max_tokens=50).choices[0].text == text
    assert "".join(c.choices[0].text for c in server.complete(word, stop=stop, max_tokens=50, stream=True)) == text


@pytest.mark.parametrize(
    ("options", "num_top"), [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 5, "top_p": 0.1}, 5)]
)
def test_chat_logprobs(server, options, num_top):
    """A3: 200, strict JSON, bytes joined are the message, values not above zero."""
    response = server.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": "characters"}], logprobs=True, **options
    )
    assert response.status_code == 200, response.text
    choice = json.loads(response.text, parse_constant=pytest.fail)["choices"][0]
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == CHARACTERS.encode()
    assert all(entry["logprob"] <= 0 for entry in entries)
    assert {len(entry["top_logprobs"]) for entry in entries} == {num_top}


@pytest.mark.parametrize(("word", "stop"), [("characters", None), ("count", ["ight nin"]), ("bye", ["\n", "Kim:"])])
def test_streamed_logprobs_are_those_of_the_whole_answer(server, word, stop):
    options = {"logprobs": True, "top_logprobs": 2, **({"stop": stop} if stop else {})}
    whole = server.chat(word, **options).choices[0]
    _, chunks = streamed_chat(server, word, **options)
    entries = [entry for c in chunks if c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
    assert entries == whole.logprobs.content
    shown = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert shown.startswith(whole.message.content)
    assert len(shown) - len(whole.message.content) < len(" eight")


def test_completion_logprobs(server):
    choice = server.complete("count", max_tokens=2, logprobs=2).choices[0]
    assert choice.text == " seven eight"
    assert choice.logprobs.tokens == [" seven", " eight"]
    assert choice.logprobs.text_offset == [0, 6]
    assert [len(top) for top in choice.logprobs.top_logprobs] == [2, 2]
    assert all(value <= 0 for value in choice.logprobs.token_logprobs)
    chunks = [c.choices[0] for c in server.complete("count", max_tokens=2, logprobs=2, stream=True)]
    assert [o for c in chunks for o in c.logprobs.text_offset] == [0, 6]
    assert [t for c in chunks for t in c.logprobs.tokens] == choice.logprobs.tokens


@pytest.mark.parametrize("prompt", ["hello world and the stem", "東京 hello", [3, 4, 5, 6]])
@pytest.mark.parametrize("num_new", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_the_prompt(server, tokenizer, prompt, num_new, stream):
    """A4: as many entries as prompt tokens, the first null, tokens joined are the text."""
    options = {"echo": True, "max_tokens": num_new, "logprobs": 1}
    if stream:
        chunks = server.raw_events("/v1/completions", prompt=prompt, stream_options={"include_usage": True}, **options)
        usage = chunks.pop()["usage"]
        parts = [chunk["choices"][0] for chunk in chunks]
        text = "".join(part["text"] for part in parts)
        tokens, values = ([v for part in parts for v in part["logprobs"][k]] for k in ("tokens", "token_logprobs"))
    else:
        answer = server.complete(prompt, **options)
        usage, choice = answer.usage.model_dump(), answer.choices[0]
        text, tokens, values = choice.text, choice.logprobs.tokens, choice.logprobs.token_logprobs
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    assert usage["prompt_tokens"] == len(ids)
    assert usage["completion_tokens"] == num_new
    assert len(tokens) == len(values) == len(ids) + num_new
    assert text == tokenizer.decode(ids) + " seven" * num_new
    assert "".join(tokens) == text
    assert values[0] is None
    assert all(value <= 0 for value in values[1:])


def test_echo_without_logprobs(server):
    assert server.complete(["count", "bye"], echo=True, max_tokens=1).choices[1].text == "bye Kim"[:7]
    assert server.complete("count", echo=True, max_tokens=0).choices[0].text == "count"


def test_usage_chunk_only_when_asked(server):
    """A5."""
    plain = server.raw_events("/v1/chat/completions", messages=HI)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in plain)
    for n in (1, 2):
        asked = {"stream_options": {"include_usage": True}, "n": n, "messages": HI}
        *chunks, last = server.raw_events("/v1/chat/completions", **asked)
        assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks)
        assert last["choices"] == []
        whole = server.chat("hi", n=n).usage
        assert last["usage"]["completion_tokens"] == whole.completion_tokens == n * 3
        assert last["usage"]["prompt_tokens"] == whole.prompt_tokens


def test_role_comes_first_and_the_reason_last(server):
    chunks = server.raw_events("/v1/chat/completions", messages=HI, n=2)
    for index in (0, 1):
        choices = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
        assert not any("role" in c["delta"] for c in choices[1:])
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_cached_tokens_are_counted(server):
    prompt = "hello " * 20
    first = server.complete(prompt, max_tokens=1).usage
    again = server.complete(prompt, max_tokens=1).usage
    assert first.prompt_tokens_details.cached_tokens == 0
    assert 16 <= again.prompt_tokens_details.cached_tokens < again.prompt_tokens
    assert again.prompt_tokens_details.cached_tokens % 16 == 0


def test_several_prompts_and_choices_keep_their_places(server):
    answer = server.complete(["count", "bye", "ask"], n=2, max_tokens=20)
    texts = [SCRIPT[word] for word in ("count", "bye", "ask") for _ in range(2)]
    assert [choice.text for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == list(range(6))
    streamed = [""] * 6
    for chunk in server.complete(["count", "bye", "ask"], n=2, max_tokens=20, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts
    assert [c.text for c in server.complete([[3, 4], [5, 6, 7]], max_tokens=1).choices] == [" seven", " seven"]


def test_text_parts_equal_text(server):
    """A9: parts and plain text are the same conversation; a picture is refused; a call's history is accepted."""
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}]
    assert server.chat(parts).usage.prompt_tokens == server.chat("Say hi").usage.prompt_tokens
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    refused = server.post("/v1/chat/completions", messages=picture)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0].content[0]")
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    history = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}, *HI]
    accepted = server.post("/v1/chat/completions", messages=history, max_tokens=2)
    assert accepted.status_code == 200, accepted.text
    assert accepted.json()["model"] == MODEL
