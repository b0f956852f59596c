"""What all image encoders share: backbone or stored features -> size augmentation -> projection."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.encoders.backbone import checkpoint_blocks, set_backbone_mode
from openvse.encoders.base import ImageEncoder
from openvse.encoders.frame_limit import FrameLimit
from openvse.encoders.global_vector import PooledBy, global_vector
from openvse.encoders.projection import PROJECTIONS
from openvse.encoders.size_augmentation import FeatureAugmentation, FeatureMode
from openvse.errors import ModelError
from openvse.types import Features, Inputs


class LocalFeatureEncoder(ImageEncoder):
    """Projects local features to the joint width; pixels go through the backbone first.

    Args:
        backbone: pixels to raw features; its parameters train only with ``fine_tune``.
        feature_dim: C, the width of the raw features.
        fingerprint: what made the raw features; None when any store of the right width will do.
        embed_dim: D.
        projection: a name of ``PROJECTIONS``.
        size_augmentation: what training hides: none, region or grid.
        augmentation_rate: probability that a local feature is hidden.
        fine_tune: train the backbone too; its BatchNorm statistics stay as they are.
        pooled: yield a global vector too (PVSE, section 3.1).
        class_token: the first local feature stands for the whole picture: augmentation never hides it, and the
            global vector is made of it in place of the mean.
        gradient_checkpointing: while the backbone trains, keep the activations between its blocks alone and
            compute the others again for the gradient: less memory, the same gradients, more time.
        pooled_by: how the raw features become that vector: mean, bigru or bigru_last.
        frame_limit: chooses among the raw features where they are frames; None keeps all.

    Raises:
        ModelError: checkpointing a backbone that has no blocks.
    """

    def __init__(
        self,
        *,
        backbone: nn.Module,
        feature_dim: int,
        fingerprint: str | None,
        embed_dim: int,
        projection: str,
        size_augmentation: FeatureMode,
        augmentation_rate: float,
        fine_tune: bool,
        pooled: bool,
        class_token: bool = False,
        gradient_checkpointing: bool = False,
        pooled_by: PooledBy = "mean",
        frame_limit: FrameLimit | None = None,
    ) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        # Fine-tuning moves the weights: features stored before it must not pass for features made after it.
        self.fingerprint = f"{fingerprint}:fine_tuned" if fine_tune else fingerprint
        self.fine_tune = fine_tune
        self.backbone = backbone
        if not fine_tune:
            backbone.requires_grad_(False)
        elif gradient_checkpointing:
            checkpoint_blocks(backbone)
        self.frame_limit = frame_limit
        self.augmentation = FeatureAugmentation(size_augmentation, rate=augmentation_rate)
        self.projection = PROJECTIONS.get(projection)(input_dim=feature_dim, embed_dim=embed_dim)
        self.local_dim = self.projection.output_dim
        self.class_token = class_token
        self.gives_pooled = pooled
        self.global_projection = (
            global_vector(pooled_by, input_dim=feature_dim, embed_dim=embed_dim) if pooled else None
        )
        self.train(self.training)

    def train(self, mode: bool = True) -> LocalFeatureEncoder:
        """Set the mode; a frozen backbone and all its BatchNorm layers stay in evaluation mode."""
        super().train(mode)
        set_backbone_mode(self.backbone, training=mode, fine_tune=self.fine_tune)
        return self

    def forward(self, inputs: Inputs) -> Features:
        """Encode pixels (no mask) or stored features ``[B, N, C]`` with their mask.

        Raises:
            ModelError: stored features of another width, or given to a backbone that should be trained.
        """
        raw, real = self.raw(inputs)
        if self.frame_limit is not None:
            raw, real = self.frame_limit(raw, real)
        mask = self.augmentation(real)
        if self.class_token:
            mask = torch.cat([real[:, :1], mask[:, 1:]], dim=1)
        pooled = None
        if self.global_projection is not None:
            kept = slice(0, 1) if self.class_token else slice(None)
            pooled = self.global_projection(raw[:, kept], mask[:, kept])
        return Features(self.projection(raw, mask), mask, pooled)

    def raw(self, inputs: Inputs) -> tuple[Float[Tensor, "B N C"], Bool[Tensor, "B N"]]:
        """Return the raw local features of pixels, or the stored ones after a check."""
        if inputs.mask is None:
            with torch.set_grad_enabled(self.fine_tune and torch.is_grad_enabled()):
                features = self.raw_features(inputs.values)
            return features.local, features.mask
        if inputs.values.shape[-1] != self.feature_dim:
            raise ModelError(
                f"the stored features are {inputs.values.shape[-1]} wide, this encoder expects "
                f"{self.feature_dim}: extract them again with this encoder, or set its feature_dim"
            )
        if self.training and self.fine_tune:
            raise ModelError(
                "fine_tune needs pictures, not stored features: set fine_tune=false or drop the store"
            )
        return inputs.values, inputs.mask
