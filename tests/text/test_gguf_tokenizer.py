"""Tokenizers built from GGUF metadata equal those of the models' own files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from octavo.core.errors import CheckpointError
from octavo.text.pre_tokenizer import WORD_SPLITS
from octavo.text.tokenizer import Tokenizer
from tests.text.conftest import gguf_metadata, gguf_path

CONTROL, USER_DEFINED, BYTE, UNKNOWN = 3, 4, 6, 2


def byte_metadata(directory: Path, **changes: Any) -> dict[str, Any]:
    """The byte tokenizer as a GGUF file would carry it."""
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [CONTROL] * 3 + [1] * (len(tokens) - 3),
        "merges": [" ".join(pair) for pair in model["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in {**metadata, **changes}.items() if value is not None}


def stories_metadata(directory: Path, **changes: Any) -> dict[str, Any]:
    """The stories vocabulary as a GGUF file would carry it: scores fall with ids, no merges."""
    vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [-float(rank) for rank in range(len(tokens) - 259)],
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[1] * (len(tokens) - 259)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in {**metadata, **changes}.items() if value is not None}


def test_byte_level_equals_the_directory(
    byte_directory: Path, byte_tokenizer: Tokenizer, real_texts: list[str]
) -> None:
    built = Tokenizer.from_gguf(byte_metadata(byte_directory))
    for text in [*real_texts, "hi<|im_end|>\n<|im_start|>"]:
        assert built.encode(text) == byte_tokenizer.encode(text)
    assert (built.bos_id, built.eos_ids, built.special_ids) == (1, (2,), byte_tokenizer.special_ids)


def test_smollm_cuts_digits_one_by_one(byte_directory: Path) -> None:
    changes = {"tokens": [*byte_metadata(byte_directory)["tokenizer.ggml.tokens"], "12"], "token_type": None}
    merges = ["1 2", *byte_metadata(byte_directory)["tokenizer.ggml.merges"]]
    plain = Tokenizer.from_gguf(byte_metadata(byte_directory, **changes, merges=merges))
    digits = Tokenizer.from_gguf(byte_metadata(byte_directory, **changes, merges=merges, pre="smollm"))
    assert [len(plain.encode("12")), len(digits.encode("12"))] == [1, 2]


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken"])
def test_word_splits_equal_transformers(pre: str, real_texts: list[str]) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    theirs = tokenizers.pre_tokenizers.Split(tokenizers.Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), "isolated")
    ours = WORD_SPLITS[pre].pre_tokenizer()
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    expected = tokenizers.pre_tokenizers.Sequence([theirs, level])
    for text in real_texts:
        assert ours.pre_tokenize_str(text) == expected.pre_tokenize_str(text)


@pytest.mark.parametrize("pre", ["hogwarts-bpe", None])
def test_an_unknown_pre_tokenizer_is_named_and_refused(byte_directory: Path, pre: str | None) -> None:
    with pytest.raises(CheckpointError, match=pre or "missing"):
        Tokenizer.from_gguf(byte_metadata(byte_directory, pre=pre))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "bert"}, "bert"),
        ({"model": None}, "tokenizer.ggml.model: is missing"),
        ({"merges": None}, "tokenizer.ggml.merges: is missing"),
        ({"merges": ["zz yy"]}, "merges: do not fit"),
        ({"token_type": [1, 2]}, "2 entries for"),
        ({"eos_token_id": 99999}, "eos_token_id: is 99999"),
    ],
)
def test_damaged_metadata_is_refused_by_key(byte_directory: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        Tokenizer.from_gguf(byte_metadata(byte_directory, **changes))


def test_sentencepiece_equals_the_directory(stories_directory: Path, stories_tokenizer: Tokenizer,
                                            real_texts: list[str]) -> None:  # fmt: skip
    built = Tokenizer.from_gguf(stories_metadata(stories_directory))
    assert built.encode("Once upon a time") == stories_tokenizer.encode("Once upon a time")
    for text in real_texts:
        if not text.startswith(" "):  # the directory's older rule prefixes even a text that begins with a space
            assert built.encode(text) == stories_tokenizer.encode(text)
            assert built.decode(built.encode(text)) == text
    assert built.adds_bos
    assert built.unk_id == 0


def test_sentencepiece_equals_transformers_llama_tokenizer(stories_directory: Path, tmp_path: Path,
                                                           real_texts: list[str]) -> None:  # fmt: skip
    model = json.loads((stories_directory / "tokenizer.json").read_text())["model"]
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    theirs = transformers.LlamaTokenizer(vocab=model["vocab"], merges=merges, add_bos_token=True)
    built = Tokenizer.from_gguf(stories_metadata(stories_directory))
    texts = [*real_texts, "<s>a</s> b", "▁▁ x"]
    for text in texts:
        assert built.encode(text) == theirs.encode(text)
        assert built.decode(built.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)
    built.save(tmp_path)
    reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert all(built.encode(text) == reloaded.encode(text) for text in texts)


def test_no_space_prefix_where_the_file_says_so(stories_directory: Path) -> None:
    built = Tokenizer.from_gguf(stories_metadata(stories_directory, add_space_prefix=False, add_bos_token=False))
    assert built.decode(built.encode(" a  b")) == " a  b"
    assert built.encode("time")[0] != built.encode(" time")[0]


def test_control_tokens_are_not_merged_from_plain_text(stories_directory: Path) -> None:
    built = Tokenizer.from_gguf(stories_metadata(stories_directory))
    assert not built.special_ids & set(built.encode("</s><s>", add_special_tokens=False, parse_special=False))


def test_the_end_of_turn_that_the_template_writes_ends_an_answer(byte_directory: Path) -> None:
    metadata = byte_metadata(byte_directory, eos_token_id=0, eot_token_id=1)
    assert Tokenizer.from_gguf(metadata).eos_ids == (0, 1)
    metadata["tokenizer.chat_template"] = "{{ messages[0]['content'] }}<|im_end|>"
    assert Tokenizer.from_gguf(metadata).eos_ids == (0, 1, 2)


def test_smollm2_equals_transformers_with_the_right_pre_tokenizer(
    smollm2: Tokenizer, real_texts: list[str], tmp_path: Path
) -> None:
    smollm2.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in real_texts:
        assert smollm2.encode(text) == theirs.encode(text)
        assert smollm2.decode(smollm2.encode(text), skip_special_tokens=False) == text
    assert (smollm2.bos_id, smollm2.eos_ids, smollm2.pad_id, smollm2.vocab_size) == (1, (2,), 2, 49152)
    assert not smollm2.adds_bos
    assert smollm2.encode("🎈🪁") == [10813, 232, 226, 10813, 120, 219]
    assert [smollm2.token_id(name) for name in ("ĉ", "Ċ", "Ġ", "ĠĠ", "ĊĊ")] == [197, 198, 216, 256, 1116]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_real_models_equal_the_tokenizers_transformers_builds(model: str, real_texts: list[str]) -> None:
    path = gguf_path(model)
    metadata = gguf_metadata(path)
    begun = time.perf_counter()
    ours = Tokenizer.from_gguf(metadata)
    assert time.perf_counter() - begun < 30, "seconds, not minutes, even on a busy machine"
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if model == "smollm2":  # transformers takes byte level alone, see ../shared/reference/models.md
        level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
        theirs.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, level])
    for text in real_texts:
        assert ours.encode(text) == theirs.encode(text)
        ids = ours.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
