"""Published dual encoders to start with, by short name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from openvse.specs.load import parse_yaml


@dataclass(frozen=True)
class PublishedModel:
    """A dual encoder on the hub: the side of its images in pixels, its millions of parameters, and its width D."""

    source: str
    what: str
    side: int
    millions: int
    width: int
    languages: str
    licence: str


_LISTED = parse_yaml(files("openvse.conversion").joinpath("published.yaml").read_text(encoding="utf-8"))

PUBLISHED = {name: PublishedModel(**fields) for name, fields in _LISTED.items()}
"""The models, with the ones to try first at the top."""


def megabytes_of(name: str) -> int:
    """Return the size of the weights of a published model, or 0 if the name is none of one."""
    return PUBLISHED[name].millions * 4 if name in PUBLISHED else 0
