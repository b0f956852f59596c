"""The writer of an index: it appends embeddings, saves them from time to time, and publishes all at once."""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from jaxtyping import Float

from openvse.errors import IndexFormatError, ModelError
from openvse.files import locked
from openvse.search.index import MANIFEST, UNFINISHED, Item, Manifest, VectorDtype, not_finite


class IndexWriter:
    """A context manager that writes a new index next to the old one, and replaces the old one at its end.

    If the context ends with an exception, the old index stays, and so do the embeddings that ``keep`` has saved. At
    the end, files that no manifest names are removed, including those of a writer that was killed.

    Args:
        folder: the folder of the index, which is created if it is missing.
        model: the fingerprint of the model that makes the embeddings.
        root: the indexed folder.
        dtype: the number type of the stored embeddings.
        model_place: the place of the model; see ``search.model_place``.

    Raises:
        IndexFormatError: another process writes this index, or the disk cannot be written to, here or at the end.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: str,
        root: Path,
        dtype: VectorDtype,
        model_place: Mapping[str, str] | None = None,
    ) -> None:
        token = secrets.token_hex(4)
        self._folder, self._model, self._root, self._dtype = folder, model, root, dtype
        self._place = None if model_place is None else dict(model_place)
        self._paths = [folder / f"vectors-{token}.npy", folder / f"items-{token}.jsonl"]
        with ExitStack() as opening, _disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # Only one writer may run: at its end it removes the files of others.
            opening.enter_context(locked(folder, "index", IndexFormatError))
            self._vectors, self._items = (opening.enter_context(path.open("xb")) for path in self._paths)
            self._open = opening.pop_all()
        self._shape = (0, 0, 0)
        self._sums = {"vectors": 0, "items": 0}

    def __enter__(self) -> IndexWriter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with _disk_errors(self._folder), self._open:
            try:
                if error is None:
                    self._publish()
            finally:
                for file in (self._vectors, self._items):
                    with suppress(OSError):  # a file that cannot be flushed is not part of an index
                        file.close()
                self._remove_unnamed()

    def __len__(self) -> int:
        return self._shape[0]

    def append(self, items: Sequence[Item], vectors: Float[np.ndarray, "B K D"]) -> None:
        """Add images and their embeddings.

        Raises:
            IndexFormatError: the disk is full or cannot be written to.
            ModelError: K or D differs from that of earlier images, or a number is NaN or infinite.
        """
        if len(self) == 0:
            self._shape = (0, *vectors.shape[1:])
            with _disk_errors(self._folder):
                self._write_header()
        if vectors.shape[1:] != self._shape[1:]:
            raise ModelError(
                f"the embeddings of the images have the shapes {list(self._shape[1:])} and {list(vectors.shape[1:])}, "
                f"but an index needs one shape: use an aggregator that returns a fixed number of embeddings"
            )
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(vectors, dtype=np.dtype(self._dtype))
        if len(bad := not_finite(stored)):
            raise ModelError(
                f"the embedding of {items[bad[0]].id} holds NaN or infinite numbers as {self._dtype}, and is not "
                f"written: check the weights of the model; if they are sound, remove the image from the folder"
            )
        lines = "".join(json.dumps(asdict(item)) + "\n" for item in items).encode()
        with _disk_errors(self._folder):
            self._vectors.write(stored.data)
            self._items.write(lines)
        sums = {
            "vectors": zlib.crc32(stored.data, self._sums["vectors"]),
            "items": zlib.crc32(lines, self._sums["items"]),
        }
        self._shape, self._sums = (len(self) + len(items), *self._shape[1:]), sums

    def keep(self) -> None:
        """Save everything appended so far, so that a later writer can use it even if this one is killed.

        Raises:
            IndexFormatError: the disk is full or cannot be written to.
        """
        if len(self):
            with _disk_errors(self._folder):
                self._flush()
                self._manifest().write(self._folder, UNFINISHED)

    def _publish(self) -> None:
        self._vectors.seek(0)
        self._write_header()
        self._flush()
        self._manifest().write(self._folder)
        (self._folder / UNFINISHED).unlink(missing_ok=True)

    def _flush(self) -> None:
        for file in (self._vectors, self._items):
            file.flush()
            os.fsync(file.fileno())

    def _manifest(self) -> Manifest:
        count, num_embeddings, dim = self._shape
        return Manifest(
            model=self._model,
            root=str(self._root),
            count=count,
            num_embeddings=num_embeddings,
            dim=dim,
            dtype=self._dtype,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            vectors=self._paths[0].name,
            items=self._paths[1].name,
            checksums=self._sums,
            model_place=self._place,
        )

    def _remove_unnamed(self) -> None:
        manifests = [self._folder / name for name in (MANIFEST, UNFINISHED)]
        named = "".join(path.read_text() for path in manifests if path.is_file())
        for pattern in ("vectors-*.npy", "items-*.jsonl"):
            for path in self._folder.glob(pattern):
                if path.name not in named:
                    with suppress(
                        OSError
                    ):  # some systems refuse this while a reader has the file open; the next writer tries again
                        path.unlink()

    def _write_header(self) -> None:
        """Write the header of the array; NumPy reserves room in it for the first axis to grow, so its size is fixed."""
        descr = np.lib.format.dtype_to_descr(np.dtype(self._dtype))
        header = {"descr": descr, "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(self._vectors, header)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise IndexFormatError(
            f"index {folder} cannot be written ({error.strerror}): make room or choose another place, and run "
            f"'openvse index' again; the old index is unchanged"
        ) from error
