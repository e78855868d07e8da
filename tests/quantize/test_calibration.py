"""Packing: every token in exactly one segment, cuts on documents and turns, counts that are true."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from octavo.core.errors import InvalidField
from octavo.ops.base import Linear
from octavo.quantize.calibration import Calibration, load_calibration
from octavo.quantize.calibration_sources import CalibrationSource, built_in_documents, parse_sources
from octavo.quantize.calibration_windows import Document, Piece, Segment, Window, interleave, pack, share_out
from octavo.quantize.observer import ObserverOps
from octavo.quantize.statistics import InputStatistics
from octavo.text.tokenizer import Tokenizer
from tests.tokenizers import make_byte_tokenizer

MODEL = Path(__file__).parents[2].parent / "shared" / "data" / "models" / "stories260k"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    if not MODEL.exists():
        pytest.skip("needs ../shared/data/models/stories260k")
    return Tokenizer.from_directory(MODEL)


def _flat(windows: list[Window], bos: list[int]) -> list[int]:
    return [token for window in windows for segment in window for token in segment.tokens[len(bos) :]]


def _document(*pieces: list[int]) -> Document:
    return [Piece(tokens) for tokens in pieces]


@pytest.mark.parametrize("bos", [[], [1]])
def test_packing_keeps_every_token_in_order(bos: list[int]) -> None:
    texts = [list(range(start, start + length)) for start, length in ((10, 5), (100, 300), (500, 64), (700, 1))]
    windows, num_split = pack([_document(text) for text in texts], bos, 64)
    assert _flat(windows, bos) == [token for text in texts for token in text]
    assert num_split == 0
    assert all(sum(map(len, window)) <= 64 for window in windows)
    assert all(segment.tokens[: len(bos)] == bos for window in windows for segment in window)


def test_long_texts_fill_windows_exactly() -> None:
    windows, _ = pack([_document(list(range(1000)))], [1], 100)
    assert [sum(map(len, window)) for window in windows[:-1]] == [100] * (len(windows) - 1)


def test_chats_are_cut_between_turns_only() -> None:
    turns = [list(range(100 * i, 100 * i + 40)) for i in range(5)]
    windows, num_split = pack([_document(*turns)], [], 100)
    assert num_split == 0
    starts = {segment.tokens[0] for window in windows for segment in window}
    assert starts <= {turn[0] for turn in turns}
    assert _flat(windows, []) == [token for turn in turns for token in turn]


def test_a_turn_longer_than_a_window_is_cut_and_counted() -> None:
    windows, num_split = pack([_document(list(range(10)), list(range(1000, 1250)))], [], 100)
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


def test_parquet_rows_are_jsonl_rows(chat_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """What hub data sets come as."""
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    rows: list[dict[str, object]] = [{"text": "One day.", "messages": None}, {"text": None, "messages": chat}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    present = ({key: value for key, value in row.items() if value is not None} for row in rows)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in present))
    found = load_calibration(chat_tokenizer, tmp_path / "rows.parquet", 2, 64)
    expected = load_calibration(chat_tokenizer, tmp_path / "rows.jsonl", 2, 64)
    assert found.segments == expected.segments
    assert found.num_context_tokens == expected.num_context_tokens > 0


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


def test_a_weight_follows_an_at_sign_and_a_path_stays_a_path(tmp_path: Path) -> None:
    assert CalibrationSource.parse("medical.txt@2") == CalibrationSource("medical.txt", 2.0)
    assert CalibrationSource.parse("hf:org/name:train:text@0.5") == CalibrationSource("hf:org/name:train:text", 0.5)
    assert CalibrationSource.parse("a.txt") == CalibrationSource("a.txt", 1.0)
    odd = tmp_path / "mail@3"
    odd.write_text("text")
    assert CalibrationSource.parse(odd) == CalibrationSource(str(odd), 1.0)
    for wrong in ("a.txt@0", "a.txt@-1", "a.txt@nan", "a.txt@inf", "a.txt@much"):
        with pytest.raises(InvalidField, match="calibration"):
            CalibrationSource.parse(wrong)
    with pytest.raises(InvalidField, match="named 2 times"):
        parse_sources(["a.txt", "a.txt@2"])


@given(st.integers(1, 200), st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_windows_are_shared_out_by_weight(count: int, weights: list[float]) -> None:
    shares = share_out(count, weights)
    assert sum(shares) == count
    assert all(abs(share - count * weight / sum(weights)) < 1 for share, weight in zip(shares, weights, strict=True))


def test_interleaved_windows_mix_evenly() -> None:
    a, b = ([[Segment([100 * number + i], [True])] for i in range(count)] for number, count in ((1, 6), (2, 2)))
    tokens = [window[0].tokens[0] // 100 for window in interleave([a, b])]
    assert tokens == [1, 1, 2, 1, 1, 1, 2, 1]


def _stories(tmp_path: Path, name: str, sentence: str, count: int) -> Path:
    file = tmp_path / name
    file.write_text(sentence * count)
    return file


def test_several_sources_share_the_windows_and_each_is_accounted_for(tokenizer: Tokenizer, tmp_path: Path) -> None:
    cats = _stories(tmp_path, "cats.txt", "The cat sat on the mat. ", 400)
    dogs = _stories(tmp_path, "dogs.txt", "A dog ran in the park. ", 400)
    calibration = load_calibration(tokenizer, [f"{cats}@3", dogs], 8, 64)
    assert [counts.num_windows for counts in calibration.sources] == [6, 2]
    assert [counts.weight for counts in calibration.sources] == [3, 1]
    alone = [load_calibration(tokenizer, source, count, 64) for source, count in ((cats, 6), (dogs, 2))]
    assert sorted(calibration.segments) == sorted([*alone[0].segments, *alone[1].segments])
    assert calibration.num_unused_tokens == sum(each.num_unused_tokens for each in alone)
    assert [each["num_tokens"] for each in calibration.to_dict()["sources"]] == [6 * 64, 2 * 64]
    with pytest.raises(InvalidField, match="not one of 2 windows"):
        load_calibration(tokenizer, [f"{cats}@30", dogs], 2, 64)


def test_a_source_shorter_than_its_share_is_said(tokenizer: Tokenizer, tmp_path: Path) -> None:
    long = _stories(tmp_path, "long.txt", "The cat sat on the mat. ", 400)
    short = _stories(tmp_path, "short.txt", "A dog ran. ", 3)
    calibration = load_calibration(tokenizer, [long, short], 8, 64)
    assert [counts.num_windows for counts in calibration.sources] == [4, 1]
    assert any(f"{short} fills 1 of its 4 windows" in line for line in calibration.warnings(16))
    assert any("few for 4096 inputs" in line for line in calibration.warnings(4096))


@pytest.fixture(scope="module")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    make_byte_tokenizer(directory)
    return Tokenizer.from_directory(directory)


def _counted(calibration: Calibration, tokenizer: Tokenizer) -> tuple[str, str]:
    """(text that counts, text that does not)."""
    assert calibration.mask is not None
    tokens = [token for segment in calibration.segments for token in segment]
    counts = calibration.mask.tolist()
    return tuple(
        tokenizer.decode([t for t, c in zip(tokens, counts, strict=True) if c == wanted], skip_special_tokens=False)
        for wanted in (True, False)
    )  # type: ignore[return-value]


def test_only_what_the_assistant_says_counts(chat_tokenizer: Tokenizer, tmp_path: Path) -> None:
    turns = [("user", "Who?"), ("assistant", "Me."), ("user", "Why?"), ("assistant", "Because.")]
    messages = [{"role": role, "content": content} for role, content in turns]
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": messages}) + "\n")
    calibration = load_calibration(chat_tokenizer, file, 1, 256)
    counted, context = _counted(calibration, chat_tokenizer)
    assert "Me." in counted
    assert "Because." in counted
    assert "Who?" in context
    assert "Why?" in context
    assert "Me." not in context
    assert calibration.num_context_tokens + calibration.num_counted_tokens == calibration.num_tokens
    messages[1]["weight"] = 0  # type: ignore[assignment]
    file.write_text(json.dumps({"messages": messages}) + "\n")
    lighter = load_calibration(chat_tokenizer, file, 1, 256)
    assert "Me." in _counted(lighter, chat_tokenizer)[1]
    assert lighter.segments == calibration.segments
    assert lighter.sha256 != calibration.sha256


def test_a_chat_without_an_assistant_counts_whole(chat_tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "Who are you?"}]}) + "\n")
    calibration = load_calibration(chat_tokenizer, file, 1, 64)
    assert calibration.mask is None
    assert calibration.num_context_tokens == 0


def test_masked_rows_change_no_statistics() -> None:
    """Bug 19: context is read, and counts nowhere, in no channel, for no expert."""
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([True, False] * 6)
    seen: list[InputStatistics] = []
    linear = Linear("a", torch.eye(6))

    def keep(linear: Linear, statistics: InputStatistics) -> Linear:
        seen.append(statistics)
        return linear

    y = ObserverOps(keep, mask).linear(x, linear)
    assert torch.equal(y, x)
    ObserverOps(keep).linear(x[mask], linear)
    assert seen[0].num_tokens == seen[1].num_tokens == 6
    for name in ("hessian", "mean_magnitude", "largest_magnitude"):
        assert torch.equal(getattr(seen[0], name), getattr(seen[1], name))
