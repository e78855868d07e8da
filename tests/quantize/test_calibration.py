"""Packing: every token in exactly one segment, cuts on documents and turns, counts that are true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.core.errors import InvalidField
from octavo.quantize.calibration import (
    _pack,
    built_in_documents,
    load_calibration,
)
from octavo.text.tokenizer import Tokenizer

MODEL = Path(__file__).parents[2].parent / "shared" / "data" / "models" / "stories260k"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    if not MODEL.exists():
        pytest.skip("needs ../shared/data/models/stories260k")
    return Tokenizer.from_directory(MODEL)


def _flat(windows: list[list[list[int]]], bos: list[int]) -> list[int]:
    return [token for window in windows for segment in window for token in segment[len(bos) :]]


@pytest.mark.parametrize("bos", [[], [1]])
def test_packing_keeps_every_token_in_order(bos: list[int]) -> None:
    documents = [[list(range(start, start + length))] for start, length in ((10, 5), (100, 300), (500, 64), (700, 1))]
    windows, num_split = _pack(documents, bos, 64)
    assert _flat(windows, bos) == [token for document in documents for piece in document for token in piece]
    assert num_split == 0
    assert all(sum(map(len, window)) <= 64 for window in windows)
    assert all(segment[: len(bos)] == bos for window in windows for segment in window)


def test_long_texts_fill_windows_exactly() -> None:
    windows, _ = _pack([[list(range(1000))]], [1], 100)
    assert [sum(map(len, window)) for window in windows[:-1]] == [100] * (len(windows) - 1)


def test_chats_are_cut_between_turns_only() -> None:
    turns = [list(range(100 * i, 100 * i + 40)) for i in range(5)]
    windows, num_split = _pack([turns], [], 100)
    assert num_split == 0
    starts = {segment[0] for window in windows for segment in window}
    assert starts <= {turn[0] for turn in turns}
    assert _flat(windows, []) == [token for turn in turns for token in turn]


def test_a_turn_longer_than_a_window_is_cut_and_counted() -> None:
    windows, num_split = _pack([[list(range(10)), list(range(1000, 1250))]], [], 100)
    assert num_split == 1
    assert _flat(windows, []) == [*range(10), *range(1000, 1250)]


def test_text_file_windows_spread_and_the_rest_is_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("Once upon a time there was a little girl. " * 400)
    calibration = load_calibration(tokenizer, file, 4, 64)
    assert [len(window[0]) for window in calibration.windows] == [64] * 4
    assert calibration.num_tokens == 256
    whole = load_calibration(tokenizer, file, 10_000, 64)
    assert calibration.num_tokens + calibration.num_unused_tokens == whole.num_tokens
    assert whole.num_unused_tokens == 0
    assert len(whole.windows) < 10_000
    assert calibration.sha256 != whole.sha256
    assert calibration.sha256 == load_calibration(tokenizer, file, 4, 64).sha256


def test_short_source_is_used_whole_and_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_text("Lily saw a cat.")
    calibration = load_calibration(tokenizer, file, 32, 512)
    assert len(calibration.windows) == 1
    assert calibration.to_dict()["num_requested_windows"] == 32
    assert calibration.num_tokens == len(tokenizer.encode("Lily saw a cat."))


def test_jsonl_of_texts_and_bad_lines(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(json.dumps({"text": "One day."}) + "\n\n" + json.dumps({"text": "Tim ran."}) + "\n")
    calibration = load_calibration(tokenizer, file, 2, 64)
    assert calibration.num_documents == 2
    assert calibration.segments == [tokenizer.encode("One day."), tokenizer.encode("Tim ran.")]
    for bad, message in (("{", "line 1"), ('{"txt": 1}', "messages"), ('{"messages": []}', "chat template")):
        file.write_text(bad + "\n")
        with pytest.raises(InvalidField, match=message):
            load_calibration(tokenizer, file)


def test_empty_sources_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.write_text("")
    with pytest.raises(InvalidField, match="no text"):
        load_calibration(tokenizer, file)
    with pytest.raises(InvalidField, match="calibration"):
        load_calibration(tokenizer, tmp_path / "absent.txt")


def test_built_in_text_keeps_evaluation_apart(tokenizer: Tokenizer) -> None:
    assert not set(built_in_documents()) & set(built_in_documents(held_out=True))
    calibration = load_calibration(tokenizer)
    assert calibration.num_tokens == 32 * 512 - calibration.num_masked_positions
    assert calibration.num_masked_positions < 32 * 32
