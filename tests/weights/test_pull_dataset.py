"""hf:ORG/NAME as calibration text, from a stand-in hub on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.core.errors import DownloadError, InvalidField
from octavo.quantize.calibration import load_calibration
from octavo.text.tokenizer import Tokenizer
from octavo.weights.pull_dataset import choose_file, pull_dataset
from octavo.weights.pull_hub import HubFile
from tests.tokenizers import make_byte_tokenizer
from tests.weights.file_server import serving
from tests.weights.hub_site import hub_site

NAME = "tiny-org/tiny-text"
ROWS = "".join(json.dumps({"text": f"Document {number}.", "note": f"Note {number}."}) + "\n" for number in range(20))
FILES = {
    "README.md": b"read me",
    "data/train-00000-of-00002.jsonl": ROWS.encode(),
    "data/train-00001-of-00002.jsonl": b"{}",
    "data/test.jsonl": b'{"text": "kept apart"}',
}


def test_a_split_is_fetched_once_and_then_found_without_a_network(tmp_path: Path) -> None:
    with serving(hub_site(NAME, FILES, "datasets")) as site:
        data = pull_dataset(NAME, directory=tmp_path, endpoint=site.url)
        other = pull_dataset(f"{NAME}:test", directory=tmp_path / "test", endpoint=site.url)
    assert data.path.read_text() == ROWS
    assert other.path.read_bytes() == FILES["data/test.jsonl"]
    assert "file 1 of 2 of split train" in data.title
    assert pull_dataset(NAME, directory=tmp_path, endpoint="http://127.0.0.1:9") == data


def test_it_is_a_source_of_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving(hub_site(NAME, FILES, "datasets")) as site:
        pull_dataset(NAME, endpoint=site.url)
    make_byte_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_directory(tmp_path)
    calibration = load_calibration(tokenizer, f"hf:{NAME}", 2, 64)
    assert calibration.num_documents == 20
    assert tokenizer.decode(calibration.segments[0]) == "Document 0."
    notes = load_calibration(tokenizer, f"hf:{NAME}:train:note", 2, 64)
    assert tokenizer.decode(notes.segments[0]) == "Note 0."
    with pytest.raises(InvalidField, match="the row has text, note"):
        load_calibration(tokenizer, f"hf:{NAME}:train:body", 2, 64)


def _files(*names: str) -> list[HubFile]:
    return [HubFile(name, 10, None) for name in names]


def test_the_file_of_a_split() -> None:
    files = _files("default/train/0000.parquet", "default/test/0000.parquet", "README.md")
    assert choose_file(NAME, files, "test") == (files[1], 1)
    assert choose_file(NAME, _files("all.jsonl"), "train")[0].name == "all.jsonl"
    with pytest.raises(InvalidField, match="default/test/0000"):
        choose_file(NAME, files, "validation")
    with pytest.raises(DownloadError, match=r"only \.csv"):
        choose_file(NAME, _files("a.csv"), "train")


@pytest.mark.parametrize("name", ["org", "org/", "a/b:", "a/b:train:text:more", "a/b:../x"])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(InvalidField, match="hf:"):
        pull_dataset(name)


def test_an_unreachable_hub_says_what_works_without_it(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"copy the text to a \.jsonl"):
        pull_dataset(NAME, directory=tmp_path, endpoint="http://127.0.0.1:9")
