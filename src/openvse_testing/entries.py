"""The promises of a metric, an image format, a task, a command and a folder of recipes. See ``check_part``."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from openvse.errors import BadImageError, OpenVSEError
from openvse.evaluation.metrics import Metric
from openvse.evaluation.places import Places
from openvse.evaluation.ranking import QueryRanks
from openvse.media.containers import held_in
from openvse.media.formats import ImageFormat
from openvse.media.images import read_image
from openvse.media.names import format_of
from openvse.specs.load import dump_yaml, list_recipes
from openvse.tasks.front import registries
from openvse.tasks.recipes import load_recipe
from openvse.training.kind import TaskKind
from openvse_testing.contract import BrokenContractError, require

_PLACES, _SIZE = np.array([1, 2, 2, 7, 40]), 40


class FormatSample(NamedTuple):
    """A format, and a file of it."""

    known: ImageFormat
    file: Path


def _values(metric: Metric) -> None:
    queries = np.arange(len(_PLACES))

    def of(ranks: np.ndarray) -> np.ndarray:
        untied, places = np.zeros(len(queries), dtype=bool), Places(queries, ranks, _SIZE)
        asked = QueryRanks(queries, ranks, untied, len(queries), _SIZE, places)
        return np.asarray(metric.of(asked), np.float64)

    values, turned = of(_PLACES), of(_PLACES[::-1])
    require(values.shape in ((), _PLACES.shape), f"{len(queries)} queries have {values.shape}, not one each")
    require(bool(np.isfinite(values).all()), "a value is not finite")
    require(np.allclose(turned, values[::-1] if values.ndim else values), "the order of the queries matters")


def _level_by_chance(metric: Metric) -> None:
    expected = np.zeros(3) if metric.chance is None else metric.chance(np.array([1, 2, 5]), _SIZE)
    is_known = np.shape(expected) == (3,) and bool(np.isfinite(expected).all())
    require(is_known, "chance is no number for each query")


def _names(sample: FormatSample) -> None:
    known, file = sample
    require(known.is_read, f"its package is missing: {known.remedy}")
    for name in (file.name, *(f"a.{suffix}" for suffix in known.suffixes.split())):
        require(format_of(name) is known, f"{name} is not of this format: register each of its suffixes")


def _content(sample: FormatSample) -> None:
    known, file = sample
    image, content = read_image(file), file.read_bytes()
    if known.begins is not None:
        wrong = known.begins(b"") or known.begins(bytes(64))
        require(not wrong, "begins is true of a file of zeros, or of none")
        require(read_image(content).tobytes() == image.tobytes(), "its content opens otherwise than its file")
    with held_in(file) as (exif, packet, _):
        require(hasattr(exif, "get_ifd") and isinstance(packet, bytes | str), "facts gives no EXIF and XMP")


def _refusals(sample: FormatSample) -> None:
    image, content = read_image(sample.file), sample.file.read_bytes()
    for what, given, most in (
        ("more pixels than the limit", content, image.width * image.height // 5),
        ("half of its content", content[: len(content) // 2], None),
    ):
        try:
            read_image(given, max_pixels=most)
        except BadImageError:
            continue
        raise BrokenContractError(f"a file with {what} is read")


def _is_whole(kind: type[TaskKind]) -> None:
    require(not inspect.isabstract(kind), f"it lacks {', '.join(getattr(kind, '__abstractmethods__', ()))}")
    missing = {*kind.spec.model_fields} - {*kind.recipe.model_fields}
    require(not missing, f"its recipe lacks the keys {', '.join(sorted(missing))} of its spec")


def _helps(name: str) -> None:
    words = [sys.executable, "-m", "openvse", *name.split("."), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"openvse {' '.join(words[3:])} fails: {done.stderr.strip()[-200:]}")


def _parts_exist(folder: Path | ModuleType) -> None:
    root = folder if isinstance(folder, Path) else Path(folder.__path__[0])
    known = {name for registry in registries() for name in registry}
    for name in (name for file in sorted(root.rglob("[!_]*.yaml")) for name in list_recipes(str(file))):
        try:
            tree = load_recipe(name).to_dict()
        except OpenVSEError as error:
            raise BrokenContractError(f"{name} cannot be read: {error}") from error
        written = dump_yaml({key: tree.get(key) for key in ("image", "text", "similarity", "objective")})
        missing = {*re.findall(r"name: (\w+)$", written, re.MULTILINE)} - known
        require(not missing, f"{name} names parts that do not exist: {', '.join(sorted(missing))}")


ENTRY_PROMISES: Mapping[str, Sequence[Callable[[Any], None]]] = {
    "metric": (_values, _level_by_chance),
    "image format": (_names, _content, _refusals),
    "task": (_is_whole,),
    "command": (_helps,),
    "recipes": (_parts_exist,),
}
