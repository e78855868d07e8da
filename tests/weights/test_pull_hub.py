"""Pulling ORG/NAME through huggingface_hub from a stand-in hub on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.core.errors import DownloadError, InvalidField
from octavo.models import catalog
from octavo.weights.pull_hub import HubFile, HubModel, choose_files, pull_from_hub
from tests.house import ROOT
from tests.weights.file_server import FileServer, Reply, serving
from tests.weights.hub_site import COMMIT, hub_site

NAME = "tiny-org/tiny-model"
WEIGHTS = os.urandom(1_500_000)
FILES = {
    "config.json": b'{"model_type": "x"}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "LICENSE": b"as you like",
    "README.md": b"read me",
    "pytorch_model.bin": b"\x80\x04pickle",
    "onnx/config.json": b"{}",
    "original/consolidated.safetensors": b"0" * 50,
}


def files(*names: str) -> list[HubFile]:
    return [HubFile(name, 10, None) for name in names]


def pull(site: FileServer, directory: Path, revision: str | None = None, name: str = NAME) -> HubModel:
    return pull_from_hub(name, directory, lambda here, total: None, endpoint=site.url, revision=revision)


def fetched(site: FileServer) -> set[str]:
    prefix = f"/{NAME}/resolve/{COMMIT}/"
    return {path.removeprefix(prefix) for method, path, _ in site.requests if method == "GET" and prefix in path}


def test_weights_config_and_tokenizer_are_fetched_and_nothing_else(tmp_path: Path) -> None:
    with serving(hub_site(NAME, FILES)) as site:
        model = pull(site, tmp_path)
    assert model == HubModel(tmp_path, COMMIT) == HubModel.read(tmp_path)
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "LICENSE"}
    assert fetched(site) == wanted
    assert {name: (tmp_path / name).read_bytes() for name in wanted} == {name: FILES[name] for name in wanted}


def test_a_pulled_model_is_found_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving(hub_site(NAME, FILES)) as site:
        path = catalog.pull(NAME, endpoint=site.url)
    assert path == tmp_path / ".cache/octavo/models" / NAME
    assert catalog.resolve(NAME, pull_missing=False) == path
    (path / "tokenizer.json").unlink()
    with pytest.raises(InvalidField, match=f"not on this machine yet: octavo pull {NAME}"):
        catalog.resolve(NAME, pull_missing=False)


def test_one_gguf_is_the_model(tmp_path: Path) -> None:
    with serving(hub_site(NAME, {"tiny.Q4_0.gguf": WEIGHTS, "config.json": b"{}"})) as site:
        model = pull(site, tmp_path)
    assert model.path == tmp_path / "tiny.Q4_0.gguf"
    assert model.path.read_bytes() == WEIGHTS


def test_only_pickles_are_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    refusal = pytest.raises(DownloadError, match=r"only as pickles \(pytorch_model\.bin\)\. Reading a pickle runs")
    with serving(hub_site(NAME, {"pytorch_model.bin": WEIGHTS, "config.json": b"{}"})) as site, refusal:
        pull(site, tmp_path)
    assert fetched(site) == set()


def test_damaged_weights_are_repaired_and_damaged_answers_refused(tmp_path: Path) -> None:
    with serving(hub_site(NAME, FILES)) as site:
        pull(site, tmp_path)
        (tmp_path / "model.safetensors").write_bytes(WEIGHTS[:-1] + b"?")
        pull(site, tmp_path)
        assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
        site.replies[f"/{NAME}/resolve/{COMMIT}/model.safetensors"].body = WEIGHTS[:-1] + b"?"
        with pytest.raises(DownloadError, match=r"model\.safetensors arrived damaged"):
            pull(site, tmp_path / "other")
    assert HubModel.read(tmp_path / "other") is None


def test_a_token_goes_to_the_hub_and_not_to_the_storage_it_points_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    storage = FileServer(replies={"/blob": Reply(WEIGHTS)})
    with serving(hub_site(NAME, FILES)) as site, serving(storage):
        moved = Reply(b"", headers={"Location": f"{storage.url}/blob"}, status=302)
        site.replies[f"/{NAME}/resolve/{COMMIT}/model.safetensors"] = moved
        site.authorization = "Bearer hf_secret"
        pull(site, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert storage.authorizations == {None}


def test_a_killed_pull_goes_on_where_it_was(tmp_path: Path) -> None:
    path = f"/{NAME}/resolve/{COMMIT}/model.safetensors"
    code = (
        "import sys, pathlib; from octavo.weights.pull_hub import pull_from_hub; "
        "pull_from_hub(sys.argv[1], pathlib.Path(sys.argv[2]), lambda *_: None, endpoint=sys.argv[3])"
    )
    with serving(hub_site(NAME, FILES)) as site:
        site.seconds_per_chunk = 0.1
        process = subprocess.Popen([sys.executable, "-c", code, NAME, str(tmp_path), site.url], cwd=ROOT)
        deadline = time.monotonic() + 60
        while _unfinished_bytes(tmp_path) < 100_000:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert HubModel.read(tmp_path) is None
        kept = _unfinished_bytes(tmp_path)
        site.seconds_per_chunk = 0.0
        pull(site, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert site.ranges_of(path) == [None, f"bytes={kept}-"]


def _unfinished_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.part"))


def test_an_unknown_model_and_an_unknown_revision_are_told_apart(tmp_path: Path) -> None:
    with serving(hub_site(NAME, FILES)) as site:
        missing = Reply(b"{}", "application/json", {"X-Error-Code": "RepoNotFound"}, status=404)
        site.replies["/api/models/tiny-org/other"] = missing
        with pytest.raises(DownloadError, match="the hub has no model tiny-org/other"):
            pull(site, tmp_path, name="tiny-org/other")
        missing = Reply(b"{}", "application/json", {"X-Error-Code": "RevisionNotFound"}, status=404)
        site.replies[f"/api/models/{NAME}/revision/v9"] = missing
        with pytest.raises(DownloadError, match="has no revision 'v9'"):
            pull(site, tmp_path, "v9")


def test_an_unreachable_hub_says_what_works_without_it(tmp_path: Path) -> None:
    with serving(FileServer()) as site:
        pass
    with pytest.raises(DownloadError, match=r"(?s)could not be pulled .*Without a network: copy the model's directory"):
        pull(site, tmp_path)


def test_several_ggufs_need_a_choice() -> None:
    several = files("a.Q4_0.gguf", "a.Q8_0.gguf")
    with pytest.raises(InvalidField, match=r"choose one: a\.Q4_0\.gguf \(10 B\), a\.Q8_0\.gguf"):
        choose_files(NAME, several)
    assert choose_files(NAME, several, "*Q8_0*") == [several[1]]
    with pytest.raises(InvalidField, match=r"file: got '\*\.gguf'; must match exactly one"):
        choose_files(NAME, several, "*.gguf")


def test_nothing_to_read_is_told() -> None:
    with pytest.raises(DownloadError, match="neither safetensors nor GGUF"):
        choose_files(NAME, files("README.md", "data.csv"))
