"""The images and captions that an attention analysis looks at, for models of any task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openvse.analysis.answers import truths_of
from openvse.analysis.attention import (
    Gallery,
    ImageMap,
    gallery_of,
    map_answers,
    map_images,
    pick_images,
    stored_features,
)
from openvse.analysis.opening import NamedTowers, open_split, store_of
from openvse.corpus import Corpus
from openvse.datasets import open_questions
from openvse.errors import OpenVSEError
from openvse.media.packed import ImageFile
from openvse.model import Model, TwoTower
from openvse.training.kind import Request
from openvse.vqa.answerer import Answerer


@dataclass(frozen=True)
class Looked:
    """What to look at.

    Attributes:
        images: images of the user's own; empty takes some of the data.
        captions: captions to match or questions to ask; empty takes those of the data.
        count: how many images of the data to take.
        limit: how many images of the split give their captions to match; None takes all.
        seed: the seed of the draw.
    """

    images: tuple[Path, ...] = ()
    captions: tuple[str, ...] = ()
    count: int = 3
    seed: int = 0
    limit: int | None = None


def look(models: Sequence[tuple[str, Model]], request: Request, asked: Looked) -> list[ImageMap]:
    """Return the maps of each model for each image, those of one image next to each other.

    Args:
        models: retrieval models, or models that answer questions.
        request: the data, unless images and captions are given.
        asked: what to look at.

    Raises:
        OpenVSEError: a model has no maps, or the data cannot be used.
    """
    found: list[list[ImageMap]] = []
    for number, (name, model) in enumerate(models):
        if isinstance(model, TwoTower):
            found.append(_towers(NamedTowers(name, model), number, request, asked))
        elif isinstance(model, Answerer):
            found.append(_answers(name, model, request, asked))
        else:
            raise OpenVSEError(f"{name} {model.purpose}, and has no maps over an image: name another model")
    order = list(dict.fromkeys(one.image_id for each in found for one in each))
    return [one for image in order for each in found for one in each if one.image_id == image]


def _towers(named: NamedTowers, number: int, request: Request, asked: Looked) -> list[ImageMap]:
    if asked.images:
        own: list[tuple[str, ImageFile]] = [(path.name, path) for path in asked.images]
        captions = asked.captions or open_split(request, asked.limit).captions
        return map_images(named, own, Gallery(captions))
    corpus = open_split(request, asked.limit)
    store = store_of(request, number, named.model)
    drawn = pick_images(corpus, asked.count, asked.seed)
    images = list(zip(drawn.image_ids, drawn.image_paths, strict=True))
    gallery = Gallery(asked.captions) if asked.captions else _gallery(corpus, drawn)
    return map_images(named, images, gallery, stored_features(named.model, drawn, store))


def _gallery(corpus: Corpus, drawn: Corpus) -> Gallery:
    """Return all captions of a corpus, and which of them belong to the drawn images."""
    every = gallery_of(corpus)
    place = {image_id: number for number, image_id in enumerate(corpus.image_ids)}
    return Gallery(every.captions, [every.own[place[image_id]] for image_id in drawn.image_ids])


def _answers(name: str, model: Answerer, request: Request, asked: Looked) -> list[ImageMap]:
    if asked.images:
        if not asked.captions:
            raise OpenVSEError(f"{name} answers questions: give --caption with what to ask about each image")
        return [
            one
            for path in asked.images
            for one in map_answers(name, model, (path.name, path), asked.captions)
        ]
    questions = open_questions(request.data, allow_outside=request.allow_outside)
    questions = questions if request.split == "all" else questions.split(request.split)
    drawn = pick_images(questions.as_corpus(), asked.count, asked.seed)
    found = []
    for image_id, path in zip(drawn.image_ids, drawn.image_paths, strict=True):
        own = [q for q in questions.questions if q.image_id == image_id][:1]
        texts = asked.captions or [q.text for q in own]
        truths = [] if asked.captions else [truths_of(q) for q in own]
        found += map_answers(name, model, (image_id, path), texts, truths)
    return found
