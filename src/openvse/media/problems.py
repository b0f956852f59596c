"""Omitted or doubtful items of opened data: a line with all its cases."""

from __future__ import annotations

from collections.abc import Sequence

from openvse.media.names import escaped


class Problem(str):
    """A line about one kind of problem. As a string, it names the first case."""

    summary: str
    cases: tuple[str, ...]
    fault: bool

    def __new__(cls, summary: str, cases: Sequence[str] = (), *, fault: bool = False) -> Problem:
        """Make the line from the summary and the first case."""
        shown = tuple(map(escaped, cases))
        problem = super().__new__(cls, f"{summary} (first: {shown[0]})" if shown else summary)
        problem.summary, problem.cases, problem.fault = summary, shown, fault
        return problem

    def __reduce__(self) -> tuple[type[Problem], tuple[str, tuple[str, ...]], dict[str, bool]]:
        return Problem, (self.summary, self.cases), {"fault": self.fault}


def skipped(cases: Sequence[str], what: str, *, fault: bool = False) -> list[Problem]:
    """Return a line about skipped items, or none without cases."""
    return [Problem(f"skipped {len(cases)} {what}", cases, fault=fault)] if cases else []
