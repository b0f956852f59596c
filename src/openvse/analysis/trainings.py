"""What several trainings of one analysis share: their recipe, stored features, and what is said about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openvse.corpus import Corpus
from openvse.encoders import TokenStatesEncoder
from openvse.errors import OpenVSEError
from openvse.evaluation import EmbeddedCorpus, embed_corpus
from openvse.features import FeatureStore, extract_features, extract_text_features, open_store
from openvse.model import TwoTower
from openvse.pipeline import WorkProgress, tell_skipped
from openvse.retrieval.build import build_model
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.tasks.load import load_as
from openvse.tasks.recipes import load_recipe
from openvse.tasks.run import train
from openvse.training.inputs import AUTO
from openvse.training.records import Silent, Watcher
from openvse.types import OnProgress


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

    def embed(self, model: TwoTower, corpus: Corpus) -> EmbeddedCorpus:
        """Embed a corpus by a model that was trained with these stores."""
        return embed_corpus(model, corpus, self.images, text_features=self.texts)


def retrieval_recipe(recipe: str, overrides: Sequence[str]) -> RetrievalRecipe:
    """Read a recipe of retrieval.

    Raises:
        OpenVSEError: the recipe is of another task, or see ``load_recipe``.
    """
    loaded = load_recipe(recipe, overrides)
    if not isinstance(loaded, RetrievalRecipe):
        raise OpenVSEError(
            f"recipe {loaded.name} is for the task {loaded.task}: name one of retrieval; 'openvse recipes' lists them"
        )
    return loaded


def share_stores(
    recipe: RetrievalRecipe, corpus: Corpus, folder: Path, progress: OnProgress | None = None
) -> SharedStores:
    """Open the stores that a recipe names, and extract once below ``folder`` what it would extract for each run.

    Raises:
        StoreError: a store does not fit the encoders of the recipe.
    """
    model = build_model(recipe, captions=corpus.captions, seed=recipe.seed)
    images, texts, overrides = None, None, []

    def extracted(state: WorkProgress) -> None:
        if progress is not None:
            progress(f"extracting {state.unit}", state.done, state.total)

    where = recipe.data.features
    if where == AUTO and not model.image.encoder.fine_tune:
        where = str(folder / "features")
        listed = list(zip(corpus.image_ids, corpus.image_paths, strict=True))
        report = extract_features(model.image.encoder.backbone, listed, Path(where), progress=extracted)
        tell_skipped(report.failed)
    if where not in (None, AUTO):
        images = open_store(Path(str(where)), model.image.encoder)
        overrides.append(f"data.features={Path(str(where)).resolve()}")
    where, encoder = recipe.data.text_features, model.text.encoder
    if isinstance(encoder, TokenStatesEncoder):
        if where == AUTO and encoder.why_not_stored() is None:
            where = str(folder / "text_features")
            extract_text_features(encoder, corpus.captions, Path(where), progress=extracted)
        if where not in (None, AUTO):
            texts = open_store(Path(str(where)), encoder)
    if texts is not None:
        overrides.append(f"data.text_features={texts.path.resolve()}")
    return SharedStores(images, texts, tuple(overrides))


class Trainings:
    """Several trainings, told to a watcher: each note and each warning only once.

    Trainings on the same data say the same about it.

    Args:
        watcher: is notified about the trainings; None hears nothing.
    """

    def __init__(self, watcher: Watcher | None) -> None:
        self._watcher = watcher = watcher or Silent()
        self._logged: set[str] = set()
        self.started, self.step, self.epoch = watcher.started, watcher.step, watcher.epoch

    def best(self, recipe: RetrievalRecipe, folder: Path, message: str) -> TwoTower:
        """Train a recipe, or go on with it, and return its best model.

        Args:
            folder: the folder of the run; one that is finished is not trained again.
            message: says which training this is, and is passed on in any case.

        Raises:
            TrainingError: the run was trained on other data before, so that it cannot stand beside the others.
        """
        self._watcher.note(message)
        return load_as(TwoTower, train(recipe, folder, resume=True, same_data=True, watcher=self).best)

    def warn(self, message: str) -> None:
        """Pass a warning on, if it is new."""
        if self._new(message):
            self._watcher.warn(message)

    def note(self, message: str) -> None:
        """Pass a note on, if it is new."""
        if self._new(message):
            self._watcher.note(message)

    def _new(self, message: str) -> bool:
        new = message not in self._logged
        self._logged.add(message)
        return new
