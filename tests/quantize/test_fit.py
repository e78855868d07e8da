"""Mixed precision: estimates against what they estimate, a file no larger than its budget and better than uniform."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.api import Measurement, evaluate, fit, quantize
from octavo.core.errors import InvalidField
from octavo.measure.fit import Budget, Fit, ProxyCheck
from octavo.measure.fit_estimates import make_fit_table
from octavo.measure.fit_search import search_budget
from octavo.measure.fit_table import FitTable
from octavo.measure.perturbation import PerturbationMeter, rank_correlation
from octavo.models.decoder import DecoderModel, decoder_layer
from octavo.models.load import LoadedModel, load_model
from octavo.numerics.packed_tensor import PackedTensor
from octavo.numerics.scheme import IntegerScheme
from octavo.ops.base import Linear
from octavo.ops.reference.batch import whole_prompts
from octavo.quantize.calibrate import calibrate
from octavo.quantize.calibration import load_calibration
from octavo.quantize.module_groups import block_groups
from octavo.quantize.options import group_errors, linear_schemes
from octavo.quantize.recipe import Recipe
from octavo.quantize.sensitivity import measure_sensitivities
from octavo.quantize.training_ops import TrainingOps
from tests.checkpoints import make_tiny

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
MODEL, TEXT = SHARED / "models" / "stories260k", SHARED / "text" / "tinystories-sample.txt"
needs_model = pytest.mark.skipif(not MODEL.exists(), reason="needs ../shared/data/models/stories260k")

SILENT: dict[str, Any] = {"say": lambda line: None}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(for calibration, for measuring)."""
    directory, text = tmp_path_factory.mktemp("texts"), TEXT.read_text()
    files = directory / "calibration.txt", directory / "held-out.txt"
    for file, part in zip(files, (text[:24_000], text[-24_000:]), strict=True):
        file.write_text(part)
    return files


@pytest.fixture(scope="module")
def options(texts: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Arguments of every run on the trained model; all share the statistics of the first."""
    measure = Measurement(texts[1], 2, 256)
    text = {"calibration": texts[0], "samples": 12, "sequence_length": 256}
    return {**text, "measure": measure, "statistics": tmp_path_factory.mktemp("statistics") / "s", **SILENT}


@pytest.fixture(scope="module")
def table(options: dict[str, Any]) -> FitTable:
    loaded = load_model(MODEL)
    calibration = load_calibration(loaded.tokenizer, options["calibration"], 12, 256)
    cache = calibrate(loaded, calibration, options["statistics"])
    return make_fit_table(loaded, calibration, cache, Recipe(), True, lambda stage, done, total: None)


def _outputs(model: DecoderModel, segments: list[list[int]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Sum of squared gradients of each linear's outputs, by one graph over the whole model."""
    kept: dict[str, torch.Tensor] = {}

    class Ops(TrainingOps):
        def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
            y = super().linear(x, linear)
            if y.requires_grad and linear.name != model.head.name:
                y.retain_grad()
                kept[linear.name] = y
            return y

    batch, ops = whole_prompts(segments), Ops({})
    x = ops.embed(model.embedding, batch).requires_grad_()
    for layer in model.layers:
        x = decoder_layer(ops, layer, x, batch)
    log_p = torch.log_softmax(model.finish(ops, x, batch), -1)
    drawn = torch.multinomial(log_p.detach().exp(), 1, generator=torch.Generator().manual_seed(0))
    (-log_p.gather(1, drawn).sum()).backward()
    for name, y in kept.items():
        assert y.grad is not None
        yield name, y.grad.square().sum(0) / batch.num_rows


@pytest.mark.parametrize("family", ["llama-tied", "gemma3", "qwen3-moe"])
def test_gradients_block_by_block_are_those_of_the_whole_graph(tmp_path: Path, family: str) -> None:
    model = load_model(make_tiny(family, tmp_path)).model
    segments = [list(range(5, 45)), list(range(60, 90))]
    found = measure_sensitivities(model, segments)
    for name, expected in _outputs(model, segments):
        torch.testing.assert_close(found[name], expected, rtol=1e-3, atol=1e-7 * float(expected.max() + 1))


@needs_model
def test_small_errors_cost_what_is_expected(options: dict[str, Any]) -> None:
    """Noise in one linear at a time: the second-order KL is the measured one, to a factor of two."""
    loaded = load_model(MODEL)
    segments, _ = load_calibration(loaded.tokenizer, options["calibration"], 8, 256).sample(2048)
    sensitivities, meter = measure_sensitivities(loaded.model, segments), PerturbationMeter(loaded.model, segments)
    generator = torch.Generator().manual_seed(0)
    layer = loaded.model.layers[2]
    for linear in (layer.v, layer.o, layer.mlp.down):  # type: ignore[union-attr]
        codes = torch.randint(-2, 2, linear.weight.shape, generator=generator)
        noise = PackedTensor.from_codes(
            codes.to(torch.int8), torch.full((linear.num_outputs, 1), 0.01), None, IntegerScheme(2)
        )
        changed = _Sum(linear.weight, noise)
        measured = meter.linears(2, {linear.name: changed})  # type: ignore[dict-item]
        inputs = _inputs_of(loaded, segments, linear.name)
        rows = (inputs @ noise.dequantize().T).square().mean(0)
        expected = 0.5 * float((sensitivities[linear.name] * rows).sum())
        assert expected / 2 < measured < expected * 2


class _Sum:
    """A matrix and noise."""

    def __init__(self, weight: torch.Tensor, noise: PackedTensor) -> None:
        self._sum = weight + noise.dequantize()

    def dequantize(self) -> torch.Tensor:
        return self._sum


def _inputs_of(loaded: LoadedModel, segments: list[list[int]], name: str) -> torch.Tensor:
    seen: dict[str, torch.Tensor] = {}

    class Ops(TrainingOps):
        def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
            seen[linear.name] = x
            return super().linear(x, linear)

    loaded.model.forward(Ops({}), whole_prompts(segments))
    return seen[name]


def test_fused_members_are_one_group(tmp_path: Path) -> None:
    """Case 22: q, k, v and gate, up, and all experts of a layer."""
    layers = load_model(make_tiny("qwen3-moe", tmp_path)).model.layers
    roles = [[group.role for group, _ in block_groups(layer)] for layer in layers]
    assert roles == [["q k v", "o", "experts"], ["q k v", "o", "gate up", "down"], ["q k v", "o", "experts"]]
    for layer in layers:
        names = [name for group, _ in block_groups(layer) for name in group.modules]
        assert sorted(names) == sorted(linear.name for linear in layer.linears())


@needs_model
def test_a_sample_of_rows_tells_what_all_would(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model(MODEL)
    calibration = load_calibration(loaded.tokenizer, options["calibration"], 12, 256)
    cache = calibrate(loaded, calibration, options["statistics"])
    segments, _ = calibration.sample(1024)
    sensitivities, layer = measure_sensitivities(loaded.model, segments), loaded.model.layers[1]
    linears = [layer.mlp.gate, layer.mlp.up]  # type: ignore[union-attr]
    schemes = linear_schemes([64, 64], False)
    arguments = (linears, cache.block(1), sensitivities, schemes, Recipe())
    monkeypatch.setattr("octavo.quantize.options.SAMPLED_ROWS", 64)
    sampled = group_errors(*arguments)
    monkeypatch.setattr("octavo.quantize.options.SAMPLED_ROWS", 10_000)
    for estimate, exact in zip(sampled, group_errors(*arguments), strict=True):
        assert estimate == pytest.approx(exact, rel=0.25)


def test_schemes_that_are_offered_fit_the_inputs() -> None:
    assert all(172 % (scheme.group_size or 1) == 0 for scheme in linear_schemes([172], True))
    offered = linear_schemes([576], True)
    assert {scheme.bits for scheme in offered} == {2, 3, 4, 8}
    assert not any(scheme.group_size == 128 for scheme in offered)
    assert all(scheme.symmetric for scheme in linear_schemes([576], False))


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 40]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 2, 4], [1, 3, 2, 4]) == pytest.approx(0.9487, abs=1e-4)  # ties share a rank


@needs_model
def test_estimates_rank_changes_as_measuring_does(table: FitTable) -> None:
    assert len(table.check.changes) == 12
    assert table.check.rank_correlation > 0.7


@needs_model
def test_more_bytes_are_never_worse(table: FitTable) -> None:
    budgets = torch.linspace(table.smallest_bytes, table.largest_bytes, 8).long().tolist()
    fits = [table.fit(budget + 1) for budget in budgets[:-1]]
    assert all(fit.file_bytes <= fit.budget_bytes for fit in fits)
    errors = [fit.expected_divergence for fit in fits]
    assert errors == sorted(errors, reverse=True)


@needs_model
@pytest.mark.parametrize(("bits", "share"), [(3, 0.8), pytest.param(4, 0.9, marks=pytest.mark.slow)])
def test_the_file_has_the_bytes_of_its_budget_and_beats_uniform(
    table: FitTable, options: dict[str, Any], texts: tuple[Path, Path], tmp_path: Path, bits: int, share: float
) -> None:
    uniform = {name: value for name, value in options.items() if name != "statistics"}
    plain = quantize(MODEL, tmp_path / "uniform", bits=bits, group=None, **uniform)
    size = (tmp_path / "uniform" / "model.safetensors").stat().st_size
    report = fit(MODEL, tmp_path / "fit", num_bytes=size, **options)
    written = (tmp_path / "fit" / "model.safetensors").stat().st_size
    assert written == report.fit.file_bytes == report.quantization.output_bytes
    assert 0.99 * size < written <= size
    assert report.quantization.verification.startswith("compressed-tensors")
    ours, theirs = (each.quality["comparison"]["mean_divergence"] for each in (report.quantization, plain))
    assert ours < share * theirs
    again = evaluate(tmp_path / "fit", texts[1], against=MODEL, windows=2, window_tokens=256)
    assert again.comparison is not None
    assert again.comparison.mean_divergence == ours, "case 25: what is reported is of the file"
    assert report.to_dict()["fit"]["check"]["rank_correlation"] == table.check.rank_correlation


@needs_model
def test_bits_per_weight_count_the_whole_file(options: dict[str, Any], tmp_path: Path) -> None:
    report = fit(MODEL, tmp_path / "fit", bits_per_weight=3.5, **{**options, "measure": None})
    assert 3.45 < report.quantization.bits_per_weight <= 3.5


@needs_model
def test_the_smallest_file_within_a_loss(options: dict[str, Any], tmp_path: Path) -> None:
    report = fit(MODEL, tmp_path / "fit", max_divergence=0.2, **options)
    assert report.quantization.quality is not None
    found = report.quantization.quality["comparison"]["mean_divergence"]
    assert found <= 0.2
    assert all(each.divergence > 0.2 for each in report.tried if each.fit.file_bytes < report.fit.file_bytes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fit"]
    assert '"output": "fit"' in (tmp_path / "fit" / "octavo.json").read_text()


@needs_model
def test_a_loss_that_cannot_be_reached_is_said(table: FitTable) -> None:
    def measure(fit: Fit) -> float:
        return 1.0

    with pytest.raises(InvalidField, match=r"not reached: the best of \d files has 1\.0000 nats"):
        search_budget(table, 0.001, measure)
    tried = search_budget(table, 0.1, lambda fit: 1.5 * fit.expected_divergence)
    assert 0.09 <= tried[-1].divergence <= 0.1


@needs_model
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "give one of bytes, bpw"),
        ({"num_bytes": 10**6, "bits_per_weight": 4.0}, "give one of"),
        ({"bits_per_weight": -1.0}, "above 0"),
        ({"bits_per_weight": float("nan")}, "above 0"),
        ({"bits_per_weight": 4.0, "bits": 3}, "fit chooses the schemes"),
        ({"bits_per_weight": 4.0, "scheme": "fp8"}, "fit chooses the schemes"),
        ({"bits_per_weight": 4.0, "transforms": ("rotate",)}, "use smooth or awq"),
        ({"max_divergence": 0.1, "measure": None}, "checked on the written file"),
        ({"num_bytes": 50_000}, "the smallest this model can be is"),
        ({"num_bytes": 5_000_000}, "nothing to quantize"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: dict[str, Any], reason: str, options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InvalidField, match=reason):
        fit(MODEL, tmp_path / "fit", **{**options, **arguments})
    assert not list(tmp_path.iterdir())


def test_a_budget_of_bits_is_bytes_of_the_file() -> None:
    assert Budget(bits_per_weight=4.25).file_bytes(1000) == 531
    assert Budget(num_bytes=77).file_bytes(1000) == 77


def test_a_role_is_corrected_by_what_was_measured() -> None:
    check = ProxyCheck([("0.o", "o", "s", 0.1, 0.2), ("1.o", "o", "s", 0.1, 0.8), ("0.down", "down", "s", 0.1, 0.1)])
    assert check.factor("o") == pytest.approx(4)
    assert check.factor("down") == pytest.approx(1)
    assert check.factor("q k v") == 1
