"""Loaders of a batch: images from stored features or files, texts from token ids or stored states, also in order."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils.data import get_worker_info

from openvse.backbones import Backbone
from openvse.corpus.corpus import Corpus
from openvse.encoders import TextEncoder
from openvse.errors import BadImageError, DataError, ModelError, StoreError
from openvse.features.extract import text_id
from openvse.features.store import FeatureStore
from openvse.functional import position_mask
from openvse.media.listing import ImageFile
from openvse.pipeline import Readers, ahead, decoded, readers_for, tell_skipped
from openvse.types import Batch, FeatureSource, Inputs, QuestionBatch


@dataclass(frozen=True)
class RandomView:
    """The seed and epoch that, together with the position of an image, determine its random view in training.

    The view of an image does not depend on the number of workers or on its batch.
    """

    seed: int
    epoch: int

    def generator(self, position: int) -> torch.Generator:
        """Return the generator of one image."""
        state = np.random.SeedSequence((self.seed, self.epoch, position)).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


class FeatureImages:
    """Images whose local features are in a store. A batch is gathered at once.

    An image whose features are not all finite is logged, once in each process, and left out.

    Args:
        image_ids: the images of the corpus, in order.

    Raises:
        StoreError: the store lacks some of the images.
    """

    def __init__(self, source: FeatureSource, image_ids: Sequence[str]) -> None:
        self._gather = getattr(source, "gather_stored", source.gather)  # an encoder takes both
        self._ids = image_ids
        self._rows = source.positions(image_ids)
        self._reported: set[int] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def load(
        self, positions: Int[np.ndarray, "B"], view: RandomView | None = None
    ) -> tuple[Inputs, Bool[np.ndarray, "B"]]:
        """Gather the features of the images that can be used.

        Args:
            view: not read, as encoders augment features themselves.

        Returns:
            The inputs of the usable images, and the positions of these images.

        Raises:
            BadImageError: none of the images can be used.
        """
        inputs: Inputs = self._gather(self._rows[positions])
        numbers = inputs.values.flatten(1)  # NaN is the largest and the smallest
        sound = (numbers.amax(1).float() + numbers.amin(1).float()).isfinite()
        if sound.all():
            return inputs, np.ones(len(positions), dtype=bool)
        usable = sound.numpy()
        for position in set(positions[~usable].tolist()) - self._reported:
            self._reported.add(position)
            tell_skipped([(self._ids[position], "its features hold numbers that are not finite")])
        if not usable.any():
            raise BadImageError(
                f"none of {len(positions)} images has finite features (first: {self._ids[int(positions[0])]}): "
                "extract the features again"
            )
        return inputs.map(lambda each: each[sound]), usable


_Asked: TypeAlias = tuple[int, RandomView | None]  # the position of an image, and its view


class PixelImages:
    """Files of images or clips, decoded on demand.

    A file that cannot be used is logged with its path, once in each process, and left out.

    Args:
        paths: the files of the corpus, in order.
        backbone: the backbone whose ``read`` turns a file into pixels.
        augment: whether to use random views if the caller asks for them.
    """

    def __init__(self, paths: Sequence[ImageFile], backbone: Backbone, *, augment: bool = False) -> None:
        self._paths = paths
        self._backbone = backbone
        self._augment = augment
        self._reported: set[int] = set()
        self._readers: Readers[_Asked, Tensor] | None = None  # for a GPU

    def __len__(self) -> int:
        return len(self._paths)

    def load(
        self, positions: Int[np.ndarray, "B"], view: RandomView | None = None
    ) -> tuple[Inputs, Bool[np.ndarray, "B"]]:
        """Decode images to ``float [B, 3, H, W]``, clips to ``float [B, N, 3, H, W]`` with their mask.

        It returns and raises the same as ``FeatureImages.load``. The view is the random one of training, or None for
        the deterministic one.
        """
        paths, backbone = self._paths, self._backbone

        def read(asked: _Asked) -> Tensor:
            position, view = asked
            return backbone.read(paths[position], view.generator(position) if view else None)

        def name(asked: _Asked) -> ImageFile:
            return paths[asked[0]]

        if self._readers is None and (count := readers_for(backbone.device)):
            self._readers = Readers(read, name, count)
            weakref.finalize(self, self._readers.close)
        asked = [(position, view if self._augment else None) for position in positions.tolist()]
        threads = None if get_worker_info() is None else 1
        (batch,) = decoded([asked], read, name, threads=threads, readers=self._readers)
        bad = {position: reason for (position, _), reason in batch.failed}
        tell_skipped((self._paths[position], bad[position]) for position in sorted(bad.keys() - self._reported))
        self._reported |= bad.keys()
        if not batch.values:
            first = self._paths[int(positions[0])]
            raise BadImageError(f"none of {len(positions)} images can be used (first: {first}): check the files")
        return self._backbone.collate(batch.values), np.array([each not in bad for each in positions.tolist()])


ImageLoader: TypeAlias = FeatureImages | PixelImages
"""Loads images of a corpus by their positions."""


def image_loader(
    backbone: Backbone, corpus: Corpus, features: FeatureSource | None, *, augment: bool = False
) -> ImageLoader:
    """Return the loader of a corpus, from stored features if given. Raise StoreError if the store lacks images."""
    if features is not None:
        return FeatureImages(features, corpus.image_ids)
    return PixelImages(corpus.image_paths, backbone, augment=augment)


def own_features(corpus: Corpus, backbone: Backbone) -> FeatureSource | None:
    """Return the features that come with a data set if the backbone has no network, otherwise None.

    Raises:
        ModelError: the features have another width than the encoder expects, or there are only images for it.
        DataError: the encoder needs images, and the data set has only features.
    """
    if corpus.features is None:
        if backbone.reads_images:
            return None
        raise ModelError(
            f"{corpus.name} has images and no features, but this encoder cannot read images: set data.features=STORE, "
            f"or --features STORE of an evaluation, or choose an encoder that reads images"
        )
    width = corpus.features.dim
    if backbone.fingerprint is not None:
        first = corpus.image_paths[0]
        if isinstance(first, Path) and not first.is_file():
            raise DataError(
                f"{corpus.name} has features {width} wide and no images (such as {first}), but "
                f"this encoder needs images: set image.encoder='{{name: precomputed, feature_dim: {width}}}'"
            )
        return None
    if width != backbone.feature_dim:
        raise ModelError(
            f"{corpus.name} has features {width} wide, but the encoder expects {backbone.feature_dim}: "
            f"set image.encoder.feature_dim={width}"
        )
    return corpus.features


def with_features(corpus: Corpus, features: FeatureSource | None) -> Corpus:
    """Leave out images that a store lacks, because they could not be decoded, and list them in ``problems``.

    Images whose file has changed since their features were stored are kept, and listed too.

    Raises:
        StoreError: the store has none of the images.
    """
    if features is None:
        return corpus
    if isinstance(features, FeatureStore):
        stale = features.stale(zip(corpus.image_ids, corpus.image_paths, strict=True))
        corpus = replace(corpus, problems=tuple(dict.fromkeys((*corpus.problems, *filter(None, [stale])))))
    stored = np.fromiter((item in features for item in corpus.image_ids), dtype=bool, count=len(corpus))
    if stored.all():
        return corpus
    if not stored.any():
        raise StoreError(
            f"the feature store has none of the {len(corpus)} images of {corpus.name} "
            f"(such as {corpus.image_ids[0]}): give this data set's store, or run 'openvse extract' on it"
        )
    first = corpus.image_ids[int(np.flatnonzero(~stored)[0])]
    problem = f"{corpus.name}: {(~stored).sum()} image(s) have no stored features and are skipped (first: {first})"
    return replace(corpus.select(np.flatnonzero(stored)), problems=(*corpus.problems, problem))


class TokenTable:
    """Sentences of different lengths in one tensor, one after the other.

    A list of 600,000 small tensors (the captions of COCO) takes ten times the memory of their ids, and every
    worker process would copy it while counting references.

    Args:
        tokens: the token ids of each sentence, ``int64 [N]``.
    """

    def __init__(self, tokens: Sequence[Int[Tensor, "_"]]) -> None:
        self.lengths = torch.tensor([len(ids) for ids in tokens], dtype=torch.int64)
        self._ids = torch.cat(tuple(tokens)) if len(tokens) else torch.zeros(0, dtype=torch.int64)
        self._starts = self.lengths.cumsum(0) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Return some sentences, padded with 0 to their longest, and their mask."""
        rows = torch.from_numpy(positions)
        lengths = self.lengths[rows]
        mask = position_mask(lengths, int(lengths.max()))
        source = self._starts[rows].unsqueeze(1) + torch.arange(mask.shape[1])
        return Inputs(self._ids[source.where(mask, 0)].where(mask, 0), mask)


class StoredTexts:
    """Texts whose token states are in a store. A batch is gathered at once.

    Args:
        store: the store that ``extract_text_features`` made.
        texts: the texts of the corpus, in order.

    Raises:
        StoreError: the store lacks some of the texts.
    """

    def __init__(self, store: FeatureStore, texts: Sequence[str]) -> None:
        items = [text_id(text) for text in texts]
        if missing := [text for text, item in zip(texts, items, strict=True) if item not in store]:
            raise StoreError(
                f"feature store {store.path} lacks {len(missing)} of {len(texts)} texts (such as {missing[0]!r}): run "
                f"'openvse extract' of the text encoder again, which adds the new ones, or set data.text_features=auto"
            )
        self._store = store
        self._rows = store.positions(items)
        self.lengths = torch.from_numpy(store.lengths[self._rows])

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, positions: Int[np.ndarray, "B"]) -> Inputs:
        """Read the states of some texts from disk, ``[B, N, C]`` in the number format of the store."""
        return self._store.gather_stored(self._rows[positions])


TextLoader: TypeAlias = TokenTable | StoredTexts
"""Loads texts of a corpus by their positions, padded to their longest. ``lengths`` are their numbers of tokens."""


def text_loader(encoder: TextEncoder, texts: Sequence[str], features: FeatureStore | None) -> TextLoader:
    """Return the loader of texts, from stored states if there is a store, which has all, otherwise from token ids."""
    return TokenTable(encoder.tokenize(texts)) if features is None else StoredTexts(features, texts)


class PlacedInputs(NamedTuple):
    """Inputs with the positions of their items in the corpus."""

    positions: Int[np.ndarray, "B"]
    inputs: Inputs

    def to(self, device: torch.device | str) -> PlacedInputs:
        """Return the same with its inputs on a device."""
        return PlacedInputs(self.positions, self.inputs.to(device))


ItemT = TypeVar("ItemT")
BatchT = TypeVar("BatchT", PlacedInputs, Batch, QuestionBatch)


def ready_for(device: torch.device, batches: Iterable[BatchT]) -> Iterable[BatchT]:
    """Yield batches in their order. For a device other than the CPU, a thread reads, pads and sends them ahead."""
    return batches if device.type == "cpu" else ahead(batch.to(device) for batch in batches)


def image_batches(
    images: ImageLoader, batch_size: int, *, rank: int = 0, num_processes: int = 1
) -> Iterator[PlacedInputs]:
    """Yield all usable images in order. With several processes, each yields its own batches."""
    torch.empty((), dtype=torch.int64).random_()  # so that training with a seed draws the same numbers as before
    for start in range(rank * batch_size, len(images), num_processes * batch_size):
        positions = np.arange(start, min(start + batch_size, len(images)))
        with suppress(BadImageError):  # each of them is logged already
            inputs, usable = images.load(positions)
            yield PlacedInputs(positions[usable], inputs)


def text_batches(
    texts: TextLoader, batch_size: int, *, rank: int = 0, num_processes: int = 1
) -> Iterator[PlacedInputs]:
    """Yield all texts by length, so that little is padding. With several processes, each yields its own batches."""
    order = np.argsort(texts.lengths.numpy(), kind="stable")
    for start in range(rank * batch_size, len(order), num_processes * batch_size):
        positions = order[start : start + batch_size]
        yield PlacedInputs(positions, texts.take(positions))


def as_it_is(item: ItemT) -> ItemT:
    """Return a batch unchanged, so that DataLoader does not collate it."""
    return item
