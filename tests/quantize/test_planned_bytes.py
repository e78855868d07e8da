"""What a pre-flight says a file will take is what it takes, for every scheme (users' case 23)."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.api import plan_quantization, quantize
from octavo.core.errors import InvalidField
from octavo.quantize.recipe import Recipe
from octavo.quantize.schemes import NAMED
from tests.checkpoints import make_tiny

SCHEMES = [
    name for name, scheme in NAMED.items() if name != "ternary" and not (scheme.inputs and scheme.inputs.needs_scale)
]


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("embedding_bits", [8, 16])
def test_planned_bytes_are_the_files(name: str, embedding_bits: int, tmp_path: Path) -> None:
    source = make_tiny("llama-tied", tmp_path / "source")
    recipe = Recipe(method="rtn", scheme=name, embedding_bits=embedding_bits)
    plan = plan_quantization(source, recipe)
    report = quantize(source, tmp_path / "m", measure=None, say=lambda line: None, **recipe.to_dict())
    assert report.output_bytes == (tmp_path / "m" / "model.safetensors").stat().st_size
    assert plan.output_bytes == pytest.approx(report.output_bytes, rel=0.01)
    assert plan.output_bytes < plan.source_bytes


def test_groups_that_do_not_divide_are_refused_before_any_work(tmp_path: Path) -> None:
    """Users' case 9."""
    source = make_tiny("llama", tmp_path / "source", intermediate_size=172)
    with pytest.raises(InvalidField, match=r"scheme: got 'nvfp4 group 16'.*172 inputs of .*down_proj.*fp8"):
        plan_quantization(source, Recipe(method="rtn", scheme="nvfp4"))
