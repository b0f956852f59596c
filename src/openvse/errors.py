"""The errors a user can cause, each with one line: the given value, the allowed ones and the remedy."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral, Real
from typing import Any

__all__ = [
    "BadFeaturesError",
    "BadImageError",
    "DataError",
    "DiskError",
    "EngineError",
    "IndexFormatError",
    "MissingItemError",
    "ModelError",
    "OpenVSEError",
    "RecipeError",
    "StoreError",
    "TrainingError",
]

_SECRETS = (
    # What stands before the last @ of a URL: all but the user of a database may be a password or a key.
    (re.compile(r"(?!postgres(?:ql)?://[\w.-]+@)(\b[a-z][a-z0-9+.-]{1,20}:/{1,2})\S*@", re.IGNORECASE), r"\1...@"),
    # A parameter of a URL, or of the other form in which databases are named: host=here password=...
    (
        re.compile(
            r"\b((?:\w*passw\w+|passphrase|pwd|api[_-]?key|token|secret)\s*=\s*)('[^']*'|[^\s&]+)", re.IGNORECASE
        ),
        r"\1***",
    ),
)


_FLAGS = re.compile(r"'openvse [^']*'|\bopenvse [a-z]+ .*|--(overwrite|resume|add|int8|allow-outside|follow-links)\b")
IN_PYTHON = re.compile(r" \(in Python: [^)]*\)")
"""The argument of Python behind an option of a message. The command line leaves it out."""


class OpenVSEError(Exception):
    """Base of every error that the user's input causes. The command line prints its one line and exits with 2.

    Its message shows no password or key of a URL, whoever quotes one. An option of the command line is
    followed by the argument of Python.
    """

    def __init__(self, message: object = "") -> None:
        text = str(message)
        for pattern, shown in _SECRETS if ":/" in text or "=" in text else ():
            text = pattern.sub(shown, text)

        def told(flag: re.Match[str]) -> str:  # not in a command to copy
            return f"{flag[0]} (in Python: {flag[1].replace('-', '_')}=True)" if flag[1] else flag[0]

        super().__init__(_FLAGS.sub(told, IN_PYTHON.sub("", text)))


class RecipeError(OpenVSEError):
    """A recipe names an unknown key or part, or gives a value that the part refuses."""


class DataError(OpenVSEError):
    """A data set is missing, empty or inconsistent."""


class NoCaptionsError(DataError):
    """A folder of images has no captions."""


class BadImageError(DataError):
    """One image cannot be used. The message has the reason. Code that reads many images reports it and continues."""


class BadVideoError(BadImageError):
    """One clip cannot be used. The message has the reason. Code that catches BadImageError catches this too."""


class TextError(OpenVSEError, ValueError):
    """A file is not text in UTF-8. The message names the file and the line.

    It is also a ValueError, like other damage of a text file.
    """


class JsonError(DataError, ValueError):
    """A text is not JSON, or too long or nested too deeply.

    It is also a ValueError, like other damage of a text file.
    """


class StoreError(OpenVSEError):
    """A feature store is missing, damaged, or made by another encoder."""


class BadFeaturesError(StoreError):
    """The features of an item cannot be used. The message has the reason. Code that reads many items reports it."""


class ModelError(OpenVSEError):
    """A model folder is missing or damaged, or does not fit its use."""


class CheckpointError(OpenVSEError):
    """A checkpoint of another project cannot be read, or holds something that has no counterpart in openvse."""


class MissingHalfError(OpenVSEError, ImportError):
    """Something needs the training half of openvse, which is missing here. The message has the install command."""

    def __init__(self, message: object = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class IndexFormatError(OpenVSEError):
    """A search index is missing, damaged, of another version, or made by another model."""


class IndexVersionError(IndexFormatError):
    """A search index has a format that this openvse does not read."""


class IndexDamagedError(IndexFormatError):
    """A search index differs from the one that was written."""


class MissingItemError(DataError):
    """The index or engine holds no item of an id or a number."""


class EngineError(OpenVSEError):
    """The engine of an index cannot be reached, refuses, or cannot serve the model."""


class TrainingError(OpenVSEError):
    """Training cannot start or continue (a NaN loss, a run folder that belongs to another recipe)."""


class DiskError(OpenVSEError, OSError):
    """A file cannot be written, because the disk is full or refuses it. Earlier files are complete.

    It is also an OSError, so that code which expects one from a writer keeps working.
    ``reason`` is the message of the system, its ``strerror``.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.strerror = reason


def decoded_text(content: bytes, where: object, *, first_line: int = 1, offset: int = 0) -> str:
    """Return bytes of UTF-8 as text, without a byte-order mark. Raise TextError if they are not UTF-8.

    The message counts from ``first_line`` and from the ``offset`` of the bytes in their file.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise TextError(f"{where} is UTF-16: save it as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = first_line + content.count(b"\n", 0, error.start)
        raise TextError(
            f"{where}, line {line}: byte {offset + error.start} ({content[error.start]:#04x}) is not UTF-8: save it "
            "as UTF-8"
        ) from error


FEW = 6
"""The number of names up to which a message lists them in full. Beyond it, the message names a command."""


def message_of(error: BaseException, width: int = 160) -> str:
    """Return the message of another library's error, in one line cut between words, or else its type."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())  # without the colours of a terminal
    if len(text) <= width:
        return text or type(error).__name__
    end = text.rfind(" ", 0, width - 3)
    return f"{text[: end if end > 0 else width - 4]} ..."


_EXTRA = re.compile(r"""(?P<package>.*?)\s*;.*\bextra\s*==\s*["'](?P<extra>[\w-]+)["'].*""")


@contextmanager
def importing(needs: str, extra: str, kind: type[OpenVSEError] = OpenVSEError, more: str = "") -> Iterator[None]:
    """Raise an error that says how to install an extra of openvse, or ``more``, if an import of the block fails."""
    try:
        yield
    except ImportError as error:
        raise kind(f"{needs}: {install(extra)}{more}") from error


def install(extra: str) -> str:
    """Return the command that installs the packages of an extra of openvse, from a clone and from a wheel alike."""
    from importlib.metadata import PackageNotFoundError, requires

    with suppress(PackageNotFoundError):
        listed = [match for line in requires("openvse") or () if (match := _EXTRA.fullmatch(line))]
        # An extra that builds on another lists the other, or all of its packages, as the builder of the wheel likes.
        others = {each["package"] for each in listed if each["extra"] == "train" != extra}
        packages = [each["package"] for each in listed if each["extra"] == extra]
        packages = [f"'{each}'" for each in packages if each not in others and not each.startswith("openvse[")]
        if packages:
            return f"pip install {' '.join(packages)}"
    return f"pip install '.[{extra}]' in a clone of openvse"


def nearest(name: str, allowed: Sequence[str]) -> str:
    """Return ``"; did you mean 'x', 'y' or 'z'?"`` for the closest allowed names, at most three, or an empty string."""
    import difflib

    containing = [each for each in allowed if len(name) > 2 and name.lower() in each.lower()]
    # Names that are equally near come in alphabetical order.
    close = sorted(difflib.get_close_matches(name, allowed, n=max(1, len(allowed))))
    close.sort(key=lambda each: -difflib.SequenceMatcher(None, each, name).ratio())
    *others, last = [*dict.fromkeys([*close, *containing])][:3] or [""]
    if not last:
        return ""
    return f"; did you mean {', '.join(map(repr, others))}{' or ' if others else ''}{last!r}?"


def choices(allowed: Sequence[str], command: str) -> str:
    """Return the allowed names in brackets, or the command that lists them if there are many."""
    if len(allowed) <= FEW:
        return f" (allowed: {', '.join(allowed)})"
    return f" ({command!r} lists all {len(allowed)})"


def check_number(
    name: str,
    given: Any,
    least: float,
    most: float = math.inf,
    *,
    whole: bool = False,
    above: bool = False,
    also: str = "",
) -> None:
    """Raise DataError, which names what is ``also`` allowed, unless a setting is finite and from ``least`` to ``most``.

    ``above`` excludes ``least``.
    """
    is_number = isinstance(given, Integral if whole else Real) and not isinstance(given, bool)
    if is_number and math.isfinite(given) and least <= given <= most and not (above and given == least):
        return
    low = "" if least == -math.inf else f" above {least:g}" if above else f" from {least:g}"
    high = "" if most == math.inf else f"{' and at most' if above else ' to'} {most:g}"
    raise DataError(f"{name} is {given!r:.40}: give a {'whole ' * whole}number{low}{high}{also}")
