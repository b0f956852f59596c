"""The text tower of a model as the only module of a ``SentenceTransformer``."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_model, save_model
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from openvse.assembly import build_aggregator, build_text_encoder
from openvse.encoders import BiGRU, TextEncoder, TransformersText
from openvse.errors import ModelError
from openvse.files import read_json
from openvse.functional import pad
from openvse.model import Tower, evaluating
from openvse.sentences.folders import WEIGHTS, InFolder
from openvse.specs import TowerSpec
from openvse.types import Inputs

CONFIG = "config.json"


class TextTower(InFolder, InputModule):  # type: ignore[misc]
    """Tokenizer, text encoder, aggregator and the scaling to unit length, as one module.

    Its embeddings are those of the model, so a ``SentenceTransformer`` of it searches the same index of images.
    Training it continues the model's own text tower, with its augmentation of tokens. Loading a saved model needs
    ``trust_remote_code=True``, because the library imports this class by its name.

    Args:
        spec: its parts.
        embed_dim: D, the width of an embedding.

    Raises:
        ModelError: the tower makes several embeddings of a sentence.
    """

    save_in_root: ClassVar[bool] = False

    def __init__(self, tower: Tower[TextEncoder], spec: TowerSpec, embed_dim: int) -> None:
        super().__init__()
        self.tower, self.spec, self.embed_dim = tower, spec, embed_dim
        ids = pad(tower.encoder.tokenize(["a word"]))
        with torch.no_grad(), evaluating(tower):
            count = tower(ids).vectors.shape[1] if tower.aggregator.fixed_k else 0
        if count != 1:
            outputs = f"{count} embeddings" if count else "all of the tokens"
            raise ModelError(
                f"the text side keeps {outputs} of a sentence, and sentence-transformers compares one: export a model "
                f"whose text aggregator makes one embedding, such as gpo"
            )

    @property
    def max_seq_length(self) -> int | None:
        """The number of tokens of a sentence that are read; None reads all."""
        encoder = self.tower.encoder
        if isinstance(encoder, BiGRU) and encoder.max_words is not None:
            return encoder.max_words + 2 * encoder.boundaries
        return encoder.max_length if isinstance(encoder, TransformersText) else None

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, task: str | None = None
    ) -> dict[str, Tensor]:
        """Tokenize sentences."""
        sentences = self._prepend_prompt(list(inputs), prompt) if prompt else list(inputs)
        padded = pad(self.tower.encoder.tokenize(sentences))
        assert padded.mask is not None
        return {"input_ids": padded.values, "attention_mask": padded.mask.long()}

    def forward(self, features: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Add the embedding of each sentence, ``[B, D]``."""
        embedded = self.tower(Inputs(features["input_ids"], features["attention_mask"].bool()))
        features["sentence_embedding"] = embedded.vectors[:, 0]
        return features

    def get_embedding_dimension(self) -> int:
        """Return the width of an embedding."""
        return self.embed_dim

    def save(self, output_path: str, safe_serialization: bool = True) -> None:
        """Write the parts, the files of the encoder, and the weights as safetensors, whatever is asked for."""
        folder = Path(output_path)
        config = {"embed_dim": self.embed_dim, "text": self.spec.model_dump(mode="json")}
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        self.tower.encoder.save_assets(folder / "text")
        save_model(self.tower, str(folder / WEIGHTS))

    @classmethod
    def read(cls, folder: Path) -> TextTower:
        """Make a tower that was saved; the library's ``load`` finds the folder."""
        config: Mapping[str, Any] = read_json(folder / CONFIG)
        spec, width = TowerSpec.model_validate(config["text"]), int(config["embed_dim"])
        with torch.enable_grad():
            encoder = build_text_encoder(spec, width, (), folder)
        tower = Tower(encoder, build_aggregator(spec, width, "text", encoder))
        load_model(tower, str(folder / WEIGHTS))
        return cls(tower.eval(), spec, width)
