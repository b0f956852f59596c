"""Any text model of the ``transformers`` library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openvse.encoders.backbone import freeze_unreached, set_backbone_mode
from openvse.encoders.base import TextEncoder
from openvse.encoders.pretrained import load_backbone, load_or_explain
from openvse.encoders.projection import PROJECTIONS
from openvse.encoders.size_augmentation import TokenAugmentation, TokenMode
from openvse.errors import ModelError
from openvse.types import Features, Inputs


class TransformersText(TextEncoder):
    """The last hidden states of BERT, MiniLM and their kin, each token projected to the joint width.

    Args:
        embed_dim: D.
        model: hub id or local folder of the checkpoint.
        assets: a saved model's folder: tokenizer and architecture come from it, ``model`` is not read.
        fine_tune: train the text model too.
        projection: a name of ``PROJECTIONS``.
        max_length: tokens a caption, special ones included; what is longer is cut.
        size_augmentation: what training does to the tokens: none, drop or bert_style; never to special ones.
        augmentation_rate: probability that a token is chosen for it.

    Raises:
        ModelError: the checkpoint cannot be loaded.
        RecipeError: ``bert_style`` with a tokenizer that has no mask token.
    """

    backbone: Any

    def __init__(
        self,
        *,
        embed_dim: int,
        model: str,
        assets: Path | None = None,
        fine_tune: bool = True,
        projection: str = "linear",
        max_length: int = 64,
        size_augmentation: TokenMode = "bert_style",
        augmentation_rate: float = 0.2,
    ) -> None:
        super().__init__()
        source = model if assets is None else str(assets)
        self.fine_tune = fine_tune
        self.max_length = max_length
        self.tokenizer = _load_tokenizer(source)
        self.backbone = load_backbone(source, weights=assets is None)
        self.backbone.requires_grad_(fine_tune)
        if fine_tune:
            freeze_unreached(self.backbone, self.backbone(input_ids=torch.zeros(1, 2, dtype=torch.int64))[0])
        special = set(self.tokenizer.all_special_ids)
        self.augmentation = TokenAugmentation(
            size_augmentation,
            rate=augmentation_rate,
            mask_id=self.tokenizer.mask_token_id,
            replacements=[index for index in range(len(self.tokenizer)) if index not in special],
            protected=sorted(special),
        )
        self.projection = PROJECTIONS.get(projection)(
            input_dim=self.backbone.config.hidden_size, embed_dim=embed_dim
        )
        self.local_dim = self.projection.output_dim
        self.train(self.training)

    def train(self, mode: bool = True) -> TransformersText:
        """Set the mode; a frozen text model stays in evaluation mode."""
        super().train(mode)
        set_backbone_mode(self.backbone, training=mode, fine_tune=self.fine_tune)
        return self

    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        """Return the ids of the word pieces of each caption, special tokens included."""
        encoded = self.tokenizer(list(captions), truncation=True, max_length=self.max_length)["input_ids"]
        # A tokenizer without special tokens makes nothing of an empty caption.
        nothing = [self.tokenizer.unk_token_id or 0]
        return [torch.tensor(ids or nothing) for ids in encoded]

    def forward(self, inputs: Inputs) -> Features:
        """Encode token ids: ``local [B, N, D]``, one feature a token that augmentation left."""
        if inputs.mask is None:
            raise ModelError("token ids came without a mask: collate them with one")
        ids, mask = self.augmentation(inputs.values, inputs.mask)
        with torch.set_grad_enabled(self.fine_tune and torch.is_grad_enabled()):
            states = self.backbone(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return Features(self.projection(states, mask), mask)

    def save_assets(self, folder: Path) -> None:
        """Write the tokenizer and the text model's configuration."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(folder)
        self.backbone.config.save_pretrained(folder)


def _load_tokenizer(source: str) -> Any:
    from transformers import AutoTokenizer

    return load_or_explain(lambda: AutoTokenizer.from_pretrained(source), what="the tokenizer", source=source)
