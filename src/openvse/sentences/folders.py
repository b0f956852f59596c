"""Where ``sentence-transformers`` keeps the files of a module: in a folder, or on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openvse.errors import ModelError


def module_folder(
    module: Any,
    source: str,
    subfolder: str,
    token: bool | str | None,
    cache_folder: str | None,
    revision: str | None,
    local_files_only: bool,
) -> Path:
    """Return the folder of a module, which is downloaded from the hub if the model is there.

    Args:
        module: the class of the module.
        source: the folder or hub id of the whole model.
        subfolder: the folder of the module in it.
        token: for the hub.
        cache_folder: where downloads are kept.
        revision: a branch, tag or commit on the hub.
        local_files_only: whether nothing may be downloaded.

    Raises:
        ModelError: there is no such folder.
    """
    found = module.load_dir_path(
        source,
        subfolder=subfolder,
        token=token,
        cache_folder=cache_folder,
        revision=revision,
        local_files_only=local_files_only,
    )
    if found is None:
        raise ModelError(f"{source} has no folder {subfolder!r}: save or download the whole model again")
    return Path(found)
