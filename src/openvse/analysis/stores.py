"""Stored features that several trainings of one analysis share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from openvse.corpus import Corpus
from openvse.encoders import TokenStatesEncoder
from openvse.errors import OpenVSEError
from openvse.features import (
    FeatureStore,
    extract_features,
    extract_text_features,
    open_store,
)
from openvse.model import TwoTower
from openvse.pipeline import WorkProgress
from openvse.retrieval.build import build_model
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.recipes import load_recipe
from openvse.training.inputs import AUTO

OnExtraction = Callable[[WorkProgress], None]


@dataclass(frozen=True)
class SharedStores:
    """Stores, and the overrides of a recipe that name them.

    Attributes:
        images: the local features of the images; None if they are decoded.
        texts: the token states of the texts; None if the text model reads them.
        overrides: ``data.features=...`` and ``data.text_features=...``.
    """

    images: FeatureStore | None
    texts: FeatureStore | None
    overrides: tuple[str, ...]


def retrieval_recipe(recipe: str, overrides: Sequence[str]) -> RetrievalRecipe:
    """Read a recipe of retrieval.

    Raises:
        OpenVSEError: the recipe is of another task, or see ``load_recipe``.
    """
    found = load_recipe(recipe, overrides)
    if not isinstance(found, RetrievalRecipe):
        raise OpenVSEError(
            f"recipe {found.name} is for the task {found.task}: name a recipe of retrieval, as 'openvse recipes' lists"
        )
    return found


def share_stores(
    recipe: RetrievalRecipe, corpus: Corpus, folder: Path, extracted: OnExtraction | None = None
) -> SharedStores:
    """Open the stores that a recipe names, and extract once below ``folder`` what it would extract for each run.

    Raises:
        StoreError: a store does not fit the encoders of the recipe.
    """
    model = build_model(recipe, captions=corpus.captions, seed=recipe.seed)
    images, overrides = None, []
    where = recipe.data.features
    if where == AUTO and not model.image.encoder.fine_tune:
        where = str(folder / "features")
        listed = list(zip(corpus.image_ids, corpus.image_paths, strict=True))
        extract_features(model.image.encoder.backbone, listed, Path(where), progress=extracted)
    if where not in (None, AUTO):
        images = open_store(Path(str(where)), model.image.encoder)
        overrides.append(f"data.features={Path(str(where)).resolve()}")
    texts = _texts(recipe, model, corpus, folder, extracted)
    if texts is not None:
        overrides.append(f"data.text_features={texts.path.resolve()}")
    return SharedStores(images, texts, tuple(overrides))


def _texts(
    recipe: RetrievalRecipe,
    model: TwoTower,
    corpus: Corpus,
    folder: Path,
    extracted: OnExtraction | None,
) -> FeatureStore | None:
    where, encoder = recipe.data.text_features, model.text.encoder
    if where is None or not isinstance(encoder, TokenStatesEncoder):
        return None
    if where != AUTO:
        return open_store(Path(where), encoder)
    if encoder.why_not_stored() is not None:
        return None
    store = folder / "text_features"
    extract_text_features(encoder, corpus.captions, store, progress=extracted)
    return open_store(store, encoder)
