"""What the data sets of clips share: clips found by the name before the suffix, captions and splits by that name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.datasets.csv_file import read_lines
from openvse.datasets.places import first_file
from openvse.errors import DataError
from openvse.media.videos import is_video

YOUTUBE_TERMS = (
    "the clips belong to those who put them on YouTube; for research only, do not redistribute them"
)
"""The terms of clips that were cut from YouTube's videos."""

_ANIMATIONS = (".gif", ".webp")


def clip_corpus(
    name: str,
    root: Path,
    captions: Mapping[str, Sequence[str]],
    splits: Mapping[str, Collection[str]],
    folders: Sequence[str],
    *,
    require_images: bool,
    notes: Sequence[str] = (),
) -> Corpus:
    """Join captions, splits and clips, all by the clips' names, into a corpus.

    Args:
        name: the data set.
        root: its folder.
        captions: of each clip; their order is the corpus's.
        splits: of the clips that are in one; of those in several, the last is kept and leakage is reported.
        folders: where the clips may lie under the root, as in the data set's facts; all that exist are searched.
        require_images: see ``build_corpus``.
        notes: what to say in ``problems`` besides.

    Raises:
        DataError: no folder of clips is there and they are required, and as ``build_corpus`` does.
    """
    clips = _find_clips(root, folders)
    if require_images and not clips:
        raise DataError(
            f"{root}: no clips in {' or '.join(folders)}; put them there, or train on stored features"
        )
    records = (
        Record(clip, clips.get(clip, root / folders[0] / f"{clip}.mp4"), sentences, split)
        for clip, sentences in captions.items()
        for split in splits.get(clip, ("",))
    )
    corpus = build_corpus(name, records, require_images=require_images)
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


def _find_clips(root: Path, folders: Sequence[str]) -> dict[str, Path]:
    """Return the clips by their names without suffix; of equal names the first folder's stays."""
    clips: dict[str, Path] = {}
    for folder in folders:
        for path in sorted((root / folder).iterdir()) if (root / folder).is_dir() else ():
            if is_video(path) or path.suffix.lower() in _ANIMATIONS:
                clips.setdefault(path.stem, path)
    return clips
