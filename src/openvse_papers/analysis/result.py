"""The common result of every analysis, tables of numbers and figures, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from openvse.errors import OpenVSEError
from openvse.files import replacing_files, settle
from openvse.output.figures import styled
from openvse.output.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw: TypeAlias = "Callable[[], Figure]"

ENDINGS = ("png", "svg", "csv")


@dataclass(frozen=True)
class Analysis:
    """The result of an analysis.

    The name of a table or figure is the part of its file's name after ``name``, "" for the main one.
    """

    name: str
    summary: Table
    tables: Mapping[str, Table]
    figures: Mapping[str, Draw] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def write(self, folder: Path, *, overwrite: bool = False) -> list[Path]:
        """Write tables as CSV and figures as PNG and SVG, which take their places together, and return the files."""
        refuse_written(folder, self.name, overwrite=overwrite)
        written: list[Path] = []
        with replacing_files(folder, f"{self.name}.csv", _written(folder, self.name)) as partial:
            for part, table in self.tables.items():
                written.append(partial / f"{_joined(self.name, part)}.csv")
                written[-1].write_text(table.to_csv(), encoding="utf-8")
            for part, draw in self.figures.items():
                written += _save(draw, partial / _joined(self.name, part))
        return [folder / path.name for path in written]


def refuse_written(folder: Path, name: str, *, overwrite: bool) -> None:
    """Raise OpenVSEError where an earlier result of an analysis would be replaced, before any work is done."""
    settle(folder, f"{name}.csv")
    if not overwrite and (there := _written(folder, name)):
        shown = ", ".join(there[:3]) + (" ..." if len(there) > 3 else "")
        raise OpenVSEError(f"{folder} already holds {shown}: choose another --out, or give --overwrite")


def _written(folder: Path, name: str) -> list[str]:
    return sorted(
        path.name
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.suffix[1:] in ENDINGS and (path.stem == name or path.stem.startswith(f"{name}_"))
    )


def _save(draw: Draw, stem: Path) -> list[Path]:
    with styled():
        figure = draw()
        paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "svg")]
        for path in paths:
            # Without a date, equal numbers give equal files.
            metadata = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, format=path.suffix[1:], metadata=metadata)
    return paths


def _joined(name: str, part: str) -> str:
    return f"{name}_{part}" if part else name
