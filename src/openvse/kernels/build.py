"""Compiles the C source of a kernel on its first use, with the compiler of the system, and keeps the result."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

SWITCH = "OPENVSE_KERNELS"
"""The environment variable that switches the kernels off if it is 0."""

_FLAGS = (
    ("-O3", "-march=native", "-mprefer-vector-width=512"),
    ("-O3", "-march=native"),
    ("-O3", "-mcpu=native"),
    ("-O3",),
)
_COMPILE_SECONDS = 60

_logger = logging.getLogger(__name__)


@functools.cache
def load_kernel(name: str) -> ctypes.CDLL | None:
    """Return a compiled kernel, or None if there is no compiler, it fails, or ``OPENVSE_KERNELS`` is 0.

    The source is part of the package. The compiled file is kept in ``openvse/kernels`` of the user's cache folder,
    under a name that covers the source and the processor, so each kind of machine compiles it once, in about a second.
    """
    if os.environ.get(SWITCH) == "0" or os.name != "posix":
        return None
    source = Path(__file__).with_name(f"{name}.c")
    key = hashlib.sha256(source.read_bytes() + _processor().encode()).hexdigest()[:16]
    try:
        place = _cache() / f"{name}-{key}.so"
        if _is_ours(place):
            with suppress(OSError):  # built for a PyTorch with another threading library
                return ctypes.CDLL(str(place))
        return _compile(source, place)
    except (OSError, subprocess.SubprocessError) as error:
        _logger.debug("the kernel %s is not used: %s", name, error)
        return None


def _cache() -> Path:
    """Return the folder of compiled kernels, which only this user may write to."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "openvse" / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _is_ours(place: Path) -> bool:
    """Return whether the file exists and only this user can have written it."""
    try:
        status = place.stat()
    except FileNotFoundError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _compile(source: Path, place: Path) -> ctypes.CDLL:
    """Compile a source and load it. Raise OSError if there is no compiler or it fails."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise OSError("there is no C compiler")
    refused = ""
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made, parts = Path(folder) / place.name, Path(folder) / f"{source.stem}.o"
        for flags, threads in itertools.product(_FLAGS, (["-fopenmp"], [])):
            # Not linked to a threading library: the loader finds the one that PyTorch has loaded.
            steps = (
                [*flags, *threads, "-fPIC", "-c", str(source), "-o", str(parts)],
                ["-shared", str(parts), "-o", str(made)],
            )
            try:
                for step in steps:
                    subprocess.run(
                        [compiler, *step], capture_output=True, timeout=_COMPILE_SECONDS, check=True
                    )
                library = ctypes.CDLL(str(made))
            except subprocess.CalledProcessError as error:
                refused = error.stderr.decode(errors="replace").strip()[:500]
            except OSError as error:
                refused = str(error)
            else:
                made.chmod(0o700)
                made.replace(place)
                return library
    raise OSError(refused)


def _processor() -> str:
    """Return the kind of the processor, whose instructions the compiled code uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        flags = platform.processor()
    return f"{platform.system()} {platform.machine()} {flags}"
