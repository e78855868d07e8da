"""`octavo generate`: texts for people, one JSON object for machines."""

import json

import pytest

from octavo.cli.generate import run
from octavo.core.errors import InvalidField
from tests.checkpoints import make_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(make_tiny("llama", tmp_path_factory.mktemp("generate") / "tiny", vocab_size=320))


def run_json(capsys, model, **options):
    run(model, **{"max_tokens": 6, "memory": "2GiB", **options}, as_json=True)
    return json.loads(capsys.readouterr().out)


def test_json_is_one_object_with_every_answer(model, tmp_path, capsys):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "hello"}\n{"prompt": "two\\nlines"}\n')
    found = run_json(capsys, model, prompts_file=file, n=2, temperature=1.0, seed=5, logprobs=1, ignore_eos=True)
    assert [result["prompt"] for result in found["results"]] == ["hello", "two\nlines"]
    for result in found["results"]:
        assert len(result["outputs"]) == 2
        for output in result["outputs"]:
            assert len(output["token_ids"]) == len(output["logprobs"]) == 6
            assert output["finish_reason"] == "length"
    again = run_json(capsys, model, prompts_file=file, n=2, temperature=1.0, seed=5, logprobs=1, ignore_eos=True)
    assert again == found


def test_text_shows_prompt_and_answer(model, capsys):
    answer = run_json(capsys, model, prompt=["hello"])["results"][0]["outputs"][0]["text"]
    run(model, prompt=["hello"], max_tokens=6, memory="2GiB")
    assert capsys.readouterr().out == f"hello{answer}\n"


def test_bad_input_is_refused_before_the_model_is_loaded(tmp_path):
    empty_line = tmp_path / "prompts.txt"
    empty_line.write_text("one\n\ntwo\n")
    other_field = tmp_path / "prompts.jsonl"
    other_field.write_text('{"prompt": "a", "max_tokens": 3}\n')
    for options, field in (
        ({}, "--prompt"),
        ({"prompt": ["a"], "prompts_file": empty_line}, "--prompt"),
        ({"prompts_file": tmp_path / "absent"}, "--prompts-file"),
        ({"prompts_file": empty_line}, "prompts.txt:2"),
        ({"prompts_file": other_field}, "prompts.jsonl:1"),
        ({"prompt": ["a"], "logprobs": 1}, "--logprobs"),
        ({"prompt": ["a"], "temperature": -1.0}, "temperature"),
    ):
        with pytest.raises(InvalidField) as caught:
            run("no-such-model", **options)
        assert caught.value.field.endswith(field)
