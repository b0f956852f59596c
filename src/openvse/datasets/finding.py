"""What a check of a data set reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        ok: whether it is as it should be.
        text: a line to print.
        note: whether it only tells something, of a thing that is no fault.
        cases: what it is about, a line each.
    """

    ok: bool
    text: str
    note: bool = False
    cases: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """What the line begins with."""
        if self.note:
            return "note"
        return "ok" if self.ok else "WRONG"
