"""What every model is: modules that were built from a recipe, with a folder and a fingerprint."""

from __future__ import annotations

import hashlib
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from openvse.model.folder import write_model


class Model(nn.Module, ABC):
    """A model of any task.

    Args:
        config: the resolved recipe that built it; it goes into the model folder.

    Attributes:
        identity: the keys of the recipe that make the model what it is; its fingerprint covers them.
    """

    identity: ClassVar[tuple[str, ...]]

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)

    @abstractmethod
    def save_assets(self, folder: Path) -> None:
        """Write what the weights do not hold (vocabularies, a backbone's configuration) into the model folder."""

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.parameters()).device

    @property
    def fingerprint(self) -> str:
        """A hash of the weights and of the recipe's model part: what an index must agree with."""
        told = {key: self.config.get(key) for key in self.identity}
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
        for name, weight in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    def save(self, folder: str | Path) -> Path:
        """Write the model folder: config.json, model.safetensors and what is needed besides."""
        return write_model(self, Path(folder))

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload the model folder to the Hugging Face hub and return its address."""
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            return str(api.upload_folder(repo_id=repo_id, folder_path=self.save(folder)))
