"""A finding of a check of a data set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        ok: whether the result is correct.
        text: a line to print.
        note: whether it is only information and not a fault.
        cases: the cases that it is about, one line each.
    """

    ok: bool
    text: str
    note: bool = False
    cases: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """The beginning of the line."""
        if self.note:
            return "note"
        return "ok" if self.ok else "WRONG"
