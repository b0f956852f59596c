"""Images within a larger file, such as an archive or a table."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from openvse.errors import BadImageError


@dataclass(frozen=True, slots=True)
class PackedFile(ABC):
    """A file within a larger one. It may replace the path of an image or clip everywhere.

    It knows the place of its bytes and does not hold them, so that memory is bounded and worker processes receive only
    a few words per image. Its ``str`` is its name in messages.
    """

    container: Path
    name: str

    @abstractmethod
    def read_bytes(self) -> bytes:
        """Return the bytes of the file."""

    def digest(self) -> bytes:
        """Return a hash of the bytes, 64 bytes. See ``read_bytes`` for the errors."""
        return hashlib.blake2b(self.read_bytes()).digest()

    def __str__(self) -> str:
        return f"{self.container}: {self.name}"


ImageFile: TypeAlias = Path | PackedFile
"""The place of an image or clip of a corpus: a file, or a part of one."""


def content_digest(file: ImageFile) -> bytes:
    """Return a hash of the bytes of a file, which may be larger than the memory."""
    if not isinstance(file, Path):
        return file.digest()
    with file.open("rb") as content:
        return hashlib.file_digest(content, "blake2b").digest()


@dataclass(frozen=True, slots=True)
class FileSlice(PackedFile):
    """Consecutive bytes of a larger file, such as a member of an uncompressed tar archive."""

    offset: int
    size: int

    def read_bytes(self) -> bytes:
        """Read the bytes. Raise BadImageError if the larger file ends before the last of them."""
        with self.container.open("rb") as file:
            file.seek(self.offset)
            content = file.read(self.size)
        if len(content) < self.size:
            raise BadImageError(f"{self.container} ends within it: get the whole archive again")
        return content
