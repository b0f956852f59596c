"""openvse: visual-semantic embedding. Train, evaluate, explain and serve models in which images and sentences meet.

Nothing heavy is imported before it is used::

    openvse.train("folder", data="photos", out="runs/mine") print(openvse.evaluate("runs/mine", "photos"))
    openvse.index("runs/mine", "photos", out="runs/mine/index") openvse.open("runs/mine").search("a dog on a beach",
    top_k=5)

One part in your own model::

    pool = openvse.pooling("gpo", dim=512)             # pooled = pool(local, mask)
    loss = openvse.losses.adopt(temperature=0.1)       # loss(images, texts).backward()
    report = openvse.evaluate(images, texts)           # arrays of embeddings
"""

from typing import TYPE_CHECKING

from openvse.halves import guard
from openvse.lazy import lazy_names

__version__ = "1.0.0"
__all__ = [
    "IndexSettings",
    "Pool",
    "SearchEngine",
    "Tower",
    "TwoTower",
    "__version__",
    "evaluate",
    "export",
    "index",
    "list_models",
    "list_parts",
    "list_recipes",
    "load",
    "load_recipe",
    "open",
    "pooling",
    "train",
]

if TYPE_CHECKING:
    from openvse import (  # noqa: F401 - for editors and type checkers
        aggregators,
        backbones,
        batches,
        corpus,
        datasets,
        encoders,
        errors,
        evaluation,
        features,
        functional,
        fusion,
        indexing,
        losses,
        model,
        objectives,
        runtime,
        search,
        similarities,
        specs,
        stores,
        tokenization,
        types,
    )
    from openvse.assembly.parts import Pool, pooling
    from openvse.exporting.write import export
    from openvse.indexing.manifest import IndexSettings
    from openvse.model.two_tower import Tower, TwoTower
    from openvse.search import SearchEngine
    from openvse.search.opening import open
    from openvse.search.updating import index
    from openvse.specs.load import list_recipes
    from openvse.tasks.front import evaluate, list_models, list_parts, train
    from openvse.tasks.load import load
    from openvse.tasks.recipes import load_recipe

guard()
__getattr__, __dir__ = lazy_names(__name__)
