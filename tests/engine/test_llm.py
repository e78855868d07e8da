"""The offline door: prompts in every accepted shape, results in order, refusals by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.core.errors import CapacityError, InvalidField

STORIES = Path(__file__).parents[3] / "shared/data/models/stories260k"
pytestmark = pytest.mark.skipif(not STORIES.exists(), reason=f"{STORIES} is absent")
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(STORIES, max_model_len=128)


def test_prompts_of_every_shape_give_the_same_answer(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("Once upon a time")
    shapes = ["Once upon a time", ids, {"prompt": "Once upon a time"}, {"prompt_token_ids": ids}]
    results = [llm.generate(shape, GREEDY) for shape in shapes]
    assert all(len(result) == 1 for result in results)
    assert {result[0].outputs[0].text for result in results} == {results[0][0].outputs[0].text}
    together = llm.generate(shapes, GREEDY)
    assert [result.outputs[0].text for result in together] == [results[0][0].outputs[0].text] * 4
    assert [result.prompt for result in together] == ["Once upon a time", None, "Once upon a time", None]
    assert all(result.prompt_token_ids == ids and result.finished for result in together)


def test_results_keep_the_order_and_take_their_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=count, logprobs=1) for count in (5, 1, 3)]
    results = llm.generate(["One", "Two", "Three"], params)
    assert [len(result.outputs[0].token_ids) for result in results] == [5, 1, 3]
    assert [result.outputs[0].finish_reason for result in results] == ["length"] * 3
    for result in results:
        output = result.outputs[0]
        assert output.logprobs is not None
        total = sum(each[token].logprob for token, each in zip(output.token_ids, output.logprobs, strict=True))
        assert output.cumulative_logprob == pytest.approx(total)


def test_scoring_a_prompt_without_an_answer(llm: LLM) -> None:
    [result] = llm.generate("Once upon a time", SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert result.outputs[0].token_ids == []
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids)
    assert result.prompt_logprobs[0] is None


@pytest.mark.parametrize(
    ("prompts", "params", "field"),
    [
        ("", SamplingParams(), None),
        ([""], SamplingParams(), None),
        ([[]], SamplingParams(), "prompt"),
        ([[100000]], SamplingParams(), "prompt"),
        ({"text": "hi"}, SamplingParams(), "prompts[0]"),
        (7, SamplingParams(), "prompts"),
        ([None], SamplingParams(), "prompts[0]"),
        (["a", "b"], [SamplingParams()], "sampling_params"),
        ("a", SamplingParams(max_tokens=1000), "max_tokens"),
    ],
)
def test_refusals_name_the_field(llm: LLM, prompts: object, params: object, field: str | None) -> None:
    if field is None:  # this tokenizer adds a BOS: an empty text is a prompt of one token
        assert llm.generate(prompts, params)[0].prompt_token_ids == [1]
        return
    with pytest.raises(InvalidField) as caught:
        llm.generate(prompts, params)
    assert caught.value.field == field


def test_a_refused_prompt_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(InvalidField):
        llm.generate([[5, 6], []], GREEDY)
    assert not llm.engine.has_work
    assert llm.engine.stats.num_used_blocks == 0
    assert len(llm.generate("Once", GREEDY)) == 1


def test_chat_without_a_template_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidField, match="chat template"):
        llm.chat([{"role": "user", "content": "hi"}])


def test_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidField, match="gpu_memory_utilization"):
        LLM(STORIES, gpu_memory_utilization=0.9)
    with pytest.raises(InvalidField, match="dtype"):
        LLM(STORIES, dtype="float16")
    with pytest.raises(InvalidField, match="max_model_len"):
        LLM(STORIES, max_model_len=100000)
    with pytest.raises(CapacityError, match="too small"):
        LLM(STORIES, memory="50MiB")
