"""The files of a model on the Hugging Face hub, or in its cache where the hub is not reached."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from openvse.conversion.memory import expect_memory
from openvse.errors import CheckpointError

SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")  # configurations, preprocessing, tokenizers
LARGE = (".safetensors", ".bin")
_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_id(source: str) -> bool:
    """Say whether a name has the form of a hub id, ``owner/name``.

    Example:
        >>> is_hub_id("openai/clip-vit-base-patch32"), is_hub_id("runs/clip/model.pth"), is_hub_id("../clip")
        (True, False, False)
    """
    return bool(_ID.fullmatch(source)) and not source.startswith((".", "/"))


@dataclass(frozen=True)
class HubFolder:
    """A model of the hub, of which files are fetched when they are asked for.

    Attributes:
        folder: the snapshot in the hub's cache; configurations and tokenizer are there.
        name: the hub id.
        revision: the commit.
    """

    folder: Path
    name: str
    revision: str | None

    def find(self, name: str) -> Path | None:
        """Return a file, downloaded if the cache lacks it, or None if the model has none of this name.

        A download that was interrupted goes on where it stopped.

        Raises:
            CheckpointError: the file cannot be fetched, or is larger than this machine's memory.
        """
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        there = self.folder / name
        if there.is_file():
            return there
        try:
            self._expect_memory(name)
            return Path(hf_hub_download(self.name, name, revision=self.revision))
        except EntryNotFoundError:  # not of the model, or not in the cache while the hub is not reached
            return None
        except CheckpointError:
            raise
        except Exception as error:  # the hub's client fails in many ways
            raise _unreachable(self.name, error) from error

    def _expect_memory(self, name: str) -> None:
        """Raise CheckpointError for weights that would be downloaded in vain, as far as the hub tells their size."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.constants import HF_HUB_OFFLINE

        if HF_HUB_OFFLINE or not name.endswith(LARGE):
            return
        try:
            size = get_hf_file_metadata(hf_hub_url(self.name, name, revision=self.revision)).size
        except Exception:  # there is no such file, or no hub: the download itself finds out which
            return
        expect_memory(size or 0, f"the weights of {self.name}")


def open_hub(repo_id: str, *, revision: str | None = None) -> HubFolder:
    """Find a model of the hub: its configurations and tokenizer are downloaded where the cache lacks them.

    Args:
        repo_id: ``owner/name``.
        revision: branch, tag or commit.

    Raises:
        CheckpointError: there is no such model, or neither the hub nor its cache gives it.
    """
    from huggingface_hub import snapshot_download

    try:
        snapshot = snapshot_download(repo_id, revision=revision, allow_patterns=list(SMALL_FILES))
    except Exception as error:  # the hub's client fails in many ways
        raise _unreachable(repo_id, error) from error
    folder = Path(snapshot)
    return HubFolder(folder, repo_id, folder.name)


def _unreachable(repo_id: str, error: Exception) -> CheckpointError:
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return CheckpointError(
            f"{repo_id} is given only to those who accepted its terms: accept them on its page, run 'hf auth login', "
            f"and try again"
        )
    if isinstance(error, RepositoryNotFoundError):
        return CheckpointError(f"{repo_id} is no folder here and no public model of the hub: check the name")
    offline = isinstance(error, LocalEntryNotFoundError)
    reason = "" if offline else f" ({' '.join(str(error).split())[:120]})"
    return CheckpointError(
        f"{repo_id} is not in the hub's cache ({HF_HUB_CACHE}), and the hub cannot be reached{reason}: where it can, "
        f"run 'hf download {repo_id} --local-dir FOLDER', bring the folder here, and run 'openvse convert FOLDER MODEL'"
    )
