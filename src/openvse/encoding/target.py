"""Where an encoding goes: one file, or a folder with files for each shard; and what tells that it is complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openvse.encoding.parts import Form, Part, import_parquet, join_npy, write_parquet
from openvse.errors import DataError
from openvse.files import LOCK, replacing

MANIFEST = "encoding.json"
WORK = ".unfinished"


@dataclass(frozen=True)
class Target:
    """The place of an encoding.

    Attributes:
        out: the file or folder that was asked for.
        form: of the output.
        single: whether it is one file.
    """

    out: Path
    form: Form
    single: bool

    @property
    def part_form(self) -> Form:
        """The form in which shards are written: that of the folder; one file is joined from arrays."""
        return "npy" if self.single else self.form

    @property
    def folder(self) -> Path:
        """The folder that is locked while it is written to."""
        return self.work if self.single else self.out

    @property
    def work(self) -> Path:
        """The folder of what is not finished, which is removed at the end."""
        return self.out.with_name(f".{self.out.name}.unfinished") if self.single else self.out / WORK

    @property
    def parts(self) -> Path:
        """The folder of the shards."""
        return self.work if self.single else self.out

    @property
    def manifest(self) -> Path:
        """The file that says what was encoded; it is written last."""
        return self.out.with_name(f"{self.out.name}.json") if self.single else self.out / MANIFEST

    @property
    def ids(self) -> Path:
        """The file of the ids beside one array."""
        return self.out.with_name(f"{self.out.stem}_ids.txt")

    def read_manifest(self) -> dict[str, Any] | None:
        """Return what an output says of itself; None where there is none."""
        try:
            told = json.loads(self.manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return told if isinstance(told, dict) and told.get("format") == "openvse-encoding" else None

    def taken(self) -> Path | None:
        """Return a file of somebody else that the output would replace."""
        if self.single:
            names = [self.out, self.manifest, *([self.ids] if self.form == "npy" else [])]
            return None if self.work.exists() and self._began() else next(filter(Path.exists, names), None)
        if self.work.exists():
            return None
        mine = [path for path in self.out.iterdir() if path.name != LOCK] if self.out.is_dir() else []
        return mine[0] if mine else None

    def _began(self) -> bool:
        return any(self.work.glob("*.json"))

    def is_whole(self, told: dict[str, Any]) -> bool:
        """Return whether the files of a finished output are all there."""
        try:
            return all(
                (self.manifest.parent / name).stat().st_size == size
                for part in told["parts"]
                for name, size in part["sizes"].items()
            )
        except OSError:
            return False

    def forget(self) -> None:
        """Remove the word that the output is complete."""
        self.manifest.unlink(missing_ok=True)

    def join(
        self, parts: Sequence[Part], dtype: str, good: Iterator[tuple[list[str], list[str]]], kind: str
    ) -> list[Part]:
        """Join the parts if one file is wanted, and return the parts of the output.

        Args:
            parts: those with rows.
            dtype: of their numbers.
            good: ids and sources of the records of each part.
            kind: images or texts.
        """
        if not self.single:
            return list(parts)
        names = [self.out]
        if self.form == "npy":
            names.append(self.ids)
            join_npy(self.out, self.ids, self.parts, parts, dtype, [item for ids, _ in good for item in ids])
        else:
            blocks = (
                (ids, np.load(self.parts / part.vectors, mmap_mode="r"), texts if kind == "texts" else None)
                for part, (ids, texts) in zip(parts, good, strict=True)
            )
            with replacing(self.out) as partial:
                write_parquet(partial, blocks)
        rows, first = sum(part.rows for part in parts), parts[0]
        return [
            Part(rows, first.num_embeddings, first.dim, {path.name: path.stat().st_size for path in names})
        ]

    def tidy(self, written: Sequence[Part]) -> None:
        """Remove what the output does not need: notes, parts that were joined, and parts of an earlier output."""
        shutil.rmtree(self.work, ignore_errors=True)
        if self.single:
            return
        named = {name for part in written for name in part.sizes}
        for pattern in ("embeddings-*", "ids-*.txt"):
            for path in self.out.glob(pattern):
                if path.name not in named:
                    with suppress(OSError):
                        path.unlink()


def target_of(out: Path, form: Form | None) -> Target:
    """Return the place of an encoding by the name that was given.

    Raises:
        DataError: the name and the form contradict each other, or a file is where the folder should be.
        OpenVSEError: pyarrow is needed and not installed.
    """
    suffix = out.suffix.lower()
    by_name: Form | None = "npy" if suffix == ".npy" else "parquet" if suffix == ".parquet" else None
    is_single = by_name is not None and not out.is_dir()
    if is_single and form not in (None, by_name):
        raise DataError(f"{out} names a file of {by_name}, not of {form}: leave --format out, or rename it")
    if not is_single and out.is_file():
        raise DataError(f"{out} is a file: give a folder, or a file that ends with .npy or .parquet")
    chosen = by_name if is_single else form
    if chosen == "parquet":
        import_parquet()
    return Target(out, chosen or "npy", single=is_single)
