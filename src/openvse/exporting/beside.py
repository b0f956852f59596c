"""The towers beside an index, written once for each model. See ``runtime.beside``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from openvse import __version__
from openvse.errors import IndexFormatError, ModelError
from openvse.exporting.write import export_for_queries
from openvse.files import locked, made, write_whole
from openvse.model.two_tower import TwoTower
from openvse.runtime.beside import LEFT_OUT, Towers, left_out_of, remove_other_towers, sound_sides, towers_of
from openvse.runtime.model import EXPORT
from openvse.scoring.calibration import CALIBRATION

_SIDES: Mapping[str, frozenset[str]] = {
    "text": frozenset({"text"}),
    "both": frozenset({"image", "text"}),
    "none": frozenset(),
}
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def write_towers(
    model: TwoTower, index: str | Path, wanted: str | None = None, *, progress: Callable[[int, int], None] | None = None
) -> Towers:
    """Write the towers of a model beside the index that it made, unless they exist. Remove other models' towers.

    A note beside the index records a tower that cannot be exported, and later runs do not try it again. With ``wanted``
    None, the index keeps its towers, and a new one gets ``text``. ``progress`` is called with the finished steps of an
    export and their number, and before its first one.
    """
    place = Path(index)
    folder = towers_of(place, model.fingerprint)
    if lacking := [name for name in _PACKAGES if find_spec(name) is None]:
        return Towers(left_out={"text": f"these packages are missing: pip install {' '.join(lacking)}"})
    with locked(place, "index", IndexFormatError):
        remove_other_towers(place, model.fingerprint)
        held, noted = sound_sides(folder), dict(left_out_of(folder, __version__))
        sides = _SIDES[wanted] if wanted else frozenset({"text", *held, *noted})
        if wanted:  # what nobody wanted before is no reason
            noted = {side: reason for side, reason in noted.items() if reason and side in sides}
        if not sides:
            noted["text"] = ""
        if held - sides or not held:
            shutil.rmtree(folder, ignore_errors=True)
            held = set()
        known, missing = dict(noted), sides - held - noted.keys()
        if missing and "text" not in noted:
            write = partial(export_for_queries, model, folder, progress=progress)
            held = _export(write, noted, images="image" in sides - noted.keys())
        _note(model, folder, noted)
    reasons = {side: reason for side, reason in noted.items() if reason}
    return Towers(tuple(sorted(held)), reasons, is_new=noted != known)


def _export(write: Callable[..., None], noted: dict[str, str], *, images: bool) -> set[str]:
    """Write both towers, or only the text tower if the other cannot be written. Record why a tower is left out."""
    for last, written in (("image", {"image", "text"}), ("text", {"text"})):
        if last == "image" and not images:
            continue
        try:
            write(images=last == "image")
            return written
        except ModelError as error:
            noted[last] = str(error)
    return set()


def _note(model: TwoTower, folder: Path, noted: Mapping[str, str]) -> None:
    """Write the reason for a missing tower, and the present calibration curve."""
    curve = model.calibration
    texts = {
        LEFT_OUT: json.dumps({"openvse": __version__, "sides": noted}, indent=2) + "\n" if noted else None,
        CALIBRATION: curve.to_json() if curve is not None and (folder / EXPORT).is_file() else None,
    }
    for name, text in texts.items():
        if text is None:
            (folder / name).unlink(missing_ok=True)
        elif not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text:
            with made(folder):
                write_whole(folder / name, text)
