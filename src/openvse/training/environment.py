"""The machine and the software of a run for its records, its precision, and whether a model fits into its memory."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch
from accelerate import Accelerator

from openvse import __version__
from openvse.errors import CheckpointError, OpenVSEError, TrainingError
from openvse.functional import computes_bf16

_GIT_S = 5
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # the limit of a container


def environment(device: torch.device) -> dict[str, str]:
    """Return the environment of a run: versions, commit, machine, device and the time of its start (UTC)."""
    return {
        "started": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "openvse": __version__,
        "commit": source_commit(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": f"{platform.system()} {platform.machine()}",
        "device": _device_name(device),
    }


def peak_memory(device: torch.device) -> int | None:
    """Return the most memory that this process has used so far, in bytes. None if the system does not say.

    On a GPU it is the memory of its tensors there. Elsewhere it is the memory of the process, including pages of a
    feature store that the system has read and could drop.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def memory_of_machine() -> int | None:
    """Return the bytes of memory that this machine, or the container around the process, has. None if unknown."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    try:
        return min(whole, int(_LIMIT.read_text()))
    except (OSError, ValueError):  # no such limit, or "max"
        return whole


def expect_memory(needed: int, what: str, error: type[OpenVSEError] = CheckpointError) -> None:
    """Raise an error if something takes more bytes of memory than this machine has."""
    if (there := memory_of_machine()) is not None and needed > there:
        raise error(
            f"{what} take {needed / 1e9:.1f} GB of memory, but this machine has {there / 1e9:.1f} GB: take a smaller "
            f"model ('openvse list models' lists some), or a machine with more memory"
        )


def source_commit() -> str:
    """Return the commit of the running openvse, with "+changes" if its files differ from it, or "" if unknown."""
    try:
        written = metadata.distribution("openvse").read_text("direct_url.json")
        stated = json.loads(written or "{}").get("vcs_info", {}).get("commit_id", "")
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        stated = ""
    folder = Path(__file__).parents[3]
    if not (folder / ".git").exists():
        return str(stated)
    commit, changed = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--", "src")
    return f"{commit}+changes" if commit and changed else commit


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, timeout=_GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    count = torch.get_num_threads()
    return f"CPU, {count} thread{'s' if count > 1 else ''}"


Precision = Literal["fp32", "bf16", "fp16"]


def chosen_precision(wanted: Literal["auto"] | Precision, device: str) -> Precision:
    """Return ``training.precision`` for a type of device. ``auto`` is bf16 where the device computes it fast."""
    if wanted == "auto":
        return "bf16" if computes_bf16(device) else "fp32"
    if wanted == "fp16" and device == "cpu":
        raise TrainingError("training.precision=fp16 needs a GPU: on a CPU set training.precision=auto or fp32")
    return wanted


def precision_of(accelerator: Accelerator) -> str:
    """Return the precision of a run."""
    return "fp32" if accelerator.mixed_precision == "no" else str(accelerator.mixed_precision)
