"""One checkpoint's quality by the protocol of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from octavo.core.errors import InvalidField
from octavo.measure.compare.entry import CheckpointEntry
from octavo.measure.evaluate import evaluate, source_name
from octavo.measure.windows import DEFAULT_WINDOW_TOKENS, cut_windows, read_evaluation_text
from octavo.models.load import load_model, open_model_checkpoint
from octavo.models.registry import read_spec
from octavo.quantize.preflight import source_caveats
from octavo.weights.checkpoint import Checkpoint

#: What must be equal for figures of a protocol to stand beside one another. A text's name may differ, its hash not.
PROTOCOL_FIELDS = (
    "text_sha256", "joining", "window_tokens", "num_windows", "bos", "num_scored_tokens", "arithmetic",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class QualityPlan:
    """The same for every checkpoint. `window_tokens` None: 2048, or the shortest context among them."""

    text: str | None = None
    num_windows: int | None = 4
    window_tokens: int | None = None
    against: str | None = None

    def check(self) -> None:
        """Raises `InvalidField` for a text or base that is not there, before anything is measured."""
        read_evaluation_text(self.text)
        if self.num_windows is not None and self.num_windows < 1:
            raise InvalidField("windows", self.num_windows, "at least one")
        if self.against is not None:
            open_model_checkpoint(self.against)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_quality(
    model: str,
    text: str | None,
    num_windows: int | None,
    window_tokens: int,
    against: str | None,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """`QualityReport` of the files of `model`, as a dict."""
    loaded = load_model(model)
    base = None if against is None else load_model(against)
    report = evaluate(
        loaded,
        read_evaluation_text(text),
        base,
        window_tokens=window_tokens,
        num_windows=num_windows,
        caveats=caveats(loaded.checkpoint if base is None else base.checkpoint),
        progress=progress,
    )
    return report.to_dict()


def caveats(checkpoint: Checkpoint) -> list[str]:
    """What must be said wherever a loss against this model is shown."""
    spec = read_spec(checkpoint.config)
    linears = [f"{name}.weight" for block in range(spec.num_layers) for name in spec.linear_names(block)]
    return source_caveats(checkpoint, linears, {name: checkpoint.shape(name) for name in linears})


def common_window_tokens(models: list[str]) -> int:
    """The default length of a window that all models can hold."""
    contexts = [read_spec(open_model_checkpoint(model).config).max_position_embeddings for model in models]
    return min(DEFAULT_WINDOW_TOKENS, *contexts)


def is_by_protocol(entry: CheckpointEntry, model: str, plan: QualityPlan, window_tokens: int) -> bool:
    """Whether the figures in the checkpoint's octavo.json are what measuring it by `plan` would give: the same text,
    windows, tokens and base. The text is tokenized to know."""
    if entry.quality is None:
        return False
    checkpoint = open_model_checkpoint(model)
    _, protocol = cut_windows(checkpoint.tokenizer(), read_evaluation_text(plan.text), window_tokens, plan.num_windows)
    return same_protocol(entry.quality["protocol"], protocol.to_dict()) and _same_base(entry, plan.against)


def same_protocol(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Figures written before `arithmetic` was recorded are float32 ones."""
    return all(one.get(name, "float32") == other.get(name, "float32") for name in PROTOCOL_FIELDS)


def _same_base(entry: CheckpointEntry, against: str | None) -> bool:
    if against is None:
        return True
    base = open_model_checkpoint(against)
    return _base(entry) == (source_name(base), base.num_bytes)


def have_same_protocol(one: CheckpointEntry, other: CheckpointEntry) -> bool:
    """Whether two measured entries may be compared: the same protocol, and the same base or none."""
    assert one.quality is not None
    assert other.quality is not None
    return same_protocol(one.quality["protocol"], other.quality["protocol"]) and _base(one) == _base(other)


def _base(entry: CheckpointEntry) -> tuple[str, int] | None:
    """Name and bytes of what an entry was measured against."""
    comparison = (entry.quality or {}).get("comparison")
    return None if comparison is None else (comparison["base"], comparison["base_bytes"])
