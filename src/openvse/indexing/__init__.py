"""The index of a folder of images, or of a file of sentences, on disk: building, following, repair and reading."""

from typing import TYPE_CHECKING

from openvse.lazy import lazy_names

if TYPE_CHECKING:
    from openvse.indexing.build import build_index
    from openvse.indexing.index import Index

__all__ = ["Index", "build_index"]

# A search reads an index, and does not load what makes one.
__getattr__, __dir__ = lazy_names(__name__)
