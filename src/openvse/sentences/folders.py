"""Where ``sentence-transformers`` keeps the files of a module: in a folder, or on the hub."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, TypeVar

from openvse.errors import ModelError

WEIGHTS = "model.safetensors"

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

        The library calls this with all of its arguments; those that follow ``local_files_only`` are not read.
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
            raise ModelError(
                f"{model_name_or_path} has no folder {subfolder!r}: save or download the whole model again"
            )
        return cls.read(Path(folder))
