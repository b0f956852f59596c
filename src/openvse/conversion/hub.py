"""The files of a model on the Hugging Face hub, or in its cache if the hub cannot be reached."""

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
    """Return whether a name has the form of a hub id, ``owner/name``.

    Example:
        >>> is_hub_id("openai/clip-vit-base-patch32"), is_hub_id("runs/clip/model.pth"), is_hub_id("../clip")
        (True, False, False)
    """
    return bool(_ID.fullmatch(source)) and not source.startswith((".", "/"))


@dataclass(frozen=True)
class HubFolder:
    """A model of the hub, whose files are downloaded when they are needed.

    Attributes:
        folder: the snapshot in the cache of the hub, which has the configurations and the tokenizer.
        name: the hub id.
        revision: the commit.
    """

    folder: Path
    name: str
    revision: str | None

    def find(self, name: str) -> Path | None:
        """Return a file, which is downloaded if the cache lacks it, or None if the model has no file of this name.

        An interrupted download continues where it stopped.

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
        except (
            EntryNotFoundError
        ):  # the model does not have it, or the cache lacks it and the hub cannot be reached
            return None
        except CheckpointError:
            raise
        except Exception as error:  # the hub's client fails in many ways
            raise _unreachable(self.name, error) from error

    def _expect_memory(self, name: str) -> None:
        """Raise CheckpointError if the hub states that the weights exceed this machine's memory."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.constants import HF_HUB_OFFLINE

        if HF_HUB_OFFLINE or not name.endswith(LARGE):
            return
        try:
            size = get_hf_file_metadata(hf_hub_url(self.name, name, revision=self.revision)).size
        except Exception:  # the download itself finds out why
            return
        expect_memory(size or 0, f"the weights of {self.name}")


def open_hub(repo_id: str, *, revision: str | None = None) -> HubFolder:
    """Find a model of the hub; its configurations and tokenizer are downloaded if the cache lacks them.

    Args:
        repo_id: ``owner/name``.
        revision: a branch, tag or commit; None is the main branch.

    Raises:
        CheckpointError: the model does not exist, or neither the hub nor its cache has it.
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
            f"{repo_id} can only be downloaded after you accept its terms: accept them on its page, run "
            f"'hf auth login', and try again"
        )
    if isinstance(error, RepositoryNotFoundError):
        return CheckpointError(f"{repo_id} is neither a folder nor a public model of the hub: check the name")
    offline = isinstance(error, LocalEntryNotFoundError)
    reason = "" if offline else f" ({' '.join(str(error).split())[:120]})"
    return CheckpointError(
        f"{repo_id} is not in the hub's cache ({HF_HUB_CACHE}), and the hub cannot be reached{reason}: on a machine "
        f"with access run 'hf download {repo_id} --local-dir FOLDER', copy the folder here, and run 'openvse "
        f"convert FOLDER MODEL'"
    )
