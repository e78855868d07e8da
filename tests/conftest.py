"""What every test shares."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """The models here are tiny: a second thread brings nothing, and beside other work its barriers cost minutes."""
    import torch

    torch.set_num_threads(1)
