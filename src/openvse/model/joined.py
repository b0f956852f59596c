"""Several models as one: its vectors are theirs, one after the other, so that an index can serve their mean score."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from PIL import Image
from pydantic import ValidationError
from torch import Tensor, nn

from openvse.aggregators import Mean
from openvse.backbones.base import Backbone, all_real
from openvse.encoders import ImageEncoder, TextEncoder
from openvse.errors import ModelError
from openvse.model.tower import Tower, evaluating
from openvse.model.two_tower import TwoTower
from openvse.similarities import ScaledCosine, SetMax
from openvse.specs import Part, TowerSpec, TwoTowerSpec
from openvse.tokenization import UnknownWord
from openvse.types import Features, Inputs

JOINED = "joined"
"""The name of the encoders of a joined model in its spec."""

_PROBE = Image.new("RGB", (64, 64))


class JoinedImages(Backbone):
    """The image towers of several models, as a backbone whose one local feature is their vectors, one after the other.

    A batch holds the pixels of all members one after the other. Each member must make the same number of pixels of
    every image.

    Args:
        towers: the image towers, each of which makes one vector of length 1 from an image.
        scales: the factor of each member's vector.
        fingerprint: the identity of the members.

    Raises:
        ModelError: a member cannot read images, or the size of its input differs between images.
    """

    usual_projection: ClassVar[str] = "none"
    usual_augmentation: ClassVar[str] = "none"

    def __init__(
        self, towers: Sequence[Tower[ImageEncoder]], scales: Sequence[float], fingerprint: str
    ) -> None:
        probes = [_probe(number, tower) for number, tower in enumerate(towers, start=1)]
        with torch.no_grad():
            widths = [_width(tower, probe) for tower, probe in zip(towers, probes, strict=True)]
        super().__init__(nn.ModuleList(towers), feature_dim=sum(widths), fingerprint=fingerprint)
        self._scales = tuple(scales)
        self._shapes = [probe.values.shape[1:] for probe in probes]

    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 1 W"]:
        """Preprocess an image for each member, and return the pixels of all one after the other."""
        pixels = [tower.encoder.backbone.preprocess(image).flatten() for tower in self._towers()]
        return torch.cat(pixels).view(3, 1, -1)

    def see(self, inputs: Inputs) -> Features:
        """Return the joined vector of each image."""
        parts = torch.split(inputs.values.flatten(1), [math.prod(shape) for shape in self._shapes], dim=1)
        vectors = [
            tower(Inputs(part.view(-1, *shape), None)).vectors
            for tower, part, shape in zip(self._towers(), parts, self._shapes, strict=True)
        ]
        return all_real(_join(vectors, self._scales))

    def save_assets(self, folder: Path) -> None:
        """Write the files of each member's image encoder to a folder of its own."""
        for number, tower in enumerate(self._towers()):
            tower.encoder.save_assets(folder / str(number) / "image")

    def _towers(self) -> list[Tower[ImageEncoder]]:
        return cast("list[Tower[ImageEncoder]]", list(self.net.children()))


class JoinedTexts(TextEncoder):
    """The text towers of several models, as an encoder whose one local feature is their vectors, one after the other.

    The tokens of a sentence are the number of tokens for each member, followed by the tokens themselves.

    Args:
        towers: the text towers, each of which makes one vector of length 1 from a sentence.
        scales: the factor of each member's vector.
        embed_dim: the sum of their widths.
    """

    def __init__(self, towers: Sequence[Tower[TextEncoder]], scales: Sequence[float], embed_dim: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(towers)
        self.local_dim = embed_dim
        self._scales = tuple(scales)

    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        """Tokenize each caption for each member."""
        of_member = [tower.encoder.tokenize(captions) for tower in self._towers()]
        return [
            torch.cat([torch.tensor([len(each) for each in tokens]), *tokens])
            for tokens in zip(*of_member, strict=True)
        ]

    def pieces(self, caption: str) -> list[str]:
        """Return the pieces of each member; the numbers before them stand for no piece."""
        towers = self._towers()
        return [*[""] * len(towers), *(piece for tower in towers for piece in tower.encoder.pieces(caption))]

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words that no member knows."""
        first, *others = (tower.encoder.unknown_words(caption) for tower in self._towers())
        unknown_to_others = [{word.word for word in each} for each in others]
        return [word for word in first if all(word.word in each for each in unknown_to_others)]

    def forward(self, inputs: Inputs) -> Features:
        """Return the joined vector of each sentence."""
        lengths = inputs.values[:, : len(self.members)]
        starts = len(self.members) + lengths.cumsum(dim=1) - lengths
        vectors = [
            tower(_cut(inputs.values, starts[:, number], lengths[:, number])).vectors
            for number, tower in enumerate(self._towers())
        ]
        return all_real(_join(vectors, self._scales))

    def save_assets(self, folder: Path) -> None:
        """Write the files of each member's text encoder to a folder of its own."""
        for number, tower in enumerate(self._towers()):
            tower.encoder.save_assets(folder / str(number) / "text")

    def _towers(self) -> list[Tower[TextEncoder]]:
        return cast("list[Tower[TextEncoder]]", list(self.members))


@dataclass(frozen=True)
class JoinedMember:
    """What the spec of a joined model says of one of its members.

    Attributes:
        spec: the parts of the member.
        share: the share of the member in the score.
        fingerprint: the identity of the model that was joined.
    """

    spec: TwoTowerSpec
    share: float
    fingerprint: str


def join(models: Sequence[TwoTower], shares: Sequence[float] | None = None) -> TwoTower:
    """Make one model of several whose score is the mean of theirs (the ensembles of VSE-infinity, Table 2).

    If each model compares two vectors of length 1 by their cosine, the weighted mean of the scores is the cosine of
    longer vectors, which are those of the members one after the other, each scaled by the square root of its share. So
    the mean can be searched like a single model, at the price of wider vectors and of running all the members.

    Args:
        models: at least two models.
        shares: the share of each model in the score, above 0; by default all are equal.

    Returns:
        The joined model, which holds the modules of the members. It cannot be trained.

    Raises:
        ModelError: there are fewer than two models, the shares do not fit, or a model does not compare single vectors
            by their cosine or does not read images.
    """
    shares = _checked_shares(len(models), shares)
    for number, model in enumerate(models, start=1):
        _check_member(number, model)
    members = [
        JoinedMember(
            TwoTowerSpec.of(model.spec.model_dump(mode="json")), share / sum(shares), model.fingerprint
        )
        for model, share in zip(models, shares, strict=True)
    ]
    joined = assemble(models, members)
    joined.provenance = _provenance(models)
    return joined


def assemble(models: Sequence[TwoTower], members: Sequence[JoinedMember]) -> TwoTower:
    """Put the modules of the members together; ``join`` checks them first.

    Args:
        models: the members, perhaps without their weights yet.
        members: what the spec says of each.

    Raises:
        ModelError: a member cannot read images, or the size of its input differs between images.
    """
    scales = [math.sqrt(member.share) for member in members]
    fingerprint = hashlib.sha256(" ".join(member.fingerprint for member in members).encode()).hexdigest()[:16]
    backbone = JoinedImages([model.image for model in models], scales, fingerprint)
    width = backbone.feature_dim
    images = ImageEncoder(backbone=backbone, embed_dim=width)
    texts = JoinedTexts([model.text for model in models], scales, width)
    mean = Part(name="mean")
    described = [
        {"share": each.share, "fingerprint": each.fingerprint, "model": each.spec.model_dump(mode="json")}
        for each in members
    ]
    spec = TwoTowerSpec(
        embed_dim=width,
        image=TowerSpec(encoder=Part.model_validate({"name": JOINED, "members": described}), aggregator=mean),
        text=TowerSpec(encoder=Part(name=JOINED), aggregator=mean),
    )
    pools = (Mean(input_dim=width, embed_dim=width), Mean(input_dim=width, embed_dim=width))
    joined = TwoTower(Tower(images, pools[0]), Tower(texts, pools[1]), SetMax(), spec)
    return joined.requires_grad_(False).eval()


def joined_members(spec: TwoTowerSpec) -> list[JoinedMember]:
    """Return what a spec says of the members of a joined model; an empty list for any other model.

    Raises:
        ModelError: the spec says that the model is joined, and does not say of what.
    """
    if JOINED not in (spec.image.encoder.name, spec.text.encoder.name):
        return []
    try:
        return [
            JoinedMember(TwoTowerSpec.model_validate(each["model"]), each["share"], each["fingerprint"])
            for each in spec.image.encoder.options["members"]
        ]
    except (KeyError, TypeError, ValidationError) as error:
        raise ModelError(
            "encoder joined is not for recipes: train each model by itself, and run 'openvse join A B --out MODEL'"
        ) from error


def _checked_shares(num_models: int, shares: Sequence[float] | None) -> Sequence[float]:
    if num_models < 2:
        raise ModelError(f"{num_models} model is given, and join makes one of several: name at least two")
    shares = [1.0] * num_models if shares is None else shares
    if len(shares) != num_models:
        raise ModelError(
            f"{len(shares)} shares are given for {num_models} models: give one for each, in their order"
        )
    if not all(math.isfinite(share) and share > 0 for share in shares):
        raise ModelError(f"the shares are {', '.join(map(str, shares))}: each must be above 0")
    return shares


def _check_member(number: int, model: TwoTower) -> None:
    """Raise ModelError unless the model's score is the cosine of one vector for an image and one for a sentence."""
    cosine = isinstance(model.similarity, SetMax | ScaledCosine)
    towers = (model.image, model.text)
    if not (cosine and model.indexable and all(tower.aggregator.unit_length for tower in towers)):
        raise ModelError(
            f"model {number} does not compare two vectors by their cosine, so its score is not part of a longer "
            f"vector: 'openvse evaluate A B' averages any models, and 'openvse search --rerank' combines two"
        )
    with torch.no_grad(), evaluating(model):
        num_embeddings = model.text(model.read_texts(["a"]).to(model.device)).vectors.shape[1]
    if num_embeddings != 1:
        raise ModelError(
            f"model {number} has {num_embeddings} vectors for each item, and only models with one can be joined"
        )


def _probe(number: int, tower: Tower[ImageEncoder]) -> Inputs:
    """Return the input that a member makes of a small image."""
    backbone = tower.encoder.backbone
    if backbone.reads_videos:
        raise ModelError(
            f"model {number} reads clips, whose number of frames differs: only models of images can be joined"
        )
    try:
        wide = backbone.preprocess(Image.new("RGB", (96, 64)))
        probe = backbone.collate([backbone.preprocess(_PROBE)])
    except ModelError as error:
        raise ModelError(f"model {number} cannot be joined: {error}") from error
    if probe.mask is not None or probe.values.shape[1:] != wide.shape:
        raise ModelError(
            f"model {number} makes inputs of different sizes from images of different sizes: it cannot be joined"
        )
    return probe


def _width(tower: Tower[Any], probe: Inputs) -> int:
    with evaluating(tower):
        return int(tower(probe.to(next(tower.parameters()).device)).vectors.shape[-1])


def _cut(values: Int[Tensor, "B N"], starts: Int[Tensor, "B"], lengths: Int[Tensor, "B"]) -> Inputs:
    """Return the tokens of one member, padded to its longest sentence of the batch."""
    place = torch.arange(int(lengths.max()), device=values.device)
    mask = place < lengths.unsqueeze(1)
    ids = values.gather(1, (starts.unsqueeze(1) + place).clamp(max=values.shape[1] - 1))
    return Inputs(ids * mask, mask)


def _join(vectors: Sequence[Float[Tensor, "B 1 _"]], scales: Sequence[float]) -> Float[Tensor, "B 1 D"]:
    return torch.cat([each * scale for each, scale in zip(vectors, scales, strict=True)], dim=-1)


def _provenance(models: Sequence[TwoTower]) -> dict[str, Any]:
    """Return the origin of the members; the data are the first one's, if all agree about them."""
    first, *others = (model.provenance.get("data") for model in models)
    agreed = {"data": first} if first is not None and all(each == first for each in others) else {}
    return {**agreed, JOINED: [{"model": model.fingerprint, **model.provenance} for model in models]}
