"""Tokenizers of each kind: byte level, SentencePiece with byte fallback, and the real models' where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.text.tokenizer import Tokenizer
from tests.tokenizers import make_byte_tokenizer

SHARED = Path(__file__).parents[2].parent / "shared"
STORIES = SHARED / "data" / "models" / "stories260k"
_GGUF_FILES = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma*.gguf"}
_GGUF_PLACES = (Path.home() / ".cache" / "octavo", Path("/tmp/smol"), Path("/tmp/gem"))


@pytest.fixture(scope="session")
def byte_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_byte_tokenizer(tmp_path_factory.mktemp("byte"))


@pytest.fixture(scope="session")
def byte_tokenizer(byte_directory: Path) -> Tokenizer:
    return Tokenizer.from_directory(byte_directory)


@pytest.fixture(scope="session")
def stories_directory() -> Path:
    if not STORIES.is_dir():
        pytest.skip("needs ../shared/data/models/stories260k")
    return STORIES


@pytest.fixture(scope="session")
def stories_tokenizer(stories_directory: Path) -> Tokenizer:
    return Tokenizer.from_directory(stories_directory)


@pytest.fixture(scope="session")
def real_texts() -> list[str]:
    """Pieces of English, Chinese, code, law, stories and wiki text, and texts with odd characters."""
    texts = [
        "Hi 🎈🪁 Ærø 東京  two   spaces\t\ttabs\n\n\n12345 6.78\r\n",
        "<html><h1> x </h1>   \u200b",
        "   lead",
        "",
        "\n",
        "é e\u0301",
        "a\x00b",
        "I'm we'LL don't",
        "x = {'a': [1, 22, 333]}  # 4444\n\treturn x",
    ]
    for path in sorted([*SHARED.glob("data/domain/*.eval.txt"), *SHARED.glob("data/text/*.txt")]):
        content = path.read_text(encoding="utf-8")[:4500]
        texts += [content[start : start + 1500] for start in range(0, len(content), 1500)]
    return texts


def gguf_path(model: str) -> Path:
    """The real model's GGUF file; skips the test where it was not pulled."""
    for place in _GGUF_PLACES:
        for path in sorted(place.rglob(_GGUF_FILES[model])) if place.is_dir() else ():
            return path
    pytest.skip(f"needs {_GGUF_FILES[model]}; pull the model")


def gguf_metadata(path: Path) -> dict[str, Any]:
    from octavo.weights.gguf_file import GgufFile

    return GgufFile(path).metadata


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(gguf_metadata(gguf_path("smollm2")))
