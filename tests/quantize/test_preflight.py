"""Pre-flight: impossible targets are refused at once (bug Q1), the estimate is the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.api import plan_quantization, quantize
from octavo.core.errors import CapacityError, InvalidField
from octavo.models.spec import LayerSpec, ModelSpec, RopeSpec
from octavo.quantize import preflight as room
from octavo.quantize.preflight import preflight
from octavo.quantize.recipe import Recipe
from octavo.weights.checkpoint import Checkpoint

MODEL = Path(__file__).parents[2].parent / "shared" / "data" / "models" / "stories260k"


class _Shapes(Checkpoint):
    """SmolLM2-135M's shapes (two layers), without weights: pre-flight must read none."""

    def __init__(self, hidden: int = 576, intermediate: int = 1536, bytes_per_weight: float = 2) -> None:
        self.config = {}
        self.source = Path("smollm2")
        self.bytes_per_weight = bytes_per_weight
        self.shapes = {"model.embed_tokens.weight": (49152, hidden), "model.norm.weight": (hidden,)}
        sizes = (hidden, 192, 192, hidden, intermediate, intermediate, hidden)
        for block in range(2):
            for name, outputs in zip(SPEC.linear_names(block), sizes, strict=True):
                inputs = intermediate if name.endswith("down_proj") else hidden
                self.shapes[f"{name}.weight"] = (outputs, inputs)

    def names(self) -> list[str]:
        return sorted(self.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def tensor_bytes(self, name: str) -> int:
        return int(torch.Size(self.shapes[name]).numel() * self.bytes_per_weight)

    @property
    def num_bytes(self) -> int:
        return sum(map(self.tensor_bytes, self.shapes))

    def get(self, name: str) -> torch.Tensor:
        raise AssertionError("pre-flight read a weight")

    def tokenizer(self) -> object:
        raise AssertionError("pre-flight read the tokenizer")


SPEC = ModelSpec(
    family="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_position_embeddings=8192,
    norm_eps=1e-5,
    attention_scale=0.125,
    layers=(LayerSpec(None, RopeSpec(1e5, 64)),) * 2,
    tied_embedding=True,
)


@pytest.mark.parametrize("method", ["gptq", "rtn"])
@pytest.mark.parametrize("group", [128, 256])
def test_group_that_does_not_divide_is_refused_with_what_works(method: str, group: int) -> None:
    """Q1: 576 = 4.5 x 128 = 2.25 x 256, while the FFN's 1536 divides by both."""
    with pytest.raises(InvalidField) as caught:
        preflight(SPEC, _Shapes(), Recipe(method, 4, group), 16384)
    text = str(caught.value)
    assert "576" in text
    assert "model.layers.0.mlp.gate_proj" in text
    assert "16, 32, 64 works" in text
    preflight(SPEC, _Shapes(), Recipe(method, 4, 64), 16384)


def test_embedding_has_its_own_scheme_and_counts() -> None:
    plans = {bits: preflight(SPEC, _Shapes(), Recipe("rtn", 4, 64, embedding_bits=bits), 0) for bits in (16, 8, 4)}
    assert plans[16].bits_per_weight > plans[8].bits_per_weight > plans[4].bits_per_weight
    assert 4.2 < plans[4].bits_per_weight < 4.4
    embedding = {bits: next(t for t in plan.tensors if "embed" in t.name) for bits, plan in plans.items()}
    assert embedding[16].scheme is None
    assert str(embedding[8].scheme) == "int8 symmetric per channel"
    assert str(embedding[4].scheme) == "int4 symmetric group 64"


def test_a_source_that_was_quantized_before_carries_a_caveat() -> None:
    assert preflight(SPEC, _Shapes(), Recipe(), 16384).caveats == []
    caveats = preflight(SPEC, _Shapes(bytes_per_weight=5 / 8), Recipe(), 16384).caveats
    assert "5.00 bits per weight" in caveats[0]


def test_too_little_memory_is_refused_with_both_figures() -> None:
    with pytest.raises(CapacityError, match=r"needs about .*TiB.* is available"):
        room._check_memory(1 << 50)


@pytest.mark.skipif(not MODEL.exists(), reason="needs ../shared/data/models/stories260k")
@pytest.mark.parametrize("symmetric", [True, False])
def test_estimated_bytes_are_the_files_bytes(tmp_path: Path, symmetric: bool) -> None:
    plan = plan_quantization(MODEL, Recipe("rtn", 3, None, symmetric))
    lines: list[str] = []
    report = quantize(
        MODEL, tmp_path / "m", method="rtn", bits=3, group=None, symmetric=symmetric, measure=None, say=lines.append
    )
    actual = (tmp_path / "m" / "model.safetensors").stat().st_size
    assert report.output_bytes == actual
    assert plan.output_bytes == pytest.approx(actual, rel=0.02)
    assert (tmp_path / "m" / "octavo.json").exists()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"method": "awq"}, "method"),
        ({"bits": 5}, "bits"),
        ({"group": 48}, "group"),
        ({"embedding_bits": 5}, "embed"),
        ({"scheme": "fp8", "bits": 3}, "bits"),
        ({"scheme": "nvfp4", "symmetric": False}, "symmetric"),
        ({"scheme": "w8a8", "group": 32}, "group"),
        ({"smoothing": 0.5}, "smoothing"),
        ({"rotation_block": 32}, "rotation_block"),
        ({"rotation_block": 0, "transforms": ("rotate",)}, "rotation_block"),
        ({"train": "all"}, "train"),
        ({"steps": 30}, "steps"),
        ({"method": "rtn", "damping": 0.1}, "damping"),
        ({"method": "rtn", "act_order": False}, "act_order"),
        ({"seed": 3}, "seed"),
    ],
)
def test_recipes_that_cannot_be_honoured_are_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidField, match=named):
        Recipe(**fields)


def test_what_other_engines_will_not_take_is_said_before_the_work() -> None:
    """Users' cases 7 and 8: told from shapes, by the pre-flight and not by a server that does not start."""
    notes = " ".join(preflight(SPEC, _Shapes(), Recipe("rtn", 4, 64), 0).notes)
    assert "vLLM's Marlin kernels take inputs that divide by 128" in notes
    assert "tensor parallelism that keeps groups whole" in notes
    assert not preflight(SPEC, _Shapes(), Recipe("rtn", scheme="fp8"), 0).notes
