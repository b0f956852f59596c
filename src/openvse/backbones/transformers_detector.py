"""Regions of an image from any object detector of the DETR family in the ``transformers`` library."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from openvse.backbones.pretrained import (
    CheckpointBackbone,
    identify,
    load_or_explain,
    load_processor,
    pixels_of,
    probing,
    saved_name,
)
from openvse.errors import RecipeError
from openvse.types import Features, Inputs


class TransformersDetector(CheckpointBackbone):
    """The last decoder states of the queries with the highest scores of a detector: one local feature per region.

    It supports DETR, RT-DETR, D-FINE, YOLOS and similar detectors. The score of a query is its largest class
    probability, and the best come first. These are not the bottom-up-attention regions of the papers (a Faster R-CNN
    trained on objects and attributes of Visual Genome, 2048 wide). Network, data set and width differ, so results are
    not comparable with published region features. The detector stays frozen.

    Args:
        model: a hub id, a local folder, or ``package:NAME`` of an installed package.
        num_regions: N, the largest number of regions per image.
        min_score: the score, in [0, 1], below which regions are left out. The best region of an image is always kept.
        image_size: the side in pixels of the square to which the whole image is resized.

    Raises:
        ModelError: the checkpoint cannot be loaded, or is not such a detector.
        RecipeError: ``num_regions`` is below 1 or above the detector's number of queries, or ``min_score`` is out of
            range.
    """

    usual_projection: ClassVar[str] = "residual_mlp"
    usual_augmentation: ClassVar[str] = "region"
    gives_boxes = True

    def __init__(
        self,
        *,
        model: str,
        assets: Path | None = None,
        num_regions: int = 36,
        min_score: float = 0.0,
        image_size: int = 640,
        exact_decode: bool | None = None,
    ) -> None:
        source = model if assets is None else str(assets)
        detector = _load_detector(source, weights=assets is None)
        processor = load_processor(source)
        pixels = pixels_of(processor, Image.new("RGB", (64, 64)), image_size)
        with torch.no_grad(), probing(source, "regions (as detectors such as RT-DETR and DETR do)"):
            states, _, _ = _queries(detector, pixels.unsqueeze(0))
        _check(num_regions, states.shape[1], min_score)
        checkpoint = identify(model, detector.config) if assets is None else saved_name(assets)
        super().__init__(
            detector,
            feature_dim=states.shape[-1],
            fingerprint=f"{checkpoint}:{image_size}x{image_size}:best {num_regions} from {min_score:g}",
            exact_decode=exact_decode,
        )
        self.checkpoint = checkpoint
        self.processor = processor
        self.image_size = image_size
        self.num_regions = num_regions
        self.min_score = min_score

    def see(self, inputs: Inputs) -> Features:
        """Return the states and boxes of the best queries. The mask is True for queries that reach ``min_score``."""
        states, scores, boxes = self.detect(inputs.values)
        sure = scores >= self.min_score
        sure[:, 0] = True
        return Features(states, sure, boxes=boxes)

    def detect(
        self, pixels: Float[Tensor, "B 3 H W"]
    ) -> tuple[Float[Tensor, "B N C"], Float[Tensor, "B N"], Float[Tensor, "B N 4"]]:
        """Return states, scores and boxes of the best queries of each image, the best first.

        Scores are probabilities. Boxes are left, top, right, bottom as fractions of the image's width and height.
        """
        states, scores, boxes = _queries(self.net, pixels)
        best, chosen = scores.topk(self.num_regions, dim=1)
        picked = chosen.unsqueeze(-1)
        return states.take_along_dim(picked, 1), best, boxes.take_along_dim(picked, 1)


def _queries(
    detector: Any, pixels: Float[Tensor, "B 3 H W"]
) -> tuple[Float[Tensor, "B Q C"], Float[Tensor, "B Q"], Float[Tensor, "B Q 4"]]:
    """Return states, scores and boxes of all queries."""
    output = detector(pixel_values=pixels)
    # DETR and YOLOS choose one of the classes or none. The others decide about each class separately.
    one_of = output.logits.shape[-1] == detector.config.num_labels + 1
    probabilities = output.logits.softmax(-1)[..., :-1] if one_of else output.logits.sigmoid()
    x, y, width, height = output.pred_boxes.unbind(-1)
    corners = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], dim=-1)
    # In YOLOS the states of the patches precede the states of the queries.
    states = output.last_hidden_state[:, -output.logits.shape[1] :]
    return states, probabilities.amax(dim=-1), corners.clamp(0, 1)


def _load_detector(source: str, *, weights: bool) -> Any:
    from transformers import AutoConfig, AutoModelForObjectDetection

    def load(place: str) -> Any:
        if weights:
            detector = AutoModelForObjectDetection.from_pretrained(place, trust_remote_code=False)
        else:
            config = AutoConfig.from_pretrained(place, trust_remote_code=False)
            detector = AutoModelForObjectDetection.from_config(config, trust_remote_code=False)
        return detector.float().eval()

    return load_or_explain(load, source, what="the detector")


def _check(num_regions: int, queries: int, min_score: float) -> None:
    if not 1 <= num_regions <= queries:
        raise RecipeError(
            f"num_regions is {num_regions}, but this detector has {queries} queries: give 1 to {queries}"
        )
    if not 0 <= min_score <= 1:
        raise RecipeError(f"min_score is {min_score}: give a probability from 0 to 1")
