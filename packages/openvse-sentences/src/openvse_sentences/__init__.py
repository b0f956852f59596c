"""The modules for ``sentence-transformers``: any aggregator as a pooling layer, and the text tower of a model.

The library loads, trains and saves them.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors.torch import load_model
from sentence_transformers.base.modules import InputModule, Module
from torch import Tensor

from openvse.assembly.parts import build_aggregator, build_text_encoder, pooling
from openvse.encoders import TextEncoder
from openvse.errors import ModelError, RecipeError
from openvse.files import read_json
from openvse.functional import pad
from openvse.model.base import write_weights
from openvse.model.two_tower import Tower, evaluating
from openvse.specs.model import TowerSpec
from openvse.types import Inputs

__all__ = ["SentencePooling", "TextTower"]

WEIGHTS = "model.safetensors"

ModuleT = TypeVar("ModuleT", bound="InFolder")


class InFolder:
    """A module that ``sentence-transformers`` loads from its folder. Put it before the base class of the library."""

    @classmethod
    @abstractmethod
    def read(cls: type[ModuleT], folder: Path) -> ModuleT:
        """Make the module that ``save`` wrote to a folder."""

    @classmethod
    def load(
        cls: type[ModuleT],
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        trust_remote_code: bool = False,
        model_kwargs: dict[str, Any] | None = None,
        processor_kwargs: dict[str, Any] | None = None,
        config_kwargs: dict[str, Any] | None = None,
        backend: str = "torch",
    ) -> ModuleT:
        """Load a saved module, which is downloaded if it is on the hub.

        The library calls this with all of its arguments. The arguments after ``local_files_only`` are not read.
        """
        library: Any = cls
        folder = library.load_dir_path(
            model_name_or_path,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        if folder is None:
            raise ModelError(f"{model_name_or_path} has no folder {subfolder!r}: save or download the model again")
        return cls.read(Path(folder))


class SentencePooling(InFolder, Module):  # type: ignore[misc]
    """A pooling of openvse in the place of the library's own: token embeddings in, a sentence embedding out.

    Loading a saved model needs ``trust_remote_code=True``, because the library imports this class by its name. The
    embedding does not have unit length. The library's ``Normalize`` scales it.

    Args:
        pooling: the name of an aggregator, such as ``gpo``, or a mapping of its name and options.
        dim: the width of the token embeddings, and of the sentence embedding.

    Raises:
        RecipeError: the name or an option is not allowed, or the aggregator makes several embeddings or needs a global
            vector.

    Examples:
        >>> SentencePooling("gpo", dim=8).get_embedding_dimension()
        8
    """

    config_keys: ClassVar[list[str]] = ["pooling", "dim"]

    def __init__(self, pooling: str | Mapping[str, Any] = "gpo", dim: int = 384) -> None:
        super().__init__()
        self.pooling = pooling if isinstance(pooling, str) else dict(pooling)
        self.dim = dim
        self.pool = make_pool(self.pooling, dim)

    def forward(self, features: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Add the sentence embedding, ``[B, D]``, to the token embeddings and their mask."""
        mask = features["attention_mask"].bool()
        features["sentence_embedding"] = self.pool(features["token_embeddings"], mask)
        return features

    def get_embedding_dimension(self) -> int:
        """Return the width of the sentence embedding."""
        return self.dim

    def save(self, output_path: str, safe_serialization: bool = True) -> None:
        """Write the name and options of the pooling, and its weights, always as safetensors."""
        self.save_config(output_path)
        write_weights(self, Path(output_path, WEIGHTS))

    @classmethod
    def read(cls, folder: Path) -> SentencePooling:
        """Make a saved pooling. The library's ``load`` finds the folder."""
        made = cls(**cls.load_config(str(folder)))
        load_model(made, str(folder / WEIGHTS))
        return made


def make_pool(part: str | Mapping[str, Any], dim: int) -> torch.nn.Module:
    """Return a pooling layer. Raise RecipeError unless it makes one embedding of the tokens alone."""
    pool = pooling(part, dim)
    name = part if isinstance(part, str) else part["name"]
    if pool.aggregator.needs_pooled:
        raise RecipeError(
            f"{name} needs a global vector of each sentence besides its tokens, which sentence-transformers does not "
            f"pass on: take an aggregator that reads only tokens, such as gpo"
        )
    with torch.no_grad():
        shape = pool.eval()(torch.zeros(1, 2, dim)).shape
    pool.train()
    if len(shape) != 2:
        raise RecipeError(
            f"{name} makes {shape[1]} embeddings of a sentence, not one: use another aggregator, such as gpo"
        )
    return pool


CONFIG = "config.json"


class TextTower(InFolder, InputModule):  # type: ignore[misc]
    """Tokenizer, text encoder, aggregator and the scaling to unit length, as one module.

    Its embeddings equal the model's, so a ``SentenceTransformer`` of it searches the same index of images.
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
                f"the text side keeps {outputs} of a sentence, but sentence-transformers compares one: export a model "
                f"whose text aggregator makes one embedding, such as gpo"
            )

    @property
    def max_seq_length(self) -> int | None:
        """The largest number of tokens read from a sentence. None reads all."""
        return self.tower.encoder.most_tokens

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
        """Write the parts, the files of the encoder, and the weights, always as safetensors."""
        folder = Path(output_path)
        config = {"embed_dim": self.embed_dim, "text": self.spec.model_dump(mode="json")}
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        self.tower.encoder.save_assets(folder / "text")
        write_weights(self.tower, folder / WEIGHTS)

    @classmethod
    def read(cls, folder: Path) -> TextTower:
        """Make a saved tower. The library's ``load`` finds the folder."""
        config: Mapping[str, Any] = read_json(folder / CONFIG)
        spec, width = TowerSpec.model_validate(config["text"]), int(config["embed_dim"])
        with torch.enable_grad():
            encoder = build_text_encoder(spec, width, (), folder)
        tower = Tower(encoder, build_aggregator(spec, width, "text", encoder))
        load_model(tower, str(folder / WEIGHTS))
        return cls(tower.eval(), spec, width)
