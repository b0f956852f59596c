"""The model of retrieval: two towers and a similarity between their embeddings."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from openvse.aggregators import Aggregator
from openvse.assembly.parts import describe_part, describe_tower, joint_width
from openvse.encoders import ImageEncoder, TextEncoder
from openvse.encoders.projections import Encoder
from openvse.errors import DataError, ModelError
from openvse.files import several
from openvse.functional import at_least_single, computes_bf16, normalize, pad
from openvse.media.images import are_images, one_or_many, one_or_several, probe_image
from openvse.media.videos import ClipSource
from openvse.model.base import Model
from openvse.pipeline import read_ahead
from openvse.scoring.calibration import CALIBRATION, Calibration, read_calibration
from openvse.scoring.hubs import QueryBank, read_bank
from openvse.similarities import SIMILARITIES, Similarity
from openvse.similarities.scores import ScaledCosine
from openvse.specs.model import TwoTowerSpec
from openvse.tokenization.vocabulary import UnknownWord, unknown_line
from openvse.types import EmbeddingSet, Inputs

EncoderT = TypeVar("EncoderT", bound=Encoder)


class Tower(nn.Module, Generic[EncoderT]):
    """Maps collated items of one modality to embeddings, and is the only place that normalises them.

    Args:
        encoder: the part that turns Inputs into Features.
        aggregator: the part that turns Features into an EmbeddingSet.

    Attributes:
        shows: what embeddings in training have besides (``EmbeddingSet.local`` and ``unscaled``), by name.
    """

    shows: Collection[str] = ()

    def __init__(self, encoder: EncoderT, aggregator: Aggregator) -> None:
        super().__init__()
        self.encoder = encoder
        self.aggregator = aggregator

    def forward(self, inputs: Inputs) -> EmbeddingSet:
        """Embed a batch: ``vectors [B, K, D]``, of length 1 unless the aggregator sets ``unit_length`` to False."""
        features = self.encoder(inputs)
        embedded: EmbeddingSet = self.aggregator(features)
        if self.shows and self.training:
            unscaled = embedded.vectors if "unscaled" in self.shows else None
            local = EmbeddingSet(features.local, features.mask) if "local" in self.shows else None
            embedded = replace(embedded, unscaled=unscaled, local=local)
        finish = normalize if self.aggregator.unit_length else at_least_single
        return replace(embedded, vectors=finish(embedded.vectors))


def embed_in_chunks(tower: Tower[Any], inputs: Inputs, size: int) -> EmbeddingSet:
    """Embed a large batch for training, ``size`` items at a time, in the memory of a chunk.

    No activations of a chunk are kept. The backward pass embeds it again, with the same random numbers. So the gradient
    equals the whole batch's (Gao et al., Scaling deep contrastive learning batch size under memory limited setup,
    2021), unless a part normalises over the batch.
    """
    parts = [inputs[start : start + size] for start in range(0, len(inputs), size)]
    return EmbeddingSet.concatenate([checkpoint(tower, part, use_reentrant=False) for part in parts])


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and afterwards back into its previous mode, also after an error.

    Gradients are not switched off. A caller that does not need them also enters ``torch.inference_mode``.
    """
    if not any(each.training for each in module.modules()):  # setting it again costs milliseconds
        yield
        return
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


_logger = logging.getLogger(__name__)

BatchPositions = Int[np.ndarray, "B"]

_LARGE = 20_000_000  # weights of an image network, since smaller ones round too much, or gain little
_PROBES, _COSINE = 4, 0.9999  # the drawn images whose embeddings must agree in bf16, and how well


class TwoTower(Model):
    """Images and sentences in one space.

    Args:
        image: the tower of images.
        text: the tower of sentences.
        similarity: the part that scores the embeddings of the two.
        spec: the parts of the model. None derives it from the modules.
        provenance: the origin of the model. See ``Model``.

    Attributes:
        chunk_size: the number of items that a training step embeds at a time. None embeds a batch at once.
        bf16: whether ``encode_pixels``, and so an index or ``encode``, sees images in bf16. None decides it on first
            use: yes for a large network on a processor that multiplies in bf16, if drawn images have the same
            embeddings to a cosine of 0.9999.

    Examples:
        >>> model = openvse.load("runs/emoji/best")  # doctest: +SKIP
        >>> scores = model.score(model.encode_image(["a.jpg"]), model.encode_text(["a dog"]))  # doctest: +SKIP
    """

    task: ClassVar[str] = "retrieval"
    purpose: ClassVar[str] = "compares images and sentences"

    def __init__(
        self,
        image: Tower[ImageEncoder],
        text: Tower[TextEncoder],
        similarity: Similarity,
        spec: TwoTowerSpec | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(spec, provenance)
        self.image = image
        self.text = text
        self.similarity = similarity
        self.chunk_size: int | None = None
        self.bf16: bool | None = None
        self._calibration: Calibration | None = None
        self._bank: QueryBank | None = None

    def __repr__(self) -> str:
        sides = (
            f"{side}={type(tower.encoder).__name__} + {type(tower.aggregator).__name__}"
            for side, tower in (("image", self.image), ("text", self.text))
        )
        try:
            fingerprint = self.fingerprint
        except ModelError:  # of parts that no folder could hold
            fingerprint = "none"
        width = self.image.encoder.arguments().get("embed_dim")
        return (
            f"TwoTower({', '.join(sides)}, similarity={type(self.similarity).__name__}, embed_dim={width}, "
            f"fingerprint={fingerprint})"
        )

    def forward(self, images: Inputs, texts: Inputs) -> tuple[EmbeddingSet, EmbeddingSet]:
        """Embed a batch of each modality, in chunks if ``chunk_size`` is set and the model trains."""
        if self.chunk_size is None or not (self.training and torch.is_grad_enabled()):
            return self.image(images), self.text(texts)
        size = self.chunk_size
        return embed_in_chunks(self.image, images, size), embed_in_chunks(self.text, texts, size)

    def read_images(self, images: Sequence[ClipSource]) -> Inputs:
        """Decode images, or clips if the model reads them, into a batch. See ``read_image``.

        Raises:
            BadImageError: an image cannot be decoded.
            ModelError: the model reads only precomputed features.
        """
        return self.image.encoder.backbone.collate([self.read_image(image) for image in images])

    def read_image(self, image: ClipSource) -> Shaped[Tensor, "... 3 H W"]:
        """Decode an image, or a clip if the model reads them, for ``encode_pixels``. Threads may call it.

        A large JPEG is decoded at a smaller size that the network still allows, unless the backbone has the option
        ``exact_decode: true``.

        Raises:
            BadImageError: the image cannot be decoded.
            ModelError: the model reads only precomputed features.
        """
        return self.image.encoder.backbone.read(image, exact=False)

    def encode_pixels(self, images: Sequence[Shaped[Tensor, "... 3 H W"]]) -> EmbeddingSet:
        """Embed images from ``read_image`` as one batch, and return ``[B, K, D]`` on the CPU.

        The network may see them in bf16 (see the attribute). The later layers make embeddings in fp32.
        """
        if self.bf16 is None:
            self.bf16 = self._agrees_in_bf16()
        return self._embed_pixels(images, bf16=self.bf16)

    def _embed_pixels(self, images: Sequence[Shaped[Tensor, "... 3 H W"]], *, bf16: bool) -> EmbeddingSet:
        backbone = self.image.encoder.backbone
        inputs = backbone.collate(images).to(self.device)
        if bf16:
            with evaluating(backbone), torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16):
                seen = backbone(inputs)
            inputs = Inputs(seen.local.float(), seen.mask)
        return embed(self.image, [(np.arange(len(images)), inputs)], self.device)

    def _agrees_in_bf16(self) -> bool:
        weights = sum(weight.numel() for weight in self.image.encoder.backbone.parameters())
        if self.device.type != "cpu" or weights < _LARGE or not computes_bf16("cpu"):
            return False
        pixels = [self.read_image(probe_image(number, (320, 240))) for number in range(_PROBES)]
        single, half = (self._embed_pixels(pixels, bf16=bf16).vectors for bf16 in (False, True))
        cosine = float(torch.cosine_similarity(single, half, dim=-1).min())
        _logger.info("in bf16, drawn images have embeddings of cosine %.6f to those in fp32", cosine)
        return cosine >= _COSINE

    def read_texts(self, captions: Sequence[str]) -> Inputs:
        """Tokenize sentences into a padded batch for your own training loop."""
        return pad(self.text.encoder.tokenize(captions))

    @property
    def indexable(self) -> bool:
        """Whether searching an index of image embeddings gives exactly the scores of this model.

        A vector store ranks them like the model if ``similarity.indexable``, and otherwise only proposes.
        """
        scores = self.similarity.indexable or self.similarity.near_maximum
        return scores and self.image.aggregator.indexable and self.text.aggregator.indexable

    has_whole: ClassVar[bool] = True  # an exported model lacks some functions of this one

    @property
    def whole(self) -> TwoTower:
        """The model itself. See ``OnnxModel.whole``."""
        return self

    @property
    def reads_images(self) -> bool:
        """Whether it reads images, and not only stored features."""
        return self.image.encoder.backbone.reads_images

    @property
    def makes_index(self) -> bool:
        """Whether it can embed the images of an index."""
        return self.reads_images

    @property
    def reads_videos(self) -> bool:
        """Whether ``encode_image`` also takes clips."""
        return self.image.encoder.backbone.reads_videos

    @property
    def calibration(self) -> Calibration | None:
        """The curve from a score to the probability of relevance.

        None if nothing has fitted one (``openvse evaluate --calibrate``), or if the model has changed since.
        """
        if (curve := self._calibration) is None or curve.model == self.fingerprint:
            return curve
        _logger.warning(
            "the calibration curve is not used, because it was fitted to other weights (model %s): run "
            "'openvse evaluate --calibrate' again",
            curve.model,
        )
        self._calibration = None
        return None

    @calibration.setter
    def calibration(self, calibration: Calibration | None) -> None:
        """Let the model keep a curve, or none."""
        self._calibration = calibration

    @property
    def query_bank(self) -> QueryBank | None:
        """Embeddings of training captions and images, which show hubs. None without, or if the model has changed."""
        bank = self._bank
        return bank if bank is not None and bank.model == self.fingerprint else None

    def encode(self, items: ClipSource | Iterable[ClipSource]) -> EmbeddingSet:
        """Embed sentences or images, and recognise which. A text that ends like an image is its path."""
        given = one_or_several(items, "items")
        return self.encode_image(given) if are_images(given) else self.encode_text(given)

    def encode_image(self, images: ClipSource | Iterable[ClipSource], batch_size: int = 64) -> EmbeddingSet:
        """Embed images (paths, bytes, PIL images or arrays ``uint8 [H, W, 3]``), or clips if the model reads them.

        The next images are decoded in threads meanwhile.

        Args:
            images: one image, or any number of images.
            batch_size: the number of images at a time.

        Returns:
            The embeddings on the CPU, ``[B, K, D]``, in the given order.

        Raises:
            BadImageError: an image cannot be decoded.
            ModelError: the model reads only precomputed features.
        """
        parts = read_ahead(one_or_many(images), self.read_image, batch_size)
        batches = (
            (number * batch_size + np.arange(len(pixels)), self.image.encoder.backbone.collate(pixels))
            for number, pixels in enumerate(parts)
        )
        return embed(self.image, batches, self.device)

    def encode_text(self, captions: str | Iterable[str], batch_size: int = 256) -> EmbeddingSet:
        """Embed sentences. Unknown words are logged, in one warning for all sentences.

        Args:
            captions: one sentence, or any number of sentences.
            batch_size: the number of sentences at a time.

        Returns:
            The embeddings on the CPU, ``[B, K, D]``, in the given order.

        Raises:
            DataError: there are none, or one is no text.
        """
        if not (captions := several(captions, "captions")):
            raise DataError("captions is empty: give at least one text")
        if unknown := unknown_line(chain.from_iterable(self.unknown_words(captions))):
            _logger.warning("%s", unknown)
        tokens = self.text.encoder.tokenize(captions)
        # Sentences of similar length share a batch, so that little of it is padding.
        order = np.argsort([len(ids) for ids in tokens], kind="stable")
        batches = (
            (chosen, pad([tokens[position] for position in chosen]))
            for chosen in (order[start : start + batch_size] for start in range(0, len(order), batch_size))
        )
        return embed(self.text, batches, self.device)

    def unknown_words(self, captions: str | Iterable[str]) -> list[list[UnknownWord]]:
        """Return the words of each sentence that the model has not learned, and the words that it reads instead."""
        captions = several(captions, "captions")
        return [self.text.encoder.unknown_words(caption) for caption in captions]

    @torch.inference_mode()
    def score(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs by the similarity, and return the scores on the device of the images' embeddings.

        If the similarity has weights, the scores are computed on their device. For large sets use
        ``similarities.score_blocks``.
        """
        self.similarity.check(images, texts)
        device = next(self.similarity.parameters(), images.vectors).device
        scores: Tensor = self.similarity(images.to(device), texts.to(device))
        return scores.to(images.vectors.device)

    def logits(self, images: EmbeddingSet, texts: EmbeddingSet) -> Float[Tensor, "I T"]:
        """Score all pairs like the published dual encoder from which the model was made: ``scale * score + bias``.

        Raises:
            ModelError: the similarity has no scale and bias.
        """
        if not isinstance(self.similarity, ScaledCosine):
            raise ModelError("the model has no logits, as its similarity has no scale: use score, or scaled_cosine")
        return self.similarity.logits(self.score(images, texts))

    def describe(self) -> TwoTowerSpec:
        """Derive the spec from the parts. See ``Model.describe``."""
        width, of_text = joint_width(self.image.encoder), joint_width(self.text.encoder)
        if width != of_text:
            raise ModelError(f"the image side has embed_dim {width}, the text side {of_text}: make both for one width")
        return TwoTowerSpec(
            embed_dim=width,
            image=describe_tower("image", self.image.encoder, self.image.aggregator),
            text=describe_tower("text", self.text.encoder, self.text.aggregator),
            similarity=describe_part(SIMILARITIES, self.similarity),
        ).portable()

    def save_assets(self, folder: Path) -> None:
        """Write the files that the encoders need besides their weights."""
        self.image.encoder.save_assets(folder / "image")
        self.text.encoder.save_assets(folder / "text")
        if (calibration := self.calibration) is not None:
            (folder / CALIBRATION).write_text(calibration.to_json(), encoding="utf-8")
        if (bank := self.query_bank) is not None:
            bank.write(folder)

    def read_more(self, folder: Path) -> None:
        """Read the curve from score to probability and the query bank, if they exist and can be used."""
        self._calibration, self._bank = read_calibration(folder), read_bank(folder)


@torch.inference_mode()
def embed(
    tower: Tower[Any], batches: Iterable[tuple[BatchPositions, Inputs]], device: torch.device | str
) -> EmbeddingSet:
    """Embed batches with either side of a model, and return the items on the CPU, sorted by their positions."""
    positions: list[BatchPositions] = []
    parts: list[EmbeddingSet] = []
    with evaluating(tower):
        for chosen, inputs in batches:
            positions.append(chosen)
            parts.append(tower(inputs.to(device)))
            parts[-2:-1] = [each.to("cpu") for each in parts[-2:-1]]  # while the device computes the next
    if not parts:
        raise DataError("there is nothing to embed: give at least one item that can be read")
    parts[-1] = parts[-1].to("cpu")
    return EmbeddingSet.concatenate(parts)[torch.from_numpy(np.argsort(np.concatenate(positions), kind="stable"))]
