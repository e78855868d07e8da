"""`python -m tests.matrix.generate`: try every pair and write docs/matrix.md."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.matrix.document import FILE, page, section
from tests.matrix.models import TinyModels
from tests.matrix.tables import tables


def main() -> None:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        models, sections = TinyModels(Path(folder)), []
        for table in tables():
            started = time.process_time()
            sections.append(section(table, table.outcomes(models)))
            print(f"{table.name}: {time.process_time() - started:.1f} s", file=sys.stderr)
    FILE.write_text(page(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
