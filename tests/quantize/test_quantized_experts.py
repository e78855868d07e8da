"""Quantizing mixtures of experts: each expert on its own tokens, a starved one too; written, read back, equal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.api import plan_quantization, quantize
from octavo.models.load import load_model
from octavo.numerics.packed_tensor import PackedTensor
from octavo.ops.base import Experts, Linear
from octavo.ops.reference.batch import whole_prompts
from octavo.ops.reference.ops import ReferenceOps
from octavo.quantize.bulk_ops import BulkOps
from octavo.quantize.observer import ObserverOps, lent_rows, num_lent_rows
from octavo.quantize.recipe import Recipe
from octavo.quantize.statistics import InputStatistics
from tests.checkpoints import make_tiny

FAMILIES = ("mixtral", "qwen3-moe")
OPTIONS = {"bits": 4, "group": 32, "measure": None, "say": lambda line: None}
PROMPT = list(range(3, 200, 3))


def starve_the_last(directory: Path) -> None:
    """Router logits become a, -a, b, -b, 0: two of the first four are always above the fifth."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for name, weight in tensors.items():
        if name.endswith("block_sparse_moe.gate.weight"):
            weight[1], weight[3], weight[4] = -weight[0], -weight[2], 0
    save_file(tensors, file, {"format": "pt"})


def observe(directory: Path, prompts: list[list[int]]) -> dict[str, InputStatistics]:
    """The statistics of each linear's input."""
    seen: dict[str, InputStatistics] = {}

    def look(linear: Linear, statistics: InputStatistics) -> Linear:
        seen[linear.name] = statistics
        return linear

    model = load_model(directory).model
    observed = model.forward(ObserverOps(look), whole_prompts(prompts))
    torch.testing.assert_close(observed, model.forward(BulkOps(), whole_prompts(prompts)), rtol=1e-3, atol=1e-3)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_bulk_equals_reference(family: str, tmp_path: Path) -> None:
    model = load_model(make_tiny(family, tmp_path / family)).model
    batch = whole_prompts([PROMPT, [5], PROMPT[:20]])
    expected, found = model.forward(ReferenceOps(), batch), model.forward(BulkOps(), batch)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_each_expert_sees_the_tokens_routed_to_it(tmp_path: Path) -> None:
    """The statistics equal those of the rows that the reference routes; there are enough tokens here for all."""
    directory = make_tiny("mixtral", tmp_path / "m", num_hidden_layers=1, intermediate_size=48, hidden_size=32)
    prompts = [torch.randint(3, 300, (250,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(3)]
    seen = observe(directory, prompts)
    experts = load_model(directory).model.layers[0].mlp
    assert isinstance(experts, Experts)
    assert experts.router.name not in seen
    counts = [seen[mlp.gate.name].num_tokens for mlp in experts.mlps]
    assert sum(counts) == 750 * experts.experts_per_token
    assert max(counts) < 750, "this test needs tokens to differ in their experts"
    for mlp in experts.mlps:
        assert seen[mlp.gate.name] is seen[mlp.up.name]
        assert seen[mlp.gate.name].num_lent_tokens == 0
        assert seen[mlp.down.name].num_tokens == seen[mlp.gate.name].num_tokens


def test_a_starved_expert_is_lent_tokens(tmp_path: Path) -> None:
    directory = make_tiny("mixtral", tmp_path / "m", num_hidden_layers=2)
    starve_the_last(directory)
    seen = observe(directory, [PROMPT * 6])
    statistics = seen["model.layers.0.block_sparse_moe.experts.4.w1"]
    assert (statistics.num_tokens, statistics.num_lent_tokens) == (0, 396), "all there are, fewer than 4 for an input"
    assert bool((statistics.hessian.diagonal() > 0).all())
    first = seen["model.layers.0.block_sparse_moe.experts.0.w1"]
    assert first.num_tokens > 0


def every(num_rows: int) -> torch.Tensor:
    """A mask that counts all rows."""
    return torch.ones(num_rows, dtype=torch.bool)


def test_lent_rows_are_others_and_spread() -> None:
    own = torch.tensor([0, 3, 9])
    assert lent_rows(torch.tensor([0]), torch.arange(6) % 2 == 0, 2).tolist() == [2, 4], "context is not lent"
    assert lent_rows(own, every(10), 0).tolist() == []
    assert lent_rows(own, every(10), 3).tolist() == [1, 4, 6]
    assert lent_rows(own, every(10), 7).tolist() == [1, 2, 4, 5, 6, 7, 8]
    assert lent_rows(torch.empty(0, dtype=torch.int64), every(4), 2).tolist() == [0, 2]
    assert lent_rows(torch.arange(4), every(4), 0).tolist() == []
    assert [num_lent_rows(own, 1000, 100) for own in (0, 99, 100, 500)] == [400, 400, 0, 0]
    assert num_lent_rows(50, 300, 100) == 250


def test_lent_rows_weigh_little() -> None:
    """32 tokens' worth, however many there are."""
    generator = torch.Generator().manual_seed(0)
    own, others = torch.randn(64, 8, generator=generator), torch.randn(5000, 8, generator=generator) * 3
    statistics = InputStatistics(8)
    statistics.add(own)
    statistics.lend(others, 32.0)
    expected = (own.T @ own + others.T @ others * (32 / 5000)) / 96
    torch.testing.assert_close(statistics.hessian, expected, rtol=1e-4, atol=1e-4)
    assert (statistics.num_tokens, statistics.num_lent_tokens) == (64, 5000)


@pytest.mark.parametrize("method", ["gptq", "rtn"])
@pytest.mark.parametrize("family", FAMILIES)
def test_written_and_loaded(family: str, method: str, tmp_path: Path) -> None:
    """Every expert's weights read back near the source's (an expert in another's place would not); routers stay as
    they were; the estimate is the file."""
    source = make_tiny(family, tmp_path / "source")
    recipe = Recipe(method, 8, 32)
    plan = plan_quantization(source, recipe, 4, 64)
    report = quantize(
        source, tmp_path / "out", **{**OPTIONS, "bits": 8, "samples": 4, "sequence_length": 64, "method": method}
    )
    assert "equals ours" in report.verification
    assert plan.output_bytes == pytest.approx(report.output_bytes, rel=0.03)
    before, after = load_model(source), load_model(tmp_path / "out")
    names = [name for index in range(before.spec.num_layers) for name in before.spec.linear_names(index)]
    assert {module.name for module in report.modules} >= set(names)
    assert all(module.error < 1e-3 for module in report.modules)
    for old, new in zip(before.model.layers, after.model.layers, strict=True):
        if isinstance(old.mlp, Experts):
            assert isinstance(new.mlp, Experts)
            assert torch.equal(old.mlp.router.weight, new.mlp.router.weight)
        for source_linear, linear in zip(old.linears(), new.linears(), strict=True):
            assert isinstance(linear.weight, PackedTensor)
            difference = linear.weight.dequantize() - source_linear.weight
            assert difference.square().mean() < 1e-3 * source_linear.weight.square().mean(), linear.name


def test_gptq_of_a_starved_model_says_so(tmp_path: Path) -> None:
    """Before (from averages), and after (from counts); no scale is zero or NaN, and the expert still computes."""
    source = make_tiny("mixtral", tmp_path / "source")
    starve_the_last(source)
    plan = plan_quantization(source, Recipe("gptq", 4, 32), 2, 64)
    assert "about 51 of the 128 calibration tokens, fewer than its 160 inputs" in plan.notes[0]
    assert "400 tokens" in plan.notes[0]
    report = quantize(source, tmp_path / "out", **OPTIONS, samples=2, sequence_length=64)
    assert any("fewest of its own: 0 (model.layers.0.block_sparse_moe.experts." in note for note in report.all_notes)
    starved = next(module for module in report.modules if module.name.endswith("0.block_sparse_moe.experts.4.w1"))
    assert starved.num_tokens == 0 < starved.num_lent_tokens
    assert starved.method == "gptq"
    weight = load_model(tmp_path / "out").model.layers[0].mlps[4].gate.weight.dequantize()
    original = load_model(source).model.layers[0].mlps[4].gate.weight
    assert (weight - original).square().mean() < 0.05 * original.square().mean()
    assert not any(
        "calibration tokens" in note for note in plan_quantization(source, Recipe("rtn", 4, 32), 2, 64).notes
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_quantized_experts(family: str, tmp_path: Path) -> None:
    """It decodes experts in the scales' dtype: with float32 scales its logits are ours."""
    transformers = pytest.importorskip("transformers")
    options = {**OPTIONS, "method": "rtn", "scale_dtype": "float32"}
    quantize(make_tiny(family, tmp_path / "source"), tmp_path / "out", **options)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = theirs(torch.tensor([PROMPT])).logits[0]
        found = load_model(tmp_path / "out").model.forward(ReferenceOps(), whole_prompts([PROMPT]))
    assert (found - expected).abs().max() < 1e-3
