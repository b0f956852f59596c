"""Models of openvse in other people's harness: MTEB and MIEB."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from openvse.assembly.describe import joint_width
from openvse.errors import OpenVSEError
from openvse.model import TwoTower
from openvse.types import EmbeddingSet

if TYPE_CHECKING:
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.models.model_meta import ModelMeta

    from openvse.corpus import Corpus

Direction = Literal["t2i", "i2t"]


class MTEBModel:
    """A model of retrieval as an encoder of MTEB, for tasks of the type Any2AnyRetrieval.

    MTEB holds one vector for each item. The K embeddings of an item are put one behind the other, and ``similarity``
    takes them apart again and returns the largest of their cosines, as the model itself does.

    MTEB's ``hit_rate_at_k`` is the R@K of image-text retrieval, the share of the queries with a relevant item among
    the first K. Its ``recall_at_k`` is another figure where a query has several relevant items.

    Args:
        model: a model whose scores are those of an inner-product search, with one embedding or a fixed number of them.
        name: its name in MTEB's results, as ``owner/name``.

    Raises:
        OpenVSEError: the model scores pairs in another way, so that its vectors alone do not say its scores.

    Examples:
        >>> mteb.evaluate(MTEBModel(openvse.load("runs/mine/best"), "me/mine"), tasks)  # doctest: +SKIP
    """

    def __init__(self, model: TwoTower, name: str = "openvse/model") -> None:
        sides = (model.image, model.text)
        if not (model.indexable and model.similarity.indexable) or not all(
            side.aggregator.fixed_k for side in sides
        ):
            raise OpenVSEError(
                f"{name} scores pairs of items, and MTEB compares one vector for each item: name a model that can be "
                f"indexed"
            )
        self._model = model
        self._name = name
        self._width = joint_width(model.image.encoder)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The name and version of the model in MTEB's results; the version is the fingerprint of the weights."""
        from mteb.models.model_meta import ModelMeta

        about = {
            "name": self._name,
            "revision": self._model.fingerprint,
            "modalities": ["image", "text"],
            "framework": ["PyTorch"],
        }
        return ModelMeta.create_empty(overwrites=about)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: object = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: object = None,
        batch_size: int = 32,
        show_progress_bar: bool = False,
        precision: str = "float32",
    ) -> Float[Tensor, "B KD"]:
        """Embed batches of images or of texts.

        Args:
            inputs: batches with the key ``image`` (PIL images) or ``text``.
            task_metadata: not read, as the other arguments that MTEB gives.
            hf_split: not read.
            hf_subset: not read.
            prompt_type: not read: the model knows no prompts.
            batch_size: not read: the batches are those of ``inputs``.
            show_progress_bar: not read.
            precision: not read.

        Raises:
            OpenVSEError: a batch has both images and texts, or neither.
        """
        parts = [self._embed(batch).vectors.flatten(start_dim=1) for batch in inputs]
        return torch.cat(parts)

    def similarity(
        self, embeddings1: Float[Tensor, "Q E"], embeddings2: Float[Tensor, "C F"]
    ) -> Float[Tensor, "Q C"]:
        """Return the largest cosine of the embeddings of two items, for all pairs; at K = 1 it is their cosine."""
        one, other = self._apart(embeddings1), self._apart(embeddings2)
        products = torch.einsum("qkd,cld->qckl", one, other)
        return products.amax(dim=(2, 3))

    def similarity_pairwise(
        self, embeddings1: Float[Tensor, "Q E"], embeddings2: Float[Tensor, "Q F"]
    ) -> Float[Tensor, "Q"]:
        """Return the largest cosine of the embeddings of two items, for listed pairs."""
        one, other = self._apart(embeddings1), self._apart(embeddings2)
        return (one @ other.transpose(1, 2)).amax(dim=(1, 2))

    def _apart(self, embedded: Float[Tensor, "B E"]) -> Float[Tensor, "B K D"]:
        return torch.as_tensor(embedded).view(len(embedded), -1, self._width)

    def _embed(self, batch: Mapping[str, Any]) -> EmbeddingSet:
        images, texts = "image" in batch, "text" in batch
        if images == texts:
            raise OpenVSEError(
                f"{self._name} embeds images or texts, and a batch has {', '.join(batch) or 'nothing'}: choose a task "
                f"of images and texts"
            )
        if images:
            return self._model.encode_image([image.convert("RGB") for image in batch["image"]])
        return self._model.encode_text(list(batch["text"]))


def mteb_task(corpus: Corpus, direction: Direction, name: str = "") -> AbsTaskRetrieval:
    """Return a task of MTEB made from a corpus of openvse, whose images are decoded when MTEB reads them.

    Args:
        direction: ``t2i`` for texts asking for images, ``i2t`` for images asking for texts.
        name: the name of the task; by default made from that of the corpus.
    """
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.task_metadata import TaskMetadata

    from datasets import Dataset, Image

    label = (
        name or "".join(part.title() for part in corpus.name.replace("/", " ").split()) + direction.upper()
    )

    class Local(AbsTaskRetrieval):  # type: ignore[misc]
        """The corpus as a task."""

        metadata = TaskMetadata(
            name=label,
            description=f"{corpus.name}, {direction}, from the user's own copy",
            reference=None,
            dataset={"path": "local", "revision": "local"},
            type="Any2AnyRetrieval",
            category=direction,
            modalities=["image", "text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="hit_rate_at_1",
        )

        def load_data(self, num_proc: int | None = None, *, timer: object = None) -> None:
            """Hand out what is already there."""
            texts = {"id": [f"t{n}" for n in range(len(corpus.captions))], "text": list(corpus.captions)}
            images = {
                "id": [f"i{n}" for n in range(len(corpus))],
                "image": [str(p) for p in corpus.image_paths],
            }
            both = Dataset.from_dict(texts), Dataset.from_dict(images).cast_column("image", Image())
            queries, candidates = both if direction == "t2i" else both[::-1]
            split = RetrievalSplitData(
                queries=queries,
                corpus=candidates,
                relevant_docs=_relevant(corpus, direction),
                top_ranked=None,
            )
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Local()


def _relevant(corpus: Corpus, direction: Direction) -> dict[str, dict[str, int]]:
    relevant: dict[str, dict[str, int]] = {}
    pairs = zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True)
    for image, text in pairs:
        query, answer = (f"t{text}", f"i{image}") if direction == "t2i" else (f"i{image}", f"t{text}")
        relevant.setdefault(query, {})[answer] = 1
    return relevant
