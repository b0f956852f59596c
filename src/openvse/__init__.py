"""openvse: visual-semantic embedding. Train, evaluate, explain and serve models in which pictures and sentences meet.

``openvse.load(folder_or_hub_id)`` gives a model; nothing heavy is imported before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Answerer", "SearchEngine", "TwoTower", "__version__", "load", "load_recipe", "train"]

if TYPE_CHECKING:
    from openvse.model import TwoTower
    from openvse.search import SearchEngine
    from openvse.tasks.load import load
    from openvse.tasks.recipes import load_recipe
    from openvse.tasks.run import train
    from openvse.vqa.answerer import Answerer

_LAZY = {
    "load": ("openvse.tasks.load", "load"),
    "load_recipe": ("openvse.tasks.recipes", "load_recipe"),
    "train": ("openvse.tasks.run", "train"),
    "Answerer": ("openvse.vqa.answerer", "Answerer"),
    "TwoTower": ("openvse.model", "TwoTower"),
    "SearchEngine": ("openvse.search", "SearchEngine"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (torch alone takes seconds)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'openvse' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)
