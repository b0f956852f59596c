"""The base of every model, which has modules, the spec that builds them, a folder and a fingerprint."""

from __future__ import annotations

import hashlib
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from openvse import __version__
from openvse.backbones.fine_tuning import without_adapters
from openvse.files import replacing_files, write_whole
from openvse.model.folder import CARD, CONFIG, FORMAT_VERSION, WEIGHTS, model_card, write_weights
from openvse.scoring.calibration import CALIBRATION
from openvse.scoring.hubs import BANK
from openvse.specs.model import ModelSpec

_fingerprints: WeakKeyDictionary[Model, tuple[object, str]] = WeakKeyDictionary()
"""The last fingerprint of each model, with the state of its weights."""


class Model(nn.Module, ABC):
    """A model of any task.

    Args:
        spec: the parts of the model. None derives it from the modules (see ``describe``).
        provenance: the origin of the model (the recipe's name, the data set, results on validation), for people and for
            reports. It is not checked, and is written into the model folder.

    Attributes:
        task: a name in the registry of tasks.
        purpose: the use of the model, as the end of a sentence that begins with its name.
        source: the folder or hub id from which it was loaded, or "" for a model made here.
    """

    task: ClassVar[str]
    purpose: ClassVar[str]

    def __init__(self, spec: ModelSpec | None, provenance: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._spec = spec
        self.provenance = dict(provenance or {})
        self.source = ""

    @property
    def spec(self) -> ModelSpec:
        """The parts of the model. Raise ModelError if the model has parts that a recipe cannot name."""
        if self._spec is None:
            self._spec = self.describe()
        return self._spec

    @abstractmethod
    def describe(self) -> ModelSpec:
        """Derive the spec from the parts, for a model made without one.

        Raises:
            ModelError: a part is not registered, or was made for widths that a build would not give it.
        """

    @abstractmethod
    def save_assets(self, folder: Path) -> None:
        """Write the files needed besides the weights (vocabularies, a backbone's config) into the model folder."""

    def read_more(self, folder: Path) -> None:
        """Read the other content of the model folder, after parts and weights. By default nothing."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def fingerprint(self) -> str:
        """A hash of the weights and the spec. An index stores the hash of the model that made it.

        It is kept until the weights change.
        """
        identity = json.dumps(self.spec.identity(), sort_keys=True)
        state = identity, [(name, *_changes(each)) for name, each in self.state_dict(keep_vars=True).items()]
        if (known := _fingerprints.get(self)) is not None and known[0] == state:
            return known[1]
        digest = hashlib.sha256(identity.encode())
        for name, weight in sorted(without_adapters(self).state_dict().items()):
            digest.update(name.encode())
            digest.update(_bytes_of(weight).cpu().numpy().data)
        _fingerprints[self] = state, digest.hexdigest()[:16]
        return _fingerprints[self][1]

    def save(self, folder: str | Path, *, alone: bool = False) -> Path:
        """Write the model folder: config.json, model.safetensors and the files that the encoders need.

        The new files replace an earlier model's files all at once. Adapters are merged into the weights, and paths of
        this machine are cut to their last name.

        Args:
            alone: remove all other files of the folder.

        Raises:
            DiskError: the disk is full or cannot be written to. The old files are complete.
        """
        config = {
            "library_name": "openvse",
            "format_version": FORMAT_VERSION,
            "task": self.task,
            "model": self.spec.portable().model_dump(mode="json"),
            "provenance": {"openvse": __version__, **self.provenance},
        }
        there = [path.name for path in Path(folder).glob("[!.]*")]
        with replacing_files(Path(folder), CONFIG, there if alone else [CALIBRATION, BANK]) as partial:
            self.save_assets(partial)
            (partial / CONFIG).write_text(json.dumps(config, indent=2, default=str) + "\n", encoding="utf-8")
            write_weights(without_adapters(self), partial / WEIGHTS)
        return Path(folder)

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload the model folder and a model card to the Hugging Face hub, and return the address."""
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            folder = self.save(temporary)
            write_whole(folder / CARD, model_card(repo_id, self.task, self.spec, self.provenance))
            return str(api.upload_folder(repo_id=repo_id, folder_path=folder))


def _bytes_of(weight: Tensor) -> Tensor:
    return weight.detach().contiguous().flatten().view(torch.uint8)


def _changes(weight: Tensor) -> tuple[object, ...]:
    """Return a value that changes with any weight, in a tenth of the time of a hash.

    For autograd, fused optimizers and writes to ``weight.data`` are no changes, so its version alone is not enough.
    """
    content = _bytes_of(weight)
    if content.storage_offset() % 8:
        content = content.clone()
    whole = len(content) // 8 * 8
    total = int(content[:whole].view(torch.int64).sum()) + int(content[whole:].sum())
    version = None if weight.is_inference() else weight._version
    return weight.shape, weight.dtype, version, total
