"""Any aggregator as a pooling layer of ``sentence-transformers``."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_model, save_model
from sentence_transformers.base.modules import Module

from openvse.assembly import pooling
from openvse.errors import RecipeError
from openvse.sentences.folders import WEIGHTS, InFolder


class SentencePooling(InFolder, Module):  # type: ignore[misc]
    """A pooling of openvse in the place of the library's own: token embeddings in, a sentence embedding out.

    Loading a saved model needs ``trust_remote_code=True``, because the library imports this class by its name. The
    embedding does not have unit length; the library's ``Normalize`` scales it.

    Args:
        pooling: the name of an aggregator, such as ``gpo``, or a mapping of its name and options.
        dim: the width of the token embeddings, which is also that of the sentence embedding.

    Raises:
        RecipeError: the name or an option is not allowed; or the aggregator makes several embeddings, or needs a global
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
        """Write the name and options of the pooling, and its weights as safetensors, whatever is asked for."""
        self.save_config(output_path)
        save_model(self, str(Path(output_path, WEIGHTS)))

    @classmethod
    def read(cls, folder: Path) -> SentencePooling:
        """Make a pooling that was saved; the library's ``load`` finds the folder."""
        made = cls(**cls.load_config(str(folder)))
        load_model(made, str(folder / WEIGHTS))
        return made


def make_pool(part: str | Mapping[str, Any], dim: int) -> torch.nn.Module:
    """Return a pooling layer; raise RecipeError unless it makes one embedding of the tokens alone."""
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
            f"{name} makes {shape[1]} embeddings of a sentence, and sentence-transformers compares one: take an "
            f"aggregator of one embedding, such as gpo"
        )
    return pool
