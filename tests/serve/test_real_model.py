"""A real trained model behind the official client: streams side by side equal their solo answers. Bugs S1, S2, A9."""

import threading
from pathlib import Path

import openai
import pytest

from octavo.engine.async_engine import AsyncEngine
from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.serve.body import parse_body
from octavo.serve.protocol import CompletionRequest
from tests.checkpoints import make_tiny
from tests.serve.live import serving, wait_for

STORIES = Path(__file__).parents[3] / "shared/data/models/stories260k"
OPENINGS = ("Once upon a time", "The dog", "Lily had a red ball", "One day, Tom", "It was raining and")


@pytest.fixture(scope="module")
def stories():
    if not STORIES.is_dir():
        pytest.skip("shared/data/models/stories260k is not there")
    with serving(AsyncEngine(build_engine(EngineConfig(STORIES, memory="2GiB")).engine)) as live:
        yield live


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A random model with a chat template."""
    directory = make_tiny("llama", tmp_path_factory.mktemp("chatty") / "tiny", vocab_size=320)
    with serving(AsyncEngine(build_engine(EngineConfig(directory, memory="2GiB")).engine)) as live:
        yield live


def streamed(server, prompt, **options) -> tuple[str, object]:
    text, usage = "", None
    for chunk in server.complete(prompt, stream=True, stream_options={"include_usage": True}, **options):
        text += "".join(choice.text for choice in chunk.choices)
        usage = chunk.usage or usage
    return text, usage


def test_twenty_streams_equal_their_solo_answers(stories):
    """Greedy and seeded, short and long, all at once: the same texts as alone."""
    jobs = [
        (opening, {"max_tokens": 8 + 3 * place, "temperature": temperature, "seed": place, "extra_body": extra})
        for place, opening in enumerate(OPENINGS)
        for temperature, extra in ((0.0, {}), (1.0, {}), (0.0, {"repetition_penalty": 1.3}), (0.7, {"top_k": 5}))
    ]
    assert len(jobs) == 20
    solo = [stories.complete(prompt, **options).choices[0].text for prompt, options in jobs]
    together: list[object] = [None] * len(jobs)

    def read(place):
        together[place] = streamed(stories, jobs[place][0], **jobs[place][1])

    threads = [threading.Thread(target=read, args=(place,)) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [text for text, _ in together] == solo
    assert all(usage.completion_tokens > 0 for _, usage in together)
    assert len(set(solo)) > 10
    stories.wait_until_idle()


def test_seeded_choices_differ_and_repeat(stories):
    """S1: four choices, the same four each time, streamed and not."""
    options = {"n": 4, "seed": 7, "temperature": 1.2, "max_tokens": 24, "stop": ["."]}
    whole = [choice.text for choice in stories.complete(OPENINGS[0], **options).choices]
    again = [choice.text for choice in stories.complete(OPENINGS[0], **options).choices]
    pieces = [""] * 4
    reasons: list[list[str]] = [[] for _ in range(4)]
    for chunk in stories.complete(OPENINGS[0], stream=True, **options):
        choice = chunk.choices[0]
        pieces[choice.index] += choice.text
        reasons[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    assert whole == again == pieces
    assert len(set(whole)) >= 2
    assert [len(found) for found in reasons] == [1] * 4


def test_scores_of_an_echo_are_those_of_the_answer(stories):
    """A4 and C2 over HTTP: a greedy answer, scored as a prompt, has the log-probabilities it was given."""
    answer = stories.complete(OPENINGS[0], max_tokens=12, temperature=0, logprobs=1)
    text = OPENINGS[0] + answer.choices[0].text
    scored = stories.complete(text, echo=True, max_tokens=0, logprobs=1)
    tokens, values = scored.choices[0].logprobs.tokens, scored.choices[0].logprobs.token_logprobs
    assert "".join(tokens) == text == scored.choices[0].text
    assert len(tokens) == scored.usage.prompt_tokens
    given = answer.choices[0].logprobs.token_logprobs
    assert values[-12:] == pytest.approx(given, abs=1e-4)
    assert values[0] is None
    assert answer.choices[0].logprobs.tokens == tokens[-12:]
    assert "".join(answer.choices[0].logprobs.tokens) == answer.choices[0].text


def test_without_a_chat_template_chat_is_refused(stories):
    with pytest.raises(openai.BadRequestError, match="chat template"):
        stories.chat("hi")


def test_parts_and_text_have_one_answer(chatty):
    """A9 with a real model."""
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}]
    options = {"temperature": 0, "max_tokens": 8, "extra_body": {"ignore_eos": True}}
    of_parts, of_text = chatty.chat(parts, **options), chatty.chat("Say hi", **options)
    assert of_parts.choices[0].message.content == of_text.choices[0].message.content
    assert of_parts.usage.prompt_tokens == of_text.usage.prompt_tokens


def test_logprobs_of_a_random_models_bytes(chatty):
    """A3 where the answer is a mess of half characters: entries match the tokens that are counted."""
    answer = chatty.chat("hi", max_tokens=40, logprobs=True, top_logprobs=3, seed=1, extra_body={"ignore_eos": True})
    entries = answer.choices[0].logprobs.content
    assert bytes(byte for entry in entries for byte in entry.bytes).decode(errors="replace") == (
        answer.choices[0].message.content
    )
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 3 for entry in entries)


def test_a_leaving_client_of_a_real_model(stories):
    stream = stories.complete(OPENINGS[0], stream=True, max_tokens=450, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_for(lambda: stories.engine.stats.num_used_blocks == 0, 2, "blocks are still held")


def test_every_field_of_the_client_is_read_or_refused():
    """The official client's own parameters: none is unknown here."""
    import inspect

    from octavo.serve.fields import INERT

    own = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    taken = set(CompletionRequest.model_fields) | set(INERT["CompletionRequest"])
    known = set(inspect.signature(openai.resources.Completions.create).parameters) - own
    assert known - taken == set()
    parse_body(b'{"model": "m", "prompt": "x", "user": "u"}', CompletionRequest)
