"""The small files beside the weights that make a model usable: tokenizer, chat template, generation settings."""

from __future__ import annotations

from pathlib import Path

COMPANION_NAMES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


def read_companion_files(source: Path) -> dict[str, bytes]:
    """Name -> content of those that stand beside the weights; empty for a single file such as a GGUF."""
    if not source.is_dir():
        return {}
    return {name: (source / name).read_bytes() for name in COMPANION_NAMES if (source / name).is_file()}
