"""Code that data sets of clips share: clips, captions and splits are matched by file name without suffix."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.errors import DataError
from openvse.media.videos import is_video

YOUTUBE_TERMS = (
    "the clips belong to those who put them on YouTube; for research only, do not redistribute them"
)
"""The terms of clips cut from YouTube videos."""

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
    """Join captions, splits and clips into a corpus by the names of the clips, in the order of the captions.

    A clip that is in several splits stays in the last, and is reported. All existing folders are searched.
    """
    clips = _find_clips(root, folders)
    if require_images and not clips:
        raise DataError(
            f"{root}: no clips in {' or '.join(folders)}: put them there, or train on stored features"
        )
    records = (
        Record(clip, clips.get(clip, root / folders[0] / f"{clip}.mp4"), sentences, split)
        for clip, sentences in captions.items()
        for split in splits.get(clip, ("",))
    )
    corpus = build_corpus(name, records, require_images=require_images)
    return replace(corpus, problems=(*notes, *corpus.problems))


def _find_clips(root: Path, folders: Sequence[str]) -> dict[str, Path]:
    """Return the clips by their names without suffix. Of equal names, the clip in the first folder is kept."""
    clips: dict[str, Path] = {}
    for folder in folders:
        for path in sorted((root / folder).iterdir()) if (root / folder).is_dir() else ():
            if is_video(path) or path.suffix.lower() in _ANIMATIONS:
                clips.setdefault(path.stem, path)
    return clips
