"""Answers whose text is prescribed: characters of several tokens, stop strings, ends, forks, aborts, failures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.core.errors import CapacityError, InvalidField
from octavo.core.outputs import OutputDelta
from octavo.core.request import FinishReason, Request
from octavo.core.sampling_params import SamplingParams
from octavo.engine.engine import Engine
from octavo.text.tokenizer import Tokenizer
from tests.scripted import ScriptedEngine, scripted_engine
from tests.tokenizers import make_byte_tokenizer

PROMPT = [50, 51, 52]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(make_byte_tokenizer(Path(tmp_path_factory.mktemp("bytes"))))


def run(engine: Engine, *requests: Request) -> dict[tuple[str, int], list[OutputDelta]]:
    for request in requests:
        engine.add(request)
    news: dict[tuple[str, int], list[OutputDelta]] = {}
    while engine.has_work:
        for delta in engine.step():
            news.setdefault((delta.request_id, delta.index), []).append(delta)
    assert engine.stats.num_used_blocks == 0
    engine.cache.check()
    return news


def answer(tokenizer: Tokenizer, script: str | list[int], **params) -> tuple[str, list[OutputDelta]]:
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 100, **params})
    deltas = run(scripted_engine(tokenizer, script), Request("r", list(PROMPT), sampling))["r", 0]
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    return "".join(delta.text for delta in deltas), deltas


def test_bug_a1_characters_of_several_tokens_arrive_whole(tokenizer: Tokenizer) -> None:
    wanted = "kite\U0001fa81\U0001f388Ærø東京"
    text, deltas = answer(tokenizer, wanted)
    assert text == wanted
    assert not any("\ufffd" in delta.text for delta in deltas)
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].ends_with_stop_token
    assert deltas[-1].token_ids == [tokenizer.eos_ids[0]]


def test_bug_a1_stray_bytes_reach_the_reader(tokenizer: Tokenizer) -> None:
    stray = next(token for token in range(3, 259) if tokenizer.token_bytes(token) == b"\x9f")
    text, _ = answer(tokenizer, [stray] * 40)
    assert text == "\ufffd" * 40


@pytest.mark.parametrize(
    ("script", "stop", "text", "stop_reason"),
    [
        (" seven eight nine ten", ["ight nin"], " seven e", "ight nin"),
        (" Kim! Bye", ["\n", "Kim:"], " Kim! Bye", None),
        (" why?", ["?\n"], " why?", None),
    ],
)
def test_bug_a2_stop_strings(
    tokenizer: Tokenizer, script: str, stop: list[str], text: str, stop_reason: str | None
) -> None:
    got, deltas = answer(tokenizer, script, stop=stop)
    assert got == text
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].stop_reason == stop_reason
    ids = [token for delta in deltas for token in delta.token_ids]
    script_ids = tokenizer.encode(script, False)
    if stop_reason is None:
        assert ids == [*script_ids, tokenizer.eos_ids[0]]
    else:  # ids end at the token that completed the stop string
        assert ids == script_ids[: len(ids)]
        assert stop_reason in tokenizer.decode(ids)
        assert stop_reason not in tokenizer.decode(ids[:-1])


def test_stop_string_can_be_included(tokenizer: Tokenizer) -> None:
    assert answer(tokenizer, " seven eight nine", stop="ight", include_stop_str_in_output=True)[0] == " seven eight"


def test_held_back_text_is_delivered_at_the_length_limit(tokenizer: Tokenizer) -> None:
    text, deltas = answer(tokenizer, "abcdef", stop=["cdX"], max_tokens=4)
    assert text == "abcd"
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_stop_token_ids_end_without_text(tokenizer: Tokenizer) -> None:
    nine = tokenizer.encode(" nine", False)[0]
    text, deltas = answer(tokenizer, " seven eight nine ten", stop_token_ids=[nine])
    assert text == " seven eight"
    assert (deltas[-1].stop_reason, deltas[-1].ends_with_stop_token) == (nine, True)


def test_min_tokens_outlasts_stop_strings_and_ends(tokenizer: Tokenizer) -> None:
    text, deltas = answer(tokenizer, "ab-ab-ab", stop=["ab"], min_tokens=3)
    assert text == "ab-"
    assert len(deltas) == 5
    _, longer = answer(tokenizer, "", min_tokens=5)
    assert sum(len(delta.token_ids) for delta in longer) == 6


def test_ignore_eos_runs_to_the_limit(tokenizer: Tokenizer) -> None:
    _, deltas = answer(tokenizer, "ab", ignore_eos=True, max_tokens=9)
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert sum(len(delta.token_ids) for delta in deltas) == 9


@pytest.mark.parametrize("max_num_seqs", [2, 8])
def test_n_sequences_fork_from_one_prefill(tokenizer: Tokenizer, max_num_seqs: int) -> None:
    engine = scripted_engine(tokenizer, " seven eight nine ten", max_num_seqs=max_num_seqs, block_size=4)
    prompt = list(range(30, 40))  # ends in mid-block: forking copies on write
    news = run(engine, Request("r", prompt, SamplingParams(n=4, max_tokens=50)))
    assert sorted(index for _, index in news) == [0, 1, 2, 3]
    for deltas in news.values():
        assert "".join(delta.text for delta in deltas) == " seven eight nine ten"
        assert deltas[-1].finish_reason is FinishReason.STOP
    prefills = [chunk for step in engine.executor.steps for chunk in step.chunks if chunk.start == 0]
    assert len(prefills) == 1


def test_abort_frees_blocks_at_once_and_says_so(tokenizer: Tokenizer) -> None:
    engine = scripted_engine(tokenizer, "x" * 100)
    engine.add(Request("a", list(PROMPT), SamplingParams(n=3, max_tokens=100)))
    engine.add(Request("b", list(PROMPT), SamplingParams(max_tokens=5)))
    for _ in range(3):
        engine.step()
    used = engine.stats.num_used_blocks
    engine.abort("a")
    assert engine.stats.num_used_blocks < used
    engine.abort("a")
    engine.abort("never seen")
    ends = [delta for delta in engine.step() if delta.finish_reason is FinishReason.ABORT]
    assert sorted(delta.index for delta in ends) == [0, 1, 2]
    while engine.has_work:
        engine.step()
    assert engine.stats.finish_reasons == {FinishReason.ABORT: 3, FinishReason.LENGTH: 1}


def test_abort_while_waiting_and_before_the_fork(tokenizer: Tokenizer) -> None:
    engine = scripted_engine(tokenizer, "x" * 100)
    engine.add(Request("a", list(PROMPT), SamplingParams(n=3)))
    engine.abort("a")
    assert [delta.index for delta in engine.step()] == [0, 1, 2]
    assert not engine.has_work
    assert engine.stats.num_waiting == 0


class _FailingEngine(ScriptedEngine):
    def execute(self, scheduled):
        if any(66 in chunk.tokens for chunk in scheduled.step.chunks):
            raise RuntimeError("out of luck")
        return super().execute(scheduled)


def test_bug_a6_an_error_in_a_step_ends_its_requests_only(tokenizer: Tokenizer) -> None:
    engine = scripted_engine(tokenizer, "abc", max_num_batched_tokens=4)
    engine.__class__ = _FailingEngine
    news = run(
        engine,
        Request("good", [1, 2, 3, 4], SamplingParams(max_tokens=1)),
        Request("bad", [66, 67], SamplingParams(n=2)),
        Request("later", [5, 6, 7], SamplingParams(temperature=0.0)),
    )
    assert news["good", 0][-1].finish_reason is FinishReason.LENGTH
    for index in (0, 1):
        assert news["bad", index][-1].finish_reason is FinishReason.ABORT
        assert "out of luck" in str(news["bad", index][-1].error)
    again = run(engine, Request("next", [5, 6, 7], SamplingParams(temperature=0.0)))
    assert "".join(delta.text for delta in again["next", 0]) == "abc"
    assert engine.stats.num_failed_steps == 1


def test_bug_a6_broken_bookkeeping_starts_anew(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted_engine(tokenizer, "abc")
    run(engine, Request("first", list(PROMPT), SamplingParams(temperature=0.0)))
    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "schedule", lambda: 1 / 0)
        news = run(engine, Request("r", list(PROMPT), SamplingParams()))
    assert "ZeroDivisionError" in str(news["r", 0][-1].error)
    news = run(engine, Request("r", list(PROMPT), SamplingParams(temperature=0.0)))
    assert news["r", 0][-1].finish_reason is FinishReason.STOP


def test_bug_a6_non_finite_logits_end_one_request(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted_engine(tokenizer, "abc")
    execute = engine.executor.execute

    def poisoned(step):
        logits = execute(step)
        row = 0
        for chunk in step.chunks:
            row += len(chunk.logit_rows)
            if chunk.sequence_id == 0:
                logits[row - 1, 7] = torch.nan
        return logits

    monkeypatch.setattr(engine.executor, "execute", poisoned)
    greedy = SamplingParams(temperature=0.0)
    news = run(engine, Request("bad", [1, 2], greedy), Request("good", [3, 4], greedy))
    assert "not finite" in str(news["bad", 0][-1].error)
    assert "".join(delta.text for delta in news["good", 0]) == "abc"


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ([], {}, "prompt"),
        ([100000], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([True], {}, "prompt"),
        (PROMPT, {"logit_bias": {100000: 1.0}}, "logit_bias"),
        (PROMPT, {"stop_token_ids": [100000]}, "stop_token_ids"),
        (PROMPT, {"max_tokens": 0}, "max_tokens"),
        (PROMPT, {"max_tokens": 0, "prompt_logprobs": 0, "n": 2}, "n"),
        (PROMPT, {"max_tokens": 1000}, "max_tokens"),
        (PROMPT, {"max_tokens": None, "min_tokens": 1000}, "min_tokens"),
    ],
)
def test_bug_a6_what_cannot_be_honoured_is_refused_by_name(
    tokenizer: Tokenizer, prompt: list[int], params: dict, field: str
) -> None:
    engine = scripted_engine(tokenizer, "abc")
    with pytest.raises(InvalidField) as caught:
        Engine.add(engine, Request("r", list(prompt), SamplingParams(**params)))
    assert caught.value.field == field
    assert not engine.has_work


def test_the_same_id_twice_is_refused(tokenizer: Tokenizer) -> None:
    engine = scripted_engine(tokenizer, "abc")
    engine.add(Request("r", list(PROMPT), SamplingParams()))
    with pytest.raises(InvalidField, match="still running"):
        engine.add(Request("r", list(PROMPT), SamplingParams()))


def test_bug_c1_a_prompt_beyond_the_pool_is_refused_and_blocks_nobody(tokenizer: Tokenizer) -> None:
    engine = scripted_engine(tokenizer, "ab" * 600, num_blocks=8, block_size=16, max_model_len=2048)
    with pytest.raises(CapacityError, match="8"):
        engine.add(Request("big", [5] * 1000, SamplingParams()))
    news = run(
        engine,
        Request("small", [5] * 5, SamplingParams(max_tokens=3)),
        Request("long", [6] * 5, SamplingParams(max_tokens=1000)),
    )
    assert len(news["small", 0]) == 3
    assert news["long", 0][-1].finish_reason is FinishReason.LENGTH
    assert len(news["long", 0]) == 8 * 16 + 1 - 5


def test_integrity_check_counts_and_repairs(tokenizer: Tokenizer) -> None:
    engine = scripted_engine(tokenizer, "abc")
    run(engine, Request("r", list(range(20, 60)), SamplingParams(temperature=0.0)))
    assert engine.check_integrity()
    engine.cache._pool.allocate()
    assert not engine.check_integrity()
    assert engine.stats.num_integrity_errors == 1
    assert engine.check_integrity()
