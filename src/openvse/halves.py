"""The two halves of openvse: rooms that index, search and serve, and rooms that train, which need PyTorch.

``pip install openvse`` installs all files, and the packages of the search half. ``pip install 'openvse[train]'`` adds
the training half's packages. A file of the search half never imports the training half. What it needs of it are the
functions of ``openvse.search.provided``.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from openvse.errors import MissingHalfError, OpenVSEError, message_of

SEARCH = frozenset(
    {
        *("errors", "halves", "lazy", "registry", "files", "settings", "media", "output", "pipeline"),
        *("tokenization", "scoring", "runtime", "indexing", "stores", "search", "serving", "cli"),
    }
)
"""The rooms of the search half."""

TRAINING = frozenset(
    {
        *("types", "kernels", "functional", "specs", "layers", "backbones", "encoders", "aggregators"),
        *("objectives", "fusion", "similarities", "assembly", "losses", "model", "corpus", "features"),
        *("datasets", "batches", "evaluation", "training", "exporting", "retrieval", "teaching"),
        *("conversion", "tasks", "demo", "encoding", "report", "train_cli"),
    }
)
"""The rooms of the training half."""

INSTALL = "pip install 'openvse[train]'"

_PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "huggingface_hub", "pydantic", "yaml")


@cache
def missing_package() -> str:
    """Return the first package that the training half lacks here, or "" if it can be used."""
    for name in _PACKAGES:
        try:
            is_here = find_spec(name) is not None
        except (ImportError, ValueError):
            is_here = False
        if not is_here:
            return name
    return ""


def training_module(name: str) -> Any:
    """Import a module such as ``openvse.tasks.load`` or ``torch``, or raise MissingHalfError if the half is missing."""
    if missing_package():
        raise refusal_of(name)
    return import_module(name)


def usable_device(name: Any) -> Any:
    """Return a device of this machine. Raise OpenVSEError if it cannot be used. ``auto`` means the fastest one."""
    if name is None or name == "cpu":
        return name
    torch = training_module("torch")
    if name == "auto":
        fastest = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "cpu" if fastest is None else fastest.type
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, TypeError) as error:  # a build without CUDA asserts
        raise OpenVSEError(
            f"device {name!r} cannot be used here ({message_of(error, 80)}): give auto, cpu, cuda or mps"
        ) from error
    return name


def refusal_of(name: str) -> MissingHalfError:
    """Return the error with the command to install the packages that a name needs."""
    return MissingHalfError(f"{name} needs {missing_package()}, which is not installed: {INSTALL}", name=name)


class _Guard:
    """Finds no module, but refuses the training half's modules in one line if they are not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise MissingHalfError for a module of the training half."""
        package, _, rest = name.partition(".")
        if package == "openvse" and rest.partition(".")[0] in TRAINING:
            raise refusal_of(name)


def guard() -> None:
    """Let imports of the training half report how to install it, if it is missing."""
    if missing_package():
        sys.meta_path.insert(0, _Guard())
