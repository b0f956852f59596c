"""Training batches: the pairs of an epoch in a seeded order, by pair or by image, and the batch that some make."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils.data import Dataset, Sampler, get_worker_info

from openvse.backbones import Backbone
from openvse.corpus.corpus import Corpus
from openvse.encoders import TextEncoder
from openvse.errors import BadImageError, DataError, ModelError, StoreError
from openvse.features.extract import text_id
from openvse.features.store import FeatureStore
from openvse.functional import position_mask
from openvse.media.listing import ImageFile
from openvse.pipeline import Readers, ahead, decoded, readers_for, tell_skipped
from openvse.types import Batch, FeatureSource, Inputs, QuestionBatch, Relevance


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


@dataclass(frozen=True)
class BatchKey:
    """The pairs of a batch, sent to the worker that builds the batch.

    Attributes:
        pairs: positions of the pairs in the corpus's relevance, for all processes together.
        view: the random views of this epoch. None for deterministic ones.
        rank: the number of the process that the batch is for.
        num_processes: the number of processes that share the pairs.
    """

    pairs: Int[np.ndarray, "P"]
    view: RandomView | None = None
    rank: int = 0
    num_processes: int = 1


CaptionsPerImage = int | Literal["all"]


class PairsOfImages:
    """The pairs of each image that has pairs.

    Args:
        relevance: the pairs of a corpus.
        captions: the largest number of pairs of an image in an epoch. ``all`` takes all.
    """

    def __init__(self, relevance: Relevance, captions: CaptionsPerImage) -> None:
        self._images = relevance.images
        counts = np.bincount(relevance.images)
        self._counts = counts[counts > 0]
        self._most = int(counts.max(initial=0)) if captions == "all" else captions

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._counts)

    def draw(self, random: np.random.Generator) -> list[Int[np.ndarray, "n"]]:
        """Return the pairs of each image in random order, at most as many as an epoch takes."""
        order = np.lexsort((random.random(len(self._images)), self._images))
        starts = self._counts.cumsum() - self._counts
        ends = starts + np.minimum(self._counts, self._most)
        return [order[start:end] for start, end in zip(starts, ends, strict=True)]


class EpochBatches(Sampler[BatchKey]):
    """The batches of one epoch, in an order that depends only on (seed, epoch).

    Use it as ``DataLoader(dataset, sampler=EpochBatches(...), batch_size=None)``. Every process draws the same pairs
    and its dataset takes its share of their images, so that pairs do not depend on the number of processes.

    A batch consists of pairs, or of images with several of their captions. The cost of training an image network
    depends on the number of images in a batch, so further captions of each are nearly free.

    Args:
        pairs: the number of pairs in the corpus, or the pairs of each image for batches of images.
        batch_size: the number of pairs or images in a batch, over all processes. The remainder at the end is left out.
            Fewer pairs or images than this make a single batch.
        start: the number of batches that are already done, if a run is resumed.

    Raises:
        DataError: there are no pairs or images, or a batch has fewer of them than there are processes.
    """

    def __init__(
        self,
        pairs: int | PairsOfImages,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        start: int = 0,
        rank: int = 0,
        num_processes: int = 1,
    ) -> None:
        self._of_images = None if isinstance(pairs, int) else pairs
        self._count, unit = (pairs, "pair") if isinstance(pairs, int) else (len(pairs), "image")
        size = min(batch_size, self._count)
        if size < num_processes or size < 1:
            raise DataError(
                f"{self._count} {unit}s in batches of {batch_size} for {num_processes} process(es): "
                f"every process needs at least one {unit}. Use fewer processes, larger batches or more data"
            )
        self._size, self._start = size, start
        self._view = RandomView(seed, epoch)
        self._rank, self._num_processes = rank, num_processes

    def __len__(self) -> int:
        return max(0, self._count // self._size - self._start)

    def __iter__(self) -> Iterator[BatchKey]:
        random = np.random.default_rng((self._view.seed, self._view.epoch))
        order = random.permutation(self._count)
        pairs_of = None if self._of_images is None else self._of_images.draw(random)
        for batch in range(self._start, self._count // self._size):
            drawn = order[batch * self._size : (batch + 1) * self._size]
            pairs = drawn if pairs_of is None else np.concatenate([pairs_of[image] for image in drawn])
            yield BatchKey(pairs, self._view, self._rank, self._num_processes)


class PairDataset(Dataset[Batch]):
    """Builds batches of a corpus from the pairs that they hold.

    Args:
        corpus: images, texts and their relevance.
        images: the loader of the images of the corpus.
        texts: the loader of the captions.

    Raises:
        DataError: the numbers of the three disagree.
    """

    def __init__(self, corpus: Corpus, images: ImageLoader, texts: TextLoader) -> None:
        if (len(images), len(texts)) != (len(corpus), len(corpus.captions)):
            raise DataError(
                f"{corpus.name} has {len(corpus)} images and {len(corpus.captions)} captions, "
                f"but got {len(images)} images and {len(texts)} texts: make them from one corpus"
            )
        self._image_ids = corpus.image_ids
        self._images = images
        self._texts = texts
        self._pair_images, self._pair_texts = corpus.relevance.images, corpus.relevance.texts
        # The pairs of text t are by_text[starts[t] : starts[t] + counts[t]].
        self._by_text = np.argsort(self._pair_texts, kind="stable")
        self._counts = np.bincount(self._pair_texts, minlength=len(texts))
        self._starts = self._counts.cumsum() - self._counts

    def __len__(self) -> int:
        return len(self._pair_images)

    def __getitem__(self, key: BatchKey) -> Batch:
        """Build a batch in which each image and each text occurs once, for any number of its pairs.

        The images of the pairs are divided among the processes, and every caption follows its image: captions of one
        image are never negatives of each other, on any process.

        Raises:
            DataError: there are fewer images than processes, or no image of the batch can be used.
        """
        everywhere = np.unique(self._pair_images[key.pairs])
        images = everywhere[key.rank :: key.num_processes]
        if not len(images):
            raise DataError(
                f"a batch of {len(key.pairs)} pairs has fewer images than the {key.num_processes} processes: "
                "use larger batches or fewer processes"
            )
        inputs, usable = self._images.load(images, key.view)
        images = images[usable]
        pairs = key.pairs[np.isin(self._pair_images[key.pairs], images)]
        texts = np.unique(self._pair_texts[pairs])
        partners, rows = self._partners(everywhere, texts)
        return Batch(
            images=inputs,
            texts=self._texts.take(texts),
            positives=torch.from_numpy(_matrix(images, len(texts), partners, rows)),
            image_keys=torch.from_numpy(images),
            partners=torch.from_numpy(np.stack((partners, rows), axis=1)),
            description=f"{len(pairs)} pairs: {self._name(int(pairs[0]))} to {self._name(int(pairs[-1]))}",
        )

    def _name(self, pair: int) -> str:
        return f"pair {pair} (image {self._image_ids[self._pair_images[pair]]})"

    def _partners(
        self, images: Int[np.ndarray, "I"], texts: Int[np.ndarray, "T"]
    ) -> tuple[Int[np.ndarray, "R"], Int[np.ndarray, "R"]]:
        """Return the image and text row of every relevant pair of these images, whether it was drawn or not."""
        counts = self._counts[texts]
        rows = np.repeat(np.arange(len(texts)), counts)
        within = np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts)
        partners = self._pair_images[self._by_text[np.repeat(self._starts[texts], counts) + within]]
        drawn = np.isin(partners, images)
        return partners[drawn], rows[drawn]


def _matrix(
    images: Int[np.ndarray, "I"], num_texts: int, partners: Int[np.ndarray, "R"], rows: Int[np.ndarray, "R"]
) -> Bool[np.ndarray, "I T"]:
    """Mark the pairs whose image is one of these, which are sorted."""
    own, positives = np.isin(partners, images), np.zeros((len(images), num_texts), dtype=bool)
    positives[np.searchsorted(images, partners[own]), rows[own]] = True
    return positives
