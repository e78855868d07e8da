"""docs/matrix.md is true: every pair works or is refused as it says."""

from __future__ import annotations

import pytest

from tests.matrix.document import section, section_of_file
from tests.matrix.models import TinyModels
from tests.matrix.tables import Table, tables


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.name.replace(" ", "-"))
def test_every_pair_does_what_the_page_says(models: TinyModels, table: Table) -> None:
    found = section(table, table.outcomes(models))
    assert found == section_of_file(table), "docs/matrix.md is out of date: python -m tests.matrix.generate"
