"""Calibration text, packed: the windows that every method looks at, and an account of what is in them.

A window holds at most `sequence_length` tokens in segments: whole documents, whole turns of a chat, or a stretch of
a longer text. Each segment is a sequence of its own (attention never crosses documents, there is no padding), and
starts with BOS if the tokenizer adds one. What is not used is counted.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core.errors import InvalidField
from octavo.quantize.calibration_sources import CalibrationSource, bos_prefix, parse_sources, read_documents
from octavo.quantize.calibration_windows import (
    MIN_SEGMENT_TOKENS,
    Segment,
    Window,
    interleave,
    pack,
    share_out,
    spread,
)

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """What became of one source. `num_context_tokens` of the `num_tokens` are read by the model and counted in no
    statistics (the other side of a chat); `num_split_turns` turns were longer than a window."""

    source: str
    weight: float
    num_documents: int
    num_requested_windows: int
    num_windows: int
    num_tokens: int
    num_context_tokens: int
    num_unused_tokens: int
    num_split_turns: int

    def __str__(self) -> str:
        context = f" ({self.num_context_tokens:,} of them context)" if self.num_context_tokens else ""
        split = f"; {self.num_split_turns} turns longer than a window were cut" if self.num_split_turns else ""
        return (
            f"{self.source}: {self.num_windows} windows, {self.num_tokens:,} tokens{context} of "
            f"{self.num_documents:,} documents; {self.num_unused_tokens:,} tokens not used{split}"
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """Packed calibration tokens. `packed[i]` are the segments of one window."""

    packed: list[Window]
    sequence_length: int
    num_requested_windows: int
    sources: list[SourceCounts]

    @property
    def source(self) -> str:
        return ", ".join(counts.source for counts in self.sources)

    @property
    def windows(self) -> list[list[list[int]]]:
        """The segments' tokens, window by window."""
        return [[segment.tokens for segment in window] for window in self.packed]

    @property
    def segments(self) -> list[list[int]]:
        return [segment for window in self.windows for segment in window]

    @property
    def mask(self) -> Tensor | None:
        """Bool `[tokens]`, all segments one after the other: which tokens statistics count. None: all of them."""
        if not self.num_context_tokens:
            return None
        import torch

        return torch.tensor([counts for window in self.packed for segment in window for counts in segment.counts])

    def sample(self, num_tokens: int) -> tuple[list[list[int]], Tensor | None]:
        """(segments of some windows at even distances, about `num_tokens` in all, which of their tokens count)."""
        import torch

        windows = spread(self.packed, max(1, num_tokens // self.sequence_length))
        chosen = [segment for window in windows for segment in window]
        counts = [each for segment in chosen for each in segment.counts]
        return [segment.tokens for segment in chosen], None if all(counts) else torch.tensor(counts)

    @property
    def num_tokens(self) -> int:
        return sum(counts.num_tokens for counts in self.sources)

    @property
    def num_context_tokens(self) -> int:
        return sum(counts.num_context_tokens for counts in self.sources)

    @property
    def num_counted_tokens(self) -> int:
        return self.num_tokens - self.num_context_tokens

    @property
    def num_documents(self) -> int:
        return sum(counts.num_documents for counts in self.sources)

    @property
    def num_unused_tokens(self) -> int:
        return sum(counts.num_unused_tokens for counts in self.sources)

    @property
    def num_split_turns(self) -> int:
        return sum(counts.num_split_turns for counts in self.sources)

    @property
    def num_masked_positions(self) -> int:
        """Positions of the windows that hold no token: a turn or document that did not fit began the next one."""
        return len(self.packed) * self.sequence_length - self.num_tokens

    @property
    def sha256(self) -> str:
        """Of the tokens, the cuts between segments, and which tokens count."""
        digest = hashlib.sha256()
        for segment in (segment for window in self.packed for segment in window):
            digest.update(array("q", [len(segment), *segment.tokens]).tobytes())
            if not all(segment.counts):
                digest.update(bytes(segment.counts))
        return digest.hexdigest()

    def warnings(self, widest_input: int) -> list[str]:
        """What a user should hear before work starts. `widest_input` features enter the widest linear."""
        lines = [
            f"{each.source} fills {each.num_windows} of its {each.num_requested_windows} windows; nothing replaces them"
            for each in self.sources
            if each.num_windows < each.num_requested_windows
        ]
        if self.num_counted_tokens < 4 * widest_input:
            lines.append(f"{self.num_counted_tokens} calibration tokens are few for {widest_input} inputs")
        return lines

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "sources": [asdict(counts) for counts in self.sources],
            "num_windows": len(self.packed),
            "num_requested_windows": self.num_requested_windows,
            "sequence_length": self.sequence_length,
            "num_segments": len(self.segments),
            "num_tokens": self.num_tokens,
            "num_context_tokens": self.num_context_tokens,
            "num_documents": self.num_documents,
            "num_unused_tokens": self.num_unused_tokens,
            "num_masked_positions": self.num_masked_positions,
            "num_split_turns": self.num_split_turns,
            "sha256": self.sha256,
        }


def load_calibration(
    tokenizer: Tokenizer,
    sources: str | Path | Sequence[str | Path] | None = None,
    num_windows: int = 32,
    sequence_length: int = 512,
) -> Calibration:
    """Read and pack calibration text (`calibration_sources` says what a source may be); None is the built-in text.

    Windows are shared out by the sources' weights, spread evenly over each and interleaved. A source with less text
    than its share gives fewer windows, and the numbers say so. Raises `InvalidField` for an unreadable, empty or
    malformed source, and for one whose share is no whole window.
    """
    if num_windows < 1:
        raise InvalidField("samples", num_windows, "at least one window is needed")
    if sequence_length < MIN_SEGMENT_TOKENS:
        raise InvalidField("sequence_length", sequence_length, f"at least {MIN_SEGMENT_TOKENS} tokens")
    parsed = parse_sources(sources)
    shares = share_out(num_windows, [source.weight for source in parsed])
    for source, share in zip(parsed, shares, strict=True):
        if share == 0:
            expected = f"its weight {source.weight:g} is not one of {num_windows} windows; ask for more samples"
            raise InvalidField("calibration", source.name, expected)
    packed, counts = [], []
    for source, share in zip(parsed, shares, strict=True):
        windows, numbers = _pack_source(source, share, tokenizer, sequence_length)
        packed.append(windows)
        counts.append(numbers)
    return Calibration(interleave(packed), sequence_length, num_windows, counts)


def _pack_source(
    source: CalibrationSource, num_windows: int, tokenizer: Tokenizer, length: int
) -> tuple[list[Window], SourceCounts]:
    documents, title = read_documents(source, tokenizer)
    windows, num_split = pack(documents, bos_prefix(tokenizer), length)
    chosen = spread(windows, num_windows)
    num_all, num_used = (sum(map(len, _segments(group))) for group in (windows, chosen))
    num_context = sum(segment.counts.count(False) for segment in _segments(chosen))
    if num_context == num_used:
        expected = f"none of its {num_used} tokens counts: every assistant turn that was chosen has weight 0"
        raise InvalidField("calibration", source.name, expected)
    counts = SourceCounts(
        source=title,
        weight=source.weight,
        num_documents=len(documents),
        num_requested_windows=num_windows,
        num_windows=len(chosen),
        num_tokens=num_used,
        num_context_tokens=num_context,
        num_unused_tokens=num_all - num_used,
        num_split_turns=num_split,
    )
    return chosen, counts


def _segments(windows: Iterable[Window]) -> Iterable[Segment]:
    return (segment for window in windows for segment in window)
