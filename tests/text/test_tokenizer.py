"""Tokens, special tokens and saved directories equal transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from octavo.core.errors import CheckpointError, InvalidField
from octavo.text.tokenizer import Tokenizer
from tests.tokenizers import make_byte_tokenizer


def oracle(directory: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(directory)


def assert_equal(ours: Tokenizer, theirs: Any, texts: list[str]) -> None:
    for text in texts:
        for special in (True, False):
            assert ours.encode(text, add_special_tokens=special) == theirs.encode(text, add_special_tokens=special)
        ids = ours.encode(text)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.bos_id == theirs.bos_token_id
    assert ours.pad_id == theirs.pad_token_id
    assert theirs.eos_token_id is None or theirs.eos_token_id in ours.eos_ids
    assert ours.special_ids >= set(theirs.all_special_ids)
    assert ours.vocab_size == len(theirs)


@pytest.mark.parametrize("kind", ["byte_directory", "stories_directory"])
def test_tokens_equal_transformers(kind: str, request: pytest.FixtureRequest, real_texts: list[str]) -> None:
    directory = request.getfixturevalue(kind)
    extra = ["<|im_end|>x <|im_start|>", "<s> a </s>b"]
    assert_equal(Tokenizer.from_directory(directory), oracle(directory), real_texts + extra)


BOS_EOS_CONFIGS = [
    {},
    {"add_bos_token": True},
    {"add_bos_token": True, "add_eos_token": True},
    {"add_eos_token": True},
    {"add_bos_token": False},
    {"add_bos_token": True, "bos_token": None},
    {
        "bos_token": {
            "__type": "AddedToken",
            "content": "<|new|>",
            "lstrip": False,
            "normalized": False,
            "rstrip": True,
            "single_word": False,
        }
    },
    {"additional_special_tokens": ["<|tool|>", "<|im_end|>"]},
    {
        "added_tokens_decoder": {
            "303": {"content": "<think>", "special": False, "normalized": False, "lstrip": False, "rstrip": False},
            "304": {"content": "<|x|>", "special": True, "normalized": False, "lstrip": True, "rstrip": False},
        }
    },
]


@pytest.mark.parametrize("with_post_processor", [False, True])
@pytest.mark.parametrize("settings", BOS_EOS_CONFIGS)
def test_bos_eos_and_added_tokens_follow_transformers(
    tmp_path: Path, settings: dict[str, Any], with_post_processor: bool
) -> None:
    directory = make_byte_tokenizer(tmp_path)
    if with_post_processor:
        backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|im_start|> $A", pair="<|im_start|> $A $B", special_tokens=[("<|im_start|>", 1)]
        )
        backend.save(str(directory / "tokenizer.json"))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    del config["add_bos_token"]
    config = {name: value for name, value in {**config, **settings}.items() if value is not None}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    texts = ["hello world", "", "a <|new|> b<|tool|>c <|x|>  <think>d</think>"]
    ours = Tokenizer.from_directory(directory)
    assert_equal(ours, oracle(directory), texts)
    ours.save(tmp_path / "saved")
    assert_equal(ours, oracle(tmp_path / "saved"), texts)


def test_special_tokens_map_speaks_where_the_config_lists_no_added_tokens(tmp_path: Path) -> None:
    directory = make_byte_tokenizer(tmp_path)
    entry = {"content": "<|endoftext|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    (directory / "special_tokens_map.json").write_text(json.dumps({"bos_token": entry}))
    ours = Tokenizer.from_directory(directory)
    assert_equal(ours, oracle(directory), ["a<|endoftext|> b"])
    assert ours.bos_id == 0
    ours.save(tmp_path / "saved")
    assert_equal(ours, oracle(tmp_path / "saved"), ["a<|endoftext|> b"])


def test_every_eos_id_of_the_generation_config_counts(tmp_path: Path) -> None:
    directory = make_byte_tokenizer(tmp_path)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    assert Tokenizer.from_directory(directory).eos_ids == (2, 0)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    assert Tokenizer.from_directory(directory).eos_ids == (0, 2)


@pytest.mark.parametrize("model_type", [None, "llama", "gemma3_text", "mistral", "qwen3"])
def test_a_saved_directory_is_equal_whatever_model_lies_beside_it(
    tmp_path: Path, byte_tokenizer: Tokenizer, model_type: str | None, real_texts: list[str]
) -> None:
    byte_tokenizer.save(tmp_path)
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": []}))
    theirs = oracle(tmp_path)
    assert_equal(byte_tokenizer, theirs, real_texts[:20])
    messages = [{"role": "user", "content": "hi"}]
    assert byte_tokenizer.chat_template is not None
    assert byte_tokenizer.chat_template.render(messages) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    again = Tokenizer.from_directory(tmp_path)
    assert again.eos_ids == byte_tokenizer.eos_ids
    assert again.encode("hello") == byte_tokenizer.encode("hello")


def test_token_bytes_are_exact(byte_tokenizer: Tokenizer, stories_tokenizer: Tokenizer) -> None:
    text = "héllo 🎈 <|im_end|> the"
    for tokenizer in (byte_tokenizer, stories_tokenizer):
        ids = tokenizer.encode(text, add_special_tokens=False)
        joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
        assert joined.removeprefix(" ") == text
    assert byte_tokenizer.token_bytes(2) == b"<|im_end|>"
    assert stories_tokenizer.token_bytes(3) == b"\x00"
    assert stories_tokenizer.token_bytes(1) == b"<s>"


def test_control_texts_stay_text_on_request(byte_tokenizer: Tokenizer, stories_tokenizer: Tokenizer) -> None:
    for tokenizer, text in ((byte_tokenizer, "a<|im_end|>\n<|im_start|>"), (stories_tokenizer, "a </s> <s>b")):
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert not tokenizer.special_ids & set(ids)
        assert tokenizer.decode(ids) == text
        assert tokenizer.special_ids & set(tokenizer.encode(text, add_special_tokens=False))
    assert stories_tokenizer.encode("hi", parse_special=False) == stories_tokenizer.encode("hi")
    assert stories_tokenizer.adds_bos
    assert not byte_tokenizer.adds_bos


def test_private_use_characters_in_a_text_are_kept(byte_tokenizer: Tokenizer) -> None:
    text = "\U000f0000<|im_end|>\U000f0000 \U000f0001"
    ids = byte_tokenizer.encode(text, parse_special=False)
    assert byte_tokenizer.decode(ids) == text
    assert not byte_tokenizer.special_ids & set(ids)


def test_half_a_surrogate_pair_is_refused(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidField, match="text"):
        byte_tokenizer.encode("a\ud83c")


def test_a_truncating_tokenizer_file_does_not_truncate(tmp_path: Path) -> None:
    directory = make_byte_tokenizer(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    backend.save(str(directory / "tokenizer.json"))
    assert len(Tokenizer.from_directory(directory).encode("x" * 100)) == 100


def test_a_directory_without_tokenizer_json_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json.*there are: tokenizer\.model"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{oops")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is not a readable tokenizer"):
        Tokenizer.from_directory(tmp_path)
    with pytest.raises(CheckpointError, match="not a directory"):
        Tokenizer.from_directory(tmp_path / "absent")
