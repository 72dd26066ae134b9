"""Tables as files: Parquet, by pyarrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet

from hpc.system.text import plural
from parse.arrow import ArrowTable
from parse.export.content import ExportContent
from parse.export.tables import all_or_none
from parse.frames import columns_of


def write(content: ExportContent, out: str) -> list[str]:
    """Writes a file for each table that has rows. Raises ExportError where one is there already, and OSError."""
    tables = {Path(out) / f"{name}.parquet": columns_of(rows) for name, rows in content.tables.items() if rows}
    lines = []
    with all_or_none([*tables]):
        for path, columns in tables.items():
            table = pyarrow.table(ArrowTable(columns))
            pyarrow.parquet.write_table(table, path)
            lines.append(f"{path}: {plural(table.num_rows, 'row')}")
    return lines
