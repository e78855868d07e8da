"""Finding a wheel where pip would: pip's own settings, the simple repository API (PEP 503, PEP 691), find-links."""

from __future__ import annotations

import ast
import json
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from octavo.core.errors import DownloadError
from octavo.weights.download import open_url

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """What pip is configured to do. Indexes and links are URLs or local paths, in the order they are asked."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    certificates: str | None = None
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ()

    @classmethod
    def from_pip(cls) -> IndexSettings:
        """The settings of the pip of this Python, its files and variables included. Raises `DownloadError`
        without a pip."""
        values: dict[str, str] = {}
        by_origin = _pip_config()
        for section in ("global", "download", ":env:"):  # later ones win, as in pip
            values.update({key: value for (origin, key), value in by_origin.items() if origin == section})
        indexes = [] if values.get("no-index", "").lower() in ("1", "true", "yes", "on") else _indexes(values)
        return cls(
            tuple(indexes),
            tuple(values.get("find-links", "").split()),
            values.get("cert"),
            values.get("proxy"),
            tuple(values.get("trusted-host", "").split()),
        )

    def opener(self) -> urllib.request.OpenerDirector:
        """An opener that trusts what pip trusts and goes through pip's proxy."""
        handlers: list[urllib.request.BaseHandler] = [_Https(self)]
        if self.proxy:
            handlers.append(urllib.request.ProxyHandler({"http": self.proxy, "https": self.proxy}))
        return urllib.request.build_opener(*handlers)

    def find(self, package: str, file_name: str, opener: urllib.request.OpenerDirector) -> str:
        """The URL of one file of `package`. Raises `DownloadError` that lists where it was sought and why not found."""
        tried = []
        name = re.sub(r"[-_.]+", "-", package).lower()
        pages = [*self.find_links, *(f"{index.rstrip('/')}/{name}/" for index in self.indexes)]
        for page in pages:
            try:
                for found, url in _links(page, opener):
                    if found == file_name:
                        return _with_credentials(url, page)
                tried.append(f"{_shown(page)}: no {file_name}")
            except (OSError, ValueError) as error:
                tried.append(f"{_shown(page)}: {getattr(error, 'reason', None) or error}")
        raise DownloadError(f"no {file_name} where pip looks:\n  " + "\n  ".join(tried or ["pip has no index"]))


class _Https(urllib.request.HTTPSHandler):
    """HTTPS with pip's certificates, none asked of trusted hosts, and the user name and password of a URL."""

    def __init__(self, settings: IndexSettings) -> None:
        self._checked = ssl.create_default_context(cafile=settings.certificates)
        self._unchecked = ssl.create_default_context()
        self._unchecked.check_hostname = False
        self._unchecked.verify_mode = ssl.CERT_NONE
        self._trusted_hosts = settings.trusted_hosts
        super().__init__(context=self._checked)

    def https_open(self, request: urllib.request.Request) -> Any:
        trusted = {request.host, request.host.split(":")[0]} & set(self._trusted_hosts)
        self._context = self._unchecked if trusted else self._checked
        return super().https_open(request)


def _pip(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise DownloadError(
            f"pip, which knows where packages come from, does not run: {reason[0]} (python -m ensurepip brings it)"
        )
    return done.stdout


def _pip_config() -> dict[tuple[str, str], str]:
    """(section, key) -> value, as `pip config list` prints them: `global.index-url='...'`."""
    values = {}
    for line in _pip("config", "list").splitlines():
        found = re.fullmatch(r"([^.=]+)\.([^=]+)=(.*)", line.strip())
        if found:
            values[found[1], found[2]] = str(ast.literal_eval(found[3]))
    return values


def _indexes(values: dict[str, str]) -> list[str]:
    return [values.get("index-url") or _default_index(), *values.get("extra-index-url", "").split()]


def _default_index() -> str:
    """The index pip uses when nothing is configured, from its own help text."""
    found = re.search(r"--index-url.*?\(default\s+(\S+?)\)", _pip("download", "--help"), re.DOTALL)
    if found is None:
        raise DownloadError("pip does not say which index it uses; set one: pip config set global.index-url URL")
    return found[1]


def _links(page: str, opener: urllib.request.OpenerDirector) -> Iterator[tuple[str, str]]:
    """(file name, URL) of each file that a page or a local folder offers."""
    folder = Path(unquote(urlsplit(page).path))
    if urlsplit(page).scheme in ("", "file") and folder.is_dir():
        index = folder / "index.html"
        if not index.exists():
            yield from ((path.name, path.resolve().as_uri()) for path in folder.iterdir())
            return
        page = index.resolve().as_uri()
    elif urlsplit(page).scheme == "":
        page = folder.resolve().as_uri()
    with open_url(page, opener, {"Accept": _ACCEPT}) as response:
        content, kind, base = response.read(), response.headers.get_content_type(), response.geturl()
    if kind.endswith("+json"):
        for file in json.loads(content)["files"]:
            yield file["filename"], urljoin(base, file["url"])
    else:
        anchors = _Anchors()
        anchors.feed(content.decode("utf-8", "replace"))
        for target in anchors.targets:
            url = urljoin(anchors.base or base, target).partition("#")[0]
            yield unquote(urlsplit(url).path.rpartition("/")[2]), url


class _Anchors(HTMLParser):
    """The targets of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.base: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        target = dict(attributes).get("href")
        if tag == "a" and target:
            self.targets.append(target)
        elif tag == "base" and target:
            self.base = target


def _with_credentials(url: str, page: str) -> str:
    """`url` with the user name and password of the page that links to it, if both are on one host (as pip does)."""
    file, index = urlsplit(url), urlsplit(page)
    if index.username is None or file.username is not None or file.hostname != index.hostname:
        return url
    return urlunsplit(file._replace(netloc=f"{index.netloc.rpartition('@')[0]}@{file.netloc}"))


def _shown(page: str) -> str:
    """A URL without its password."""
    parts = urlsplit(page)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
