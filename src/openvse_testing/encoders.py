"""The promises of a backbone, a text encoder, a projection and an augmentation. See ``check_part``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from openvse.backbones.base import Backbone
from openvse.encoders.augmentations import Augmentation
from openvse.encoders.base import TextEncoder
from openvse.encoders.projections import Projection
from openvse.functional import pad
from openvse.media.images import probe_image
from openvse.types import Features
from openvse_testing.contract import require, require_close

CAPTIONS = ("a dog runs on the red mat", "two cats", "the dog", "a")
_MASK = torch.arange(6) < torch.tensor([6, 1, 3]).unsqueeze(1)


def _require_alone(together: Features, alone: Sequence[Features], width: int) -> None:
    require(together.local.shape[-1] == width, f"the features are {together.local.shape[-1]} wide, not {width}")
    for item, each in enumerate(alone):
        same = together.local[item, together.mask[item]], each.local[0, each.mask[0]]
        require_close(*same, "an item has other features in a batch than by itself", atol=1e-6)


@torch.no_grad()
def _images(backbone: Backbone) -> None:
    pixels = [backbone.preprocess(probe_image(number, (96, 64))).double() for number in range(2)]
    alone = [backbone(backbone.collate([each])) for each in pixels]
    _require_alone(backbone(backbone.collate(pixels)), alone, backbone.feature_dim)


def _frozen(backbone: Backbone) -> None:
    trains = any(weight.requires_grad for weight in backbone.parameters())
    require(trains == backbone.fine_tune, f"fine_tune is {backbone.fine_tune}, but its weights train: {trains}")
    require(backbone.fingerprint is not None, "fingerprint is None, so any store would be taken for its own")


@torch.no_grad()
def _sentences(encoder: TextEncoder) -> None:
    tokens = encoder.tokenize(CAPTIONS)
    for caption, each in zip(CAPTIONS, tokens, strict=True):
        require(each.dtype == torch.int64 and len(each) > 0, "tokenize() gives no int64 [N] with N >= 1")
        require(len(encoder.pieces(caption)) == len(each), "pieces() are not one for each token")
    _require_alone(encoder(pad(tokens)), [encoder(pad([each])) for each in tokens], encoder.local_dim)


def _positions(projection: Projection) -> None:
    generator, lengths = torch.Generator().manual_seed(0), _MASK.sum(dim=1).tolist()
    shape = (*_MASK.shape, projection.input_dim)
    local = torch.randn(shape, dtype=torch.float64, generator=generator)
    together = Features(projection(local.masked_fill(~_MASK.unsqueeze(-1), 3.0), _MASK), _MASK)
    parts = [(local[n : n + 1, :length], _MASK[n : n + 1, :length]) for n, length in enumerate(lengths)]
    alone = [Features(projection(*part), part[1]) for part in parts]
    _require_alone(together, alone, projection.output_dim)
    for name, weight in projection.named_parameters():
        value = together.local[_MASK].pow(2).sum()
        (gradient,) = torch.autograd.grad(value, weight, retain_graph=True, materialize_grads=True)
        require(bool(gradient.any()), f"no gradient reaches {name}")


def _hidden(augmentation: Augmentation) -> None:
    require(torch.equal(augmentation.eval()(_MASK), _MASK), "it hides features in evaluation")
    boxes = torch.rand(*_MASK.shape, 4, generator=torch.Generator().manual_seed(0))
    for seed in range(20):
        torch.manual_seed(seed)
        kept = augmentation.train()(_MASK, boxes if seed % 2 else None)
        require(not bool((kept & ~_MASK).any()), "it keeps features that do not exist")
        require(bool(kept.any(dim=1).all()), "an item keeps no feature: use keep_at_least_one")


ENCODER_PROMISES: Mapping[str, Sequence[Callable[[Any], None]]] = {
    "backbone": (_images, _frozen),
    "text encoder": (_sentences,),
    "projection": (_positions,),
    "augmentation": (_hidden,),
}
