"""Entries to show, and a page as its parser sees it."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from octavo.measure.compare.entry import CheckpointEntry
from octavo.measure.compare.speed import Speed

PROTOCOL = {
    "text": "held-out.txt", "text_sha256": "5e", "joining": "as it is", "window_tokens": 512, "num_windows": 2,
    "num_available_windows": 9, "bos": "none", "num_scored_tokens": 1022, "num_unscored_tail_tokens": 3,
}  # fmt: skip


def an_entry(name: str, num_bytes: int, perplexity: float, divergence: float | None = None, **more: Any) -> Any:
    """An entry with figures; `divergence` None: measured without a base."""
    comparison = None
    if divergence is not None:
        comparison = {
            "base": "source.gguf", "base_perplexity": 10.0, "perplexity_ratio": perplexity / 10,
            "perplexity_ratio_interval": [1.0, 1.2], "mean_divergence": divergence,
            "mean_divergence_interval": [divergence, divergence], "divergence_999": 1.0, "top1_agreement": 0.9,
            "top1_agreement_interval": [0.8, 1.0], "base_bytes": 4000, "base_bits_per_weight": 16.0,
        }  # fmt: skip
    quality = {
        "model": name, "protocol": PROTOCOL, "perplexity": perplexity, "perplexity_interval": [1.0, 99.0],
        "weight_bytes": num_bytes, "bits_per_weight": 4.5, "seconds": 1.0, "caveats": [], "comparison": comparison,
    }  # fmt: skip
    entry = CheckpointEntry(
        name, num_bytes, 4.5, "int4", {"codes": num_bytes - 10, "norms": 10}, quality, "measured now"
    )
    for field, value in more.items():
        setattr(entry, field, value)
    return entry


def a_speed(tokens_per_second: float) -> Speed:
    return Speed(128, 64, 3, 0.05, tokens_per_second, 300 << 20, "NativeExecutor", "bfloat16", 2)


def a_module(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "method": "gptq", "scheme": "int4", "shape": [64, 64], "num_tokens": 512, "damping": 0.01,
        "num_dead_inputs": 0, "error": 0.001, "rtn_error": 0.004, "fallback": None, **more,
    }  # fmt: skip


class PageReader(HTMLParser):
    """Text, attributes and the nesting of a page; raises for tags that do not close in order."""

    _VOID = frozenset({"meta", "line", "circle", "rect", "polyline"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.attributes: list[tuple[str, str, str | None]] = []
        #: For each figure, the tags in it.
        self.figures: list[list[str]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "figure":
            self.figures.append([])
        if "figure" in self.open:
            self.figures[-1].append(tag)
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
