"""openvse: visual-semantic embedding. Train, evaluate, explain and serve models in which images and sentences meet.

``openvse.load(folder_or_hub_id)`` gives a model; nothing heavy is imported before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvse.lazy import lazy_names

__version__ = "0.1.0"
__all__ = ["Answerer", "SearchEngine", "TwoTower", "__version__", "load", "load_recipe", "train"]

if TYPE_CHECKING:
    from openvse.model import TwoTower
    from openvse.search import SearchEngine
    from openvse.tasks.load import load
    from openvse.tasks.recipes import load_recipe
    from openvse.tasks.run import train
    from openvse.vqa.answerer import Answerer

__getattr__, _names = lazy_names(
    "openvse",
    {
        "Answerer": "openvse.vqa.answerer",
        "SearchEngine": "openvse.search",
        "TwoTower": "openvse.model",
        "load": "openvse.tasks.load",
        "load_recipe": "openvse.tasks.recipes",
        "train": "openvse.tasks.run",
    },
)


def __dir__() -> list[str]:
    """Return the public names, also those that nobody has used yet."""
    return [*_names(), "__version__"]
