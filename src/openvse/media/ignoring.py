"""Rules for files and folders that are skipped, in the way of ``.gitignore``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openvse.errors import DataError

RULES_FILE = ".openvseignore"
"""The file at the top of a folder whose lines are its rules."""


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    folders_only: bool
    takes_back: bool


class IgnoreRules:
    r"""Says which paths below a folder are skipped; the last rule that fits a path decides.

    A rule is a pattern with ``*``, ``?`` and ``[...]``, none of which matches a slash, and ``**``, which matches any
    number of folders. A pattern with a slash before its end begins at the folder; another one matches at any depth.
    With a slash at its end it matches folders alone. ``!`` before a pattern takes an earlier rule back, but nothing
    inside a folder that is skipped. Empty lines, and lines that begin with ``#``, are no rules.

    Args:
        lines: the rules, in their order.

    Raises:
        DataError: a pattern cannot be understood.

    Examples:
        >>> rules = IgnoreRules(["thumbnails/", "*.gif", "!keep.gif"])
        >>> [rules("thumbnails", True), rules("a/b.gif", False), rules("keep.gif", False)]
        [True, True, False]
    """

    def __init__(self, lines: Sequence[str] = ()) -> None:
        stripped = (line.rstrip("\r\n").strip(" ") for line in lines)
        self._rules = [_rule(line) for line in stripped if line and not line.startswith("#")]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __call__(self, path: str, is_folder: bool) -> bool:
        """Return whether a path is skipped.

        Args:
            path: below the folder, with forward slashes.
            is_folder: whether it is a folder.
        """
        for rule in reversed(self._rules):
            if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(path):
                return not rule.takes_back
        return False


def rules_of(folder: Path, more: Sequence[str] = ()) -> IgnoreRules:
    """Return the rules of a folder: those of its ``.openvseignore``, and then others.

    Raises:
        DataError: the file cannot be read, or a rule cannot be understood.
    """
    file = folder / RULES_FILE
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as text in UTF-8: repair it, or remove it") from error
    return IgnoreRules([*lines, *more])


def _rule(line: str) -> _Rule:
    takes_back = line.startswith("!")
    pattern = line.removeprefix("!").removeprefix("\\")
    folders_only = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    anchored = "/" in pattern
    try:
        translated = _translated(pattern.removeprefix("/"))
        compiled = re.compile(translated if anchored else f"(?:.*/)?{translated}", re.DOTALL)
    except re.error as error:
        raise DataError(f"the ignore rule {line!r} cannot be understood ({error}): write it anew") from error
    return _Rule(compiled, folders_only, takes_back)


_TOKEN = re.compile(r"\*\*/|/\*\*$|\*\*|\*|\?|\[!?[^\]]+\]|\\.|.", re.DOTALL)
_MEANING = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _translated(pattern: str) -> str:
    """Return a pattern as a regular expression."""
    parts = []
    for token in _TOKEN.findall(pattern):
        if token in _MEANING:
            parts.append(_MEANING[token])
        elif token.startswith("[") and len(token) > 1:
            inner = token[1:-1].replace("\\", "\\\\")
            parts.append(f"[^{inner[1:]}/]" if inner.startswith("!") else f"[{inner}]")
        else:
            parts.append(re.escape(token[-1]))
    return "".join(parts)
