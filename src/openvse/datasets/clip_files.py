"""What the data sets of clips share: clips found by the name before the suffix, captions and splits by that name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.datasets.csv_file import read_lines
from openvse.errors import DataError
from openvse.media.videos import is_video

_ANIMATIONS = (".gif", ".webp")


def clip_corpus(
    name: str,
    root: Path,
    captions: Mapping[str, Sequence[str]],
    splits: Mapping[str, Collection[str]],
    folders: Sequence[str],
    *,
    strict: bool,
    require_images: bool,
    notes: Sequence[str] = (),
) -> Corpus:
    """Join captions, splits and clips, all by the clips' names, into a corpus.

    Args:
        name: the data set.
        root: its folder.
        captions: of each clip; their order is the corpus's.
        splits: of the clips that are in one; of those in several, the last is kept and leakage is reported.
        folders: where the clips may lie under the root; all that exist are searched.
        strict: see ``build_corpus``.
        require_images: see ``build_corpus``.
        notes: what to say in ``problems`` besides.

    Raises:
        DataError: no folder of clips is there and they are required, and as ``build_corpus`` does.
    """
    found = _find_clips(root, folders)
    if require_images and not found:
        raise DataError(
            f"{root}: no clips in {' or '.join(folders)}; put them there, or train on stored features"
        )
    records = (
        Record(clip, found.get(clip, root / folders[0] / f"{clip}.mp4"), sentences, split)
        for clip, sentences in captions.items()
        for split in splits.get(clip, ("",))
    )
    corpus = build_corpus(name, records, strict=strict, require_images=require_images)
    return replace(corpus, problems=(*notes, *corpus.problems))


def read_splits(root: Path, lists: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return the splits of each line of some lists.

    Args:
        root: where the lists lie.
        lists: of each split the paths that its list may have; the first that exists is read.
    """
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for split, names in lists.items():
        path = first_file(root, names)
        for line in read_lines(path) if path else ():
            if line.strip():
                splits[line.strip()].add(split)
    return splits


def first_file(root: Path, names: Iterable[str]) -> Path | None:
    """Return the first of some paths under the root that is a file."""
    return next((root / name for name in names if (root / name).is_file()), None)


def require_file(name: str, root: Path, names: Sequence[str]) -> Path:
    """Return the first of some paths under the root that is a file; raise DataError when none is."""
    path = first_file(root, names)
    if path is None:
        raise DataError(f"{root}: no {' or '.join(names)}; get the captions of {name} from its owners")
    return path


def _find_clips(root: Path, folders: Sequence[str]) -> dict[str, Path]:
    """Return the clips by their names without suffix; of equal names the first folder's stays."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted((root / folder).iterdir()) if (root / folder).is_dir() else ():
            if is_video(path) or path.suffix.lower() in _ANIMATIONS:
                found.setdefault(path.stem, path)
    return found
