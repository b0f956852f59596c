"""Where ``sentence-transformers`` keeps the files of a module: in a folder, or on the hub."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, TypeVar

from openvse.errors import ModelError

WEIGHTS = "model.safetensors"

_WHERE = ("token", "cache_folder", "revision", "local_files_only")

ModuleT = TypeVar("ModuleT", bound="InFolder")


class InFolder:
    """A module that ``sentence-transformers`` loads from its folder; put it before the base class of the library."""

    @classmethod
    @abstractmethod
    def read(cls: type[ModuleT], folder: Path) -> ModuleT:
        """Make the module that ``save`` wrote to a folder."""

    @classmethod
    def load(
        cls: type[ModuleT],
        model_name_or_path: str,
        subfolder: str = "",
        **options: Any,
    ) -> ModuleT:
        """Load a saved module, which is downloaded if it is on the hub.

        Args:
            model_name_or_path: a folder, or the name of a model on the hub.
            subfolder: the folder of the module in it.
            options: all that the library knows; only those that say where a model on the hub lies are read.

        Raises:
            ModelError: there is no such folder.
        """
        library: Any = cls
        where = {name: options[name] for name in _WHERE if name in options}
        found = library.load_dir_path(model_name_or_path, subfolder=subfolder, **where)
        if found is None:
            raise ModelError(
                f"{model_name_or_path} has no folder {subfolder!r}: save or download the whole model again"
            )
        return cls.read(Path(found))
