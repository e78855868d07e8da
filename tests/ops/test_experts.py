"""`Ops.experts` as its docstring has it: the choice, ties, the order of additions; a row stands alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from octavo.ops.base import Activation, Experts, GatedMlp, Linear
from octavo.ops.reference.ops import ReferenceOps
from octavo.ops.reference.routing import route

HIDDEN, FEATURES = 24, 40


def make_experts(num_experts: int, experts_per_token: int, renormalize: bool, seed: int = 0) -> Experts:
    generator = torch.Generator().manual_seed(seed)

    def linear(name: str, outputs: int, inputs: int) -> Linear:
        return Linear(name, torch.randn(outputs, inputs, generator=generator) * 0.3)

    mlps = tuple(
        GatedMlp(
            linear(f"{i}.gate", FEATURES, HIDDEN),
            linear(f"{i}.up", FEATURES, HIDDEN),
            linear(f"{i}.down", HIDDEN, FEATURES),
        )
        for i in range(num_experts)
    )
    router = linear("router", num_experts, HIDDEN)
    return Experts("mlp.experts", router, mlps, experts_per_token, renormalize, Activation.SILU)


def rows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def expected(x: Tensor, experts: Experts) -> Tensor:
    """Row by row in float64, written after the docstring."""
    result = torch.zeros_like(x, dtype=torch.float64)
    for row, value in enumerate(x.double()):
        probabilities = torch.softmax(experts.router.weight.double() @ value, 0)
        best = sorted(range(len(probabilities)), key=lambda expert: (-float(probabilities[expert]), expert))
        chosen = sorted(best[: experts.experts_per_token])
        total = sum(float(probabilities[expert]) for expert in chosen) if experts.renormalize else 1.0
        for expert in chosen:
            gate, up, down = (getattr(experts.mlps[expert], role).weight.double() for role in ("gate", "up", "down"))
            result[row] += probabilities[expert] / total * (down @ (silu(gate @ value) * (up @ value)))
    return result


@pytest.mark.parametrize(("num_experts", "experts_per_token"), [(1, 1), (5, 2), (6, 6), (128, 8)])
@pytest.mark.parametrize("renormalize", [True, False])
def test_equals_the_definition(num_experts: int, experts_per_token: int, renormalize: bool) -> None:
    experts, x = make_experts(num_experts, experts_per_token, renormalize), rows(37)
    torch.testing.assert_close(ReferenceOps().experts(x, experts).double(), expected(x, experts), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("num_experts", "experts_per_token"), [(5, 2), (128, 8)])
def test_a_rows_bits_are_its_own(num_experts: int, experts_per_token: int) -> None:
    """Alone, among few and among many, in another order, and beside rows that all want its experts."""
    experts, x, ops = make_experts(num_experts, experts_per_token, True), rows(300), ReferenceOps()
    whole = ops.experts(x, experts)
    assert torch.equal(torch.cat([ops.experts(row[None], experts) for row in x[:60]]), whole[:60])
    assert torch.equal(torch.cat([ops.experts(piece, experts) for piece in x.split(7)]), whole)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(3))
    assert torch.equal(ops.experts(x[order], experts), whole[order])
    crowd = torch.cat([x[:1], x[:1].repeat(90, 1) * torch.linspace(0.5, 1.5, 90)[:, None]])
    assert torch.equal(ops.experts(crowd, experts)[0], whole[0])


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0], [0.0, 1.0, 0.0, 5.0, 1.0]])
    assert route(logits, 2, True).chosen.tolist() == [[1, 2], [0, 1], [1, 3]]


def test_the_choice_is_by_logits_where_probabilities_vanish() -> None:
    """Beyond a distance of about 104 exp gives 0 for all: the order of the logits still holds."""
    routing = route(torch.tensor([[-200.0, -300.0, -150.0, 500.0]]), 2, False)
    assert routing.chosen.tolist() == [[2, 3]]
    assert routing.weights.tolist() == [[0.0, 1.0]]


def test_weights() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.3, 0.2]]))
    torch.testing.assert_close(route(logits, 2, False).weights, torch.tensor([[0.4, 0.3]]))
    torch.testing.assert_close(route(logits, 2, True).weights, torch.tensor([[4 / 7, 3 / 7]]))


def test_additions_run_by_ascending_id() -> None:
    """Three experts whose results are 1e8, 1 and -1e8 in the first feature: the order shows in the sum."""
    experts = make_experts(3, 3, False)
    zero = torch.zeros(1, HIDDEN)
    for values, total in (([1e8, 1.0, -1e8], 0.0), ([1e8, -1e8, 1.0], 1 / 3)):
        ops = _Fixed(dict(zip((mlp.down.name for mlp in experts.mlps), values, strict=True)))
        assert float(ops.experts(zero, experts)[0, 0]) == pytest.approx(total)


class _Fixed(ReferenceOps):
    """Every down projection gives its value, the router gives equal logits."""

    def __init__(self, values: dict[str, float]) -> None:
        super().__init__()
        self.values = values

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        return torch.full((len(x), linear.num_outputs), self.values.get(linear.name, 0.0))
