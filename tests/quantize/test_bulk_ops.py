"""Bulk ops compute what the reference ops compute, only faster: windows, grouped heads, several sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.models.load import load_model
from octavo.ops.reference.batch import whole_prompts
from octavo.ops.reference.ops import ReferenceOps
from octavo.quantize.bulk_ops import BulkOps
from tests.checkpoints import make_tiny


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_bulk_equals_reference(family: str, tmp_path: Path) -> None:
    model = load_model(make_tiny(family, tmp_path / family)).model
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 250, (length,), generator=generator).tolist() for length in (70, 1, 33)]
    batch = whole_prompts(prompts)
    expected, found = model.forward(ReferenceOps(), batch), model.forward(BulkOps(), batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
