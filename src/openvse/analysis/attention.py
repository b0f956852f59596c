"""What models look at in an image: attention maps, and how near its parts are to each view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from openvse.aggregators.base import Attends
from openvse.analysis.opening import NamedTowers
from openvse.batches import own_features, with_features
from openvse.corpus import Corpus
from openvse.encoders.image_encoder import Located, grid_cells, locate
from openvse.errors import OpenVSEError
from openvse.features import FeatureStore
from openvse.functional import normalize
from openvse.media.packed import ImageFile
from openvse.model import TwoTower, evaluating
from openvse.output.documents import percent
from openvse.similarities import Fused
from openvse.types import EmbeddingSet, Features, FeatureSource, Inputs
from openvse.vqa.accuracy import answer_accuracy
from openvse.vqa.answerer import Answerer
from openvse.vqa.explain import Explained, explain

PAIRED = 8
"""How many captions a model that scores pairs reads beside each image, at most."""


@dataclass(frozen=True)
class ImageMap:
    """What one embedding, head or reduction sees in one image.

    Attributes:
        model: the name of the model.
        image_id: the identifier of the image.
        path: its file.
        view: what the map is of: "view 1", "head 2", "reduction 1".
        kind: "attention" for weights that sum to 1, "cosine" for the cosine of a part and the embedding.
        weights: one number for each part of the image.
        boxes: left, top, right and bottom of each part as fractions of the image's width and height.
        tiled: whether the parts are cells that cover the image.
        caption: the caption that matches best, or the question and its answer.
        right: whether this caption belongs to the image; None if that is not known.
        words: the weight of each word of the caption, if the model weighs words.
    """

    model: str
    image_id: str
    path: ImageFile
    view: str
    kind: str
    weights: Float[Tensor, "N"]
    boxes: Float[Tensor, "N 4"]
    tiled: bool
    caption: str = ""
    right: bool | None = None
    words: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Gallery:
    """The captions among which the best match is looked for.

    Attributes:
        captions: the captions.
        own: for each image, the positions of its own captions; empty if that is not known.
    """

    captions: Sequence[str]
    own: Sequence[frozenset[int]] = ()

    def is_right(self, image: int, caption: int) -> bool | None:
        """Return whether a caption belongs to an image; None if that is not known."""
        return caption in self.own[image] if self.own else None


def gallery_of(corpus: Corpus) -> Gallery:
    """Return the captions of a corpus, and which of them belong to each image."""
    own: list[set[int]] = [set() for _ in corpus.image_ids]
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        own[image].add(text)
    return Gallery(corpus.captions, [frozenset(each) for each in own])


def map_images(
    named: NamedTowers,
    images: Sequence[tuple[str, ImageFile]],
    gallery: Gallery,
    features: FeatureSource | None = None,
) -> list[ImageMap]:
    """Return the maps of a retrieval model for some images, each with the caption that matches it best.

    The maps are the attention of PIE-Net's heads or of score attention where the model has them. Otherwise they are the
    cosine of each local feature and the embedding (MV-VSE, section 4.4), one map for each view.

    Args:
        named: the model.
        images: identifiers and files; the files are read unless there are features.
        gallery: the captions, of which ``own`` is in the order of the images.
        features: stored local features.

    Raises:
        OpenVSEError: the model does not know where its local features are, or they are not as wide as its embeddings.
    """
    model = named.model
    with evaluating(model), torch.inference_mode():
        texts = None if isinstance(model.similarity, Fused) else model.encode_text(list(gallery.captions))
        found: list[ImageMap] = []
        for number, (image_id, path) in enumerate(images):
            place = _located(model, image_id, path, features)
            assert place.boxes is not None
            nothing = torch.zeros(len(place.boxes))
            first = ImageMap(named.name, image_id, path, "", "", nothing, place.boxes, place.tiled)
            if texts is None:
                found += _pair_maps(model, place, gallery, number, first)
            else:
                found += _view_maps(model, place, gallery, number, first, texts)
    return found


def _view_maps(
    model: TwoTower, place: Located, gallery: Gallery, number: int, first: ImageMap, texts: EmbeddingSet
) -> Iterator[ImageMap]:
    local: Features = model.image.encoder(place.raw.to(model.device))
    embedded: EmbeddingSet = model.image(place.raw.to(model.device))
    vectors = embedded.vectors[0]
    aggregator = model.image.aggregator
    if isinstance(aggregator, Attends):
        weights, kind, noun = aggregator.attended(local)[0], "attention", "head"
    elif local.local.shape[-1] == vectors.shape[-1]:
        weights, kind, noun = vectors @ normalize(local.local[0]).T, "cosine", "view"
    else:
        raise OpenVSEError(
            f"{first.model}: its local features are {local.local.shape[-1]} wide and its embeddings "
            f"{vectors.shape[-1]}, so they have no cosine, and {type(aggregator).__name__} has no attention: name a "
            f"model with a shared projection, pie_net or score_attention"
        )
    real = local.mask[0]
    for view, row in enumerate(weights):
        view_only = EmbeddingSet(vectors[None, view : view + 1].cpu(), torch.ones(1, 1, dtype=torch.bool))
        best = int(model.score(view_only, texts)[0].argmax())
        label = f"{noun} {view + 1}" if len(weights) > 1 else "embedding"
        yield replace(
            first,
            view=label,
            kind=kind,
            weights=row[real].float().cpu(),
            boxes=first.boxes[: int(real.sum())],
            caption=gallery.captions[best],
            right=gallery.is_right(number, best),
        )


def _pair_maps(
    model: TwoTower, place: Located, gallery: Gallery, number: int, first: ImageMap
) -> Iterator[ImageMap]:
    """Score the image with its own captions, or with the first ones, and map the reductions of the best pair."""
    assert isinstance(model.similarity, Fused)
    own = sorted(gallery.own[number]) if gallery.own else range(len(gallery.captions))
    captions = [gallery.captions[at] for at in [*own][:PAIRED]]
    texts: EmbeddingSet = model.text(model.read_texts(captions).to(model.device))
    embedded: EmbeddingSet = model.image(place.raw.to(model.device))
    best = int(model.score(embedded, texts)[0].argmax())
    fusion = model.similarity.fusion
    one = torch.tensor([best], device=texts.vectors.device)
    reduced = fusion.fuse(*fusion.prepare(embedded, texts[one]))
    if reduced.weights is None:
        raise OpenVSEError(
            f"{first.model}: its fusion {type(fusion).__name__} has no weights to show: name a model with "
            f"score_attention"
        )
    of_image, of_words = (weights[0].float().cpu() for weights in reduced.weights)
    pieces = model.text.encoder.pieces(captions[best])
    for row, (seen, read) in enumerate(zip(of_image, of_words, strict=True)):
        yield replace(
            first,
            view=f"reduction {row + 1}",
            kind="attention",
            weights=seen[: len(first.boxes)],
            caption=captions[best],
            right=None if not gallery.own else True,
            words=tuple(zip(pieces, read[: len(pieces)].tolist(), strict=True)),
        )


def map_answers(
    name: str,
    model: Answerer,
    image: tuple[str, ImageFile],
    questions: Sequence[str],
    truths: Sequence[Sequence[str]] = (),
) -> list[ImageMap]:
    """Return the maps behind the answers to questions about an image, with the weights of their words.

    Args:
        name: the name of the model.
        model: the model.
        image: the identifier and the file of the image.
        questions: the questions.
        truths: the right answers to each question, the most frequent one first; none if they are not known.

    Raises:
        OpenVSEError: the model has no weights to show, or does not know where its local features are.
    """
    image_id, path = image
    maps: list[ImageMap] = []
    known = truths or [()] * len(questions)
    for one, truth in zip(explain(model, path, questions, top_k=1), known, strict=True):
        if one.image_weights is None or one.boxes is None or one.word_weights is None:
            raise OpenVSEError(
                f"{name} has no weights over the parts of an image: name a model with the fusion score_attention that "
                f"reads images"
            )
        maps += _answer_maps(name, image_id, path, one, truth)
    return maps


def _answer_maps(
    name: str, image_id: str, path: ImageFile, one: Explained, truth: Sequence[str]
) -> Iterator[ImageMap]:
    assert one.image_weights is not None and one.boxes is not None and one.word_weights is not None
    answer = one.guesses[0]
    said = f"{one.question} → {answer.answer} ({percent(answer.probability)})"
    right = bool(answer_accuracy([answer.answer], [truth], votes=False)[0]) if truth else None
    if right is False:
        said += f", truth: {truth[0]}"
    for row, (seen, read) in enumerate(zip(one.image_weights, one.word_weights, strict=True)):
        words = tuple(zip(one.words, read.tolist(), strict=True))
        view = f"reduction {row + 1}"
        yield ImageMap(
            name, image_id, path, view, "attention", seen, one.boxes, one.tiled, said, right, words
        )


def _located(model: TwoTower, image_id: str, path: ImageFile, features: FeatureSource | None) -> Located:
    """Return the raw local features of an image and their boxes, decoded or from a store."""
    if features is None:
        place = locate(model.image.encoder, model.read_images([path]).to(model.device))
    else:
        at = features.positions([image_id])
        raw = features.gather(at)
        place = Located(raw, *_boxes(model, features, at, raw))
    if place.boxes is None:
        raise OpenVSEError(
            f"{image_id}: the places of its local features are not known: name a model that reads grids or boxes, or a "
            f"feature store with boxes"
        )
    return place


def _boxes(
    model: TwoTower, features: FeatureSource, at: np.ndarray, raw: Inputs
) -> tuple[Float[Tensor, "N 4"] | None, bool]:
    if isinstance(features, FeatureStore) and features.has_boxes:
        return features.boxes(at)[0], False
    covers = model.image.encoder.backbone.covers_image
    return (grid_cells(raw.values.shape[1]) if covers else None), True


def pick_images(corpus: Corpus, count: int, seed: int) -> Corpus:
    """Draw some images of a corpus at random, in its order."""
    drawn = np.random.default_rng(seed).choice(len(corpus), min(count, len(corpus)), replace=False)
    return corpus.select(np.sort(drawn))


def stored_features(model: TwoTower, corpus: Corpus, store: FeatureSource | None) -> FeatureSource | None:
    """Return the features that a model reads for a corpus: those of the store, those of the data set, or none.

    Raises:
        StoreError: the store has none of the images.
    """
    features = own_features(corpus, model.image.encoder.backbone) if store is None else store
    with_features(corpus, features)
    return features
