"""Data sets of clips, matched with captions and splits by file name without suffix: MSR-VTT, MSVD, VATEX, TGIF and MRW.

MSR-VTT (Xu et al., CVPR 2016) has 10,000 clips with 20 sentences each, in the original split or the 1k-A split. MSVD
(Chen and Dolan, ACL 2011) has 1,970 clips of YouTube with about 40 English sentences each. VATEX (Wang et al., ICCV
2019) has clips with 10 English sentences each, and half of the validation clips are the test. TGIF (Li et al., CVPR
2016) and MRW (PVSE, section 4) have animated GIFs from the web, by their addresses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.corpus.facts import Facts
from openvse.corpus.splits import hashed_splits
from openvse.datasets.layout import first_file, reading_json
from openvse.datasets.rows import read_rows, read_tabbed, table_lines
from openvse.errors import DataError
from openvse.media.videos import is_video
from openvse_papers.datasets.layout import published, read_splits, require_file

MSR_VTT, MSR_VTT_1K_A, MSVD, VATEX = map(published, ("msr_vtt", "msr_vtt_1k_a", "msvd", "vatex"))

_ANIMATIONS = (".gif", ".webp")


def clip_corpus(
    facts: Facts,
    root: Path,
    captions: Mapping[str, Sequence[str]],
    splits: Mapping[str, Collection[str]],
    *,
    require_images: bool,
    notes: Sequence[str] = (),
) -> Corpus:
    """Join captions, splits and clips into a corpus by the names of the clips, in the order of the captions.

    A clip that is in several splits stays in the last, and is reported. All existing folders are searched.
    """
    folders = facts.places("clips")
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
    corpus = build_corpus(facts.name, records, require_images=require_images)
    return replace(corpus, problems=(*notes, *corpus.problems))


def _find_clips(root: Path, folders: Sequence[str]) -> dict[str, Path]:
    """Return the clips by their names without suffix. Of equal names, the clip in the first folder is kept."""
    clips: dict[str, Path] = {}
    for folder in folders:
        for path in sorted((root / folder).iterdir()) if (root / folder).is_dir() else ():
            if is_video(path) or path.suffix.lower() in _ANIMATIONS:
                clips.setdefault(path.stem, path)
    return clips


PARTS = ("train_val_videodatainfo.json", "test_videodatainfo.json")
WHOLE = MSR_VTT.places("captions and splits")[1:]


def open_msr_vtt(root: Path, *, require_images: bool = True) -> Corpus:
    """Open MSR-VTT in the original split: 6,513 clips for training, 497 for validation, 2,990 for test.

    Captions and splits come from the original ``train_val_videodatainfo.json`` and ``test_videodatainfo.json``, or from
    the single file of mirrors. Clips are ``video0.mp4`` and so on, in one folder or as unpacked.
    """
    captions, splits = _read_msr_vtt(root)
    return clip_corpus(MSR_VTT, root, captions, splits, require_images=require_images)


def open_msr_vtt_1k_a(root: Path, *, require_images: bool = True) -> Corpus:
    """Open MSR-VTT in the 1k-A split (Yu et al., ECCV 2018): 1,000 test clips with one sentence each.

    ``MSRVTT_JSFUSION_test.csv`` has the test clips and their sentences. Training clips come from
    ``MSRVTT_train.9k.csv`` if it exists, otherwise they are all others. Those in the original validation split are used
    for validation, so that no choice is made on the test clips.
    """
    captions, owners = _read_msr_vtt(root)
    table = require_file(MSR_VTT_1K_A, root, "test clips and sentences")
    columns = (("video_id",), ("sentence",))
    test = {clip: sentence for _, (clip, sentence) in read_rows(table, columns, unread=("key", "vid_key"))}
    if unknown := [clip for clip in test if clip not in captions]:
        raise DataError(f"{table}: clip {unknown[0]} is not in MSR-VTT's captions: get both from one source")
    listed = first_file(root, MSR_VTT_1K_A.places("training clips"))
    train = {clip for _, (clip,) in read_rows(listed, (("video_id",),))} if listed else set(captions)
    validation = {"validation"}
    splits = {clip: validation if owners.get(clip) == validation else {"train"} for clip in train}
    splits |= {key: {"test"} for key in test}
    chosen = {clip: [test[clip]] if clip in test else captions[clip] for clip in captions if clip in splits}
    return clip_corpus(MSR_VTT_1K_A, root, chosen, splits, require_images=require_images)


def _read_msr_vtt(root: Path) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """Return captions and splits of each clip."""
    whole = first_file(root, WHOLE)
    paths = [whole] if whole else [path for name in PARTS if (path := root / name).is_file()]
    if not paths:
        raise DataError(
            f"{root}: no {' or '.join((*WHOLE, *PARTS))}: get the captions of msr_vtt from its owners"
        )
    captions: defaultdict[str, list[str]] = defaultdict(list)
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        with reading_json(path, "MSR-VTT's format") as tree:
            for video in tree["videos"]:
                splits[video["video_id"]].add(
                    "validation" if video["split"] == "validate" else video["split"]
                )
            for sentence in sorted(tree["sentences"], key=lambda sentence: sentence["sen_id"]):
                captions[sentence["video_id"]].append(sentence["caption"])
    order = sorted(splits, key=lambda clip: (len(clip), clip))  # video2 before video10
    return {clip: captions[clip] for clip in order}, splits


_MSVD_LISTS = {
    "train": ("train_list.txt", "splits/train_list.txt", "splits/train.txt"),
    "validation": ("val_list.txt", "splits/val_list.txt", "splits/val.txt"),
    "test": ("test_list.txt", "splits/test_list.txt", "splits/test.txt"),
}
# The name of a clip is its YouTube identifier and the seconds at which it begins and ends.
_LINE = re.compile(r"(\S{11}_\d+_\d+)\s+(.*)")


def open_msvd(root: Path, *, require_images: bool = True) -> Corpus:
    """Open MSVD in the usual split of 1,200 / 100 / 670 clips.

    Each line of ``AllVideoDescriptions.txt``, after a few introductory lines, has the name of a clip and a sentence.
    Each line of the lists has the name of a clip.
    """
    captions = _read_msvd(require_file(MSVD, root, "captions"))
    splits = {Path(name).stem: where for name, where in read_splits(root, _MSVD_LISTS).items()}
    return clip_corpus(MSVD, root, captions, splits, require_images=require_images)


def _read_msvd(path: Path) -> dict[str, list[str]]:
    captions: defaultdict[str, list[str]] = defaultdict(list)
    for number, line in enumerate(table_lines(path), start=1):
        if match := _LINE.fullmatch(line.strip()):
            captions[match[1]].append(match[2])
        elif captions and line.strip():
            raise DataError(f"{path}, line {number}: write the clip's name, a space and the sentence")
    return captions


_VATEX_LISTS = {"validation": ("splits/val.txt", "val.txt"), "test": ("splits/test.txt", "test.txt")}
_BY_HASH = (
    "vatex: splits/val.txt and splits/test.txt are not there, so the validation clips are cut in two halves by a hash; "
    "published figures are on the halves of HGR"
)


def open_vatex(root: Path, *, require_images: bool = True) -> Corpus:
    """Open VATEX as in HGR and VSE-infinity: half of its validation clips are the test.

    There are 25,991 clips for training, and 1,500 of the 3,000 validation clips for each of validation and test.
    ``splits/val.txt`` and ``splits/test.txt`` list the clips of the halves. Without them a hash divides the clips, in
    the same way on every machine, and ``problems`` reports it. Only the English sentences are read.
    """
    training, validation = (
        dict(_read_vatex(require_file(VATEX, root, f"captions of the {part} clips")))
        for part in ("training", "validation")
    )
    listed = read_splits(root, _VATEX_LISTS)
    clips = list(validation)
    halves = dict(zip(clips, hashed_splits(clips, (0.0, 0.5, 0.5)), strict=True))
    splits = {key: {"train"} for key in training}
    splits |= listed or {clip: {half} for clip, half in halves.items()}
    notes = () if listed else (_BY_HASH,)
    return clip_corpus(VATEX, root, training | validation, splits, require_images=require_images, notes=notes)


def _read_vatex(path: Path) -> Iterator[tuple[str, list[str]]]:
    with reading_json(path, "VATEX's format") as entries:
        yield from ((entry["videoID"], entry["enCap"]) for entry in entries)


TGIF, MRW = published("tgif"), published("mrw")
_PARTS = {"train": ("train",), "validation": ("val", "valid"), "test": ("test",)}
LISTS = {
    split: tuple(f"{folder}/{name}.txt" for folder in ("splits", "data/splits", "split") for name in names)
    for split, names in _PARTS.items()
}
"""The lists of TGIF's owners, and PVSE's (``split/valid.txt``)."""

MRW_LISTS = {split: tuple(f"split/{name}.tsv" for name in names) for split, names in _PARTS.items()}


def open_tgif(root: Path, *, require_images: bool = True) -> Corpus:
    """Open TGIF in its published form: ``tgif-v1.0.tsv``, an address and a sentence per line, and lists of addresses.

    The name of a clip is the file name in its address, without suffix. It may be stored as GIF or as any kind of video.
    PVSE's form is read too: ``tgif-v1.0-gulp.tsv``, with the unused number of frames in a third column, and ``split/``.
    """
    table = require_file(TGIF, root, "captions")
    lines = list(read_tabbed(table, "the clip's address", counts="its number of frames"))
    listed = read_splits(root, LISTS)
    name_of = clip_names([*(address for address, _ in lines), *listed])
    captions: defaultdict[str, list[str]] = defaultdict(list)
    for address, sentence in lines:
        captions[name_of[address]].append(sentence)
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for address, where in listed.items():
        splits[name_of[address]] |= where
    return clip_corpus(TGIF, root, captions, splits, require_images=require_images)


def open_mrw(root: Path, *, require_images: bool = True) -> Corpus:
    """Open MRW as PVSE publishes it: ``mrw-v1.0.json``, a list of objects with ``id`` and ``sentence``.

    The lists of ids are ``split/train.tsv``, ``valid.tsv`` (or ``val.tsv``) and ``test.tsv``. A clip is
    ``mp4/<id>.mp4``, or another kind of video or animation of this name.
    """
    captions: defaultdict[str, list[str]] = defaultdict(list)
    with reading_json(require_file(MRW, root, "captions"), "PVSE's format") as tree:
        for each in tree:
            captions[str(each["id"])].append(each["sentence"].strip())
    splits = read_splits(root, MRW_LISTS)
    return clip_corpus(MRW, root, captions, splits, require_images=require_images)


def clip_names(addresses: Iterable[str]) -> dict[str, str]:
    """Return the names of the clips at some addresses: the file name without suffix.

    A file at several hosts is one clip. If a host gives all files the same name (``.../7rj2ZgttvgomY/giphy.gif``),
    the name of the folder and an underscore are put before it.
    """
    places = {address: PurePosixPath(urlsplit(address).path) for address in addresses}
    folders: defaultdict[str, set[str]] = defaultdict(set)
    for path in places.values():
        folders[path.stem].add(path.parent.name)
    return {
        address: path.stem
        if len(folders[path.stem]) == 1 or path.stem.startswith("tumblr_")
        else f"{path.parent.name}_{path.stem}"
        for address, path in places.items()
    }
