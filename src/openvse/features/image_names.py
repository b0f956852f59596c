"""Matches names in feature files, which may be numbers, paths or file names, to the images of a data set."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

_NUMBER = re.compile(r"(?:^|_)0*(\d+)$")


class ImageNames:
    """Finds the image that a name means.

    A name may be the identifier itself, its last part, that part without its suffix, or the number at its end:
    ``391895``, ``COCO_val2014_000000391895`` and ``val2014/COCO_val2014_000000391895.jpg`` are the same image. A name
    that could mean two images matches none.

    Args:
        image_ids: the identifiers of a data set's images.

    Examples:
        >>> names = ImageNames(["COCO_val2014_000000391895.jpg", "COCO_val2014_000000000042.jpg"])
        >>> names.find("391895"), names.find("43")
        ('COCO_val2014_000000391895.jpg', None)
    """

    def __init__(self, image_ids: Sequence[str]) -> None:
        self._exact = frozenset(image_ids)
        self._known: dict[str, str | None] = {}
        for image_id in self._exact:
            for form in set(_forms(image_id)):
                self._known[form] = None if form in self._known else image_id

    def find(self, name: str) -> str | None:
        """Return the identifier that a name means, or None."""
        if name in self._exact:
            return name
        return next((image_id for form in _forms(name) if (image_id := self._known.get(form))), None)


def _forms(name: str) -> Iterator[str]:
    path = PurePosixPath(name)
    yield from (name, path.name, path.stem)
    number = _NUMBER.search(path.stem)
    if number:
        yield number[1]
