"""MSR-VTT (Xu et al., CVPR 2016): 10,000 clips with 20 sentences each, in the original split or the 1k-A split."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from openvse.corpus.corpus import Corpus
from openvse.corpus.facts import Facts, Form, Piece
from openvse.datasets.clip_files import YOUTUBE_TERMS, clip_corpus
from openvse.datasets.layout import first_file, reading_json, require_file
from openvse.datasets.rows import read_rows
from openvse.errors import DataError

PARTS = ("train_val_videodatainfo.json", "test_videodatainfo.json")
WHOLE = ("MSRVTT_data.json", "videodatainfo.json", "annotation/MSR_VTT.json")
FOLDERS = (
    "videos/",
    "videos/all/",
    "all/",
    "TrainValVideo/",
    "TestVideo/",
    "MSRVTT_Videos/",
    "videos/train/",
    "videos/test/",
)
TEST_1K_A = ("MSRVTT_JSFUSION_test.csv", "msrvtt_jsfusion_test.csv", "splits/MSRVTT_JSFUSION_test.csv")
TRAIN_9K = ("MSRVTT_train.9k.csv", "msrvtt_train.9k.csv", "splits/MSRVTT_train.9k.csv")

_MSR = "https://www.microsoft.com/en-us/research/publication/msr-vtt-a-large-video-description-dataset"
_PIECES = (
    Piece("captions and splits", (PARTS[0], *WHOLE), f"{PARTS[0]} and {PARTS[1]} of {_MSR}"),
    Piece(
        "clips",
        FOLDERS,
        f"10,000 files video0.mp4 to video9999.mp4 (some gigabytes) from the same place, {_MSR}",
        media=True,
    ),
)

# Counts are those of the paper; they were not compared with the original files.
MSR_VTT = Facts(
    name="msr_vtt",
    title="10,000 clips of 10 to 30 seconds with 20 sentences each, in the owners' split (Xu et al., CVPR 2016)",
    pieces=_PIECES,
    forms=(Form("the owners' split", (6513, 497, 2990), 200_000, ends={"": ("video0", "video9999")}),),
    licence=YOUTUBE_TERMS,
    items="clips",
    captions_each=20,
    shrinks=True,
)

MSR_VTT_1K_A = Facts(
    name="msr_vtt_1k_a",
    title="MSR-VTT in the split 1k-A: 1,000 test clips with one sentence each (Yu et al., ECCV 2018)",
    pieces=(
        *_PIECES,
        Piece(
            "test clips and sentences",
            TEST_1K_A,
            f"{TEST_1K_A[0]}, with the data of the public code of JSFusion and of CLIP4Clip",
        ),
        Piece(
            "training clips",
            TRAIN_9K,
            f"{TRAIN_9K[0]}, with the data of the public code of CLIP4Clip; without it all others train",
            required=False,
        ),
    ),
    forms=(),
    licence=YOUTUBE_TERMS,
    items="clips",
)


def open_msr_vtt(root: Path, *, require_images: bool = True) -> Corpus:
    """Open MSR-VTT in the original split: 6,513 clips for training, 497 for validation, 2,990 for test.

    Captions and splits come from the original ``train_val_videodatainfo.json`` and ``test_videodatainfo.json``, or from
    the single file of mirrors. Clips are ``video0.mp4`` and so on, in one folder or as unpacked.
    """
    captions, splits = _read_captions(root)
    return clip_corpus("msr_vtt", root, captions, splits, FOLDERS, require_images=require_images)


def open_msr_vtt_1k_a(root: Path, *, require_images: bool = True) -> Corpus:
    """Open MSR-VTT in the 1k-A split (Yu et al., ECCV 2018): 1,000 test clips with one sentence each.

    ``MSRVTT_JSFUSION_test.csv`` has the test clips and their sentences. Training clips come from
    ``MSRVTT_train.9k.csv`` if it exists, otherwise they are all others. Those in the original validation split are used
    for validation, so that no choice is made on the test clips.
    """
    captions, owners = _read_captions(root)
    table = require_file("msr_vtt_1k_a", root, TEST_1K_A)
    columns = (("video_id",), ("sentence",))
    test = {clip: sentence for _, (clip, sentence) in read_rows(table, columns, unread=("key", "vid_key"))}
    unknown = [clip for clip in test if clip not in captions]
    if unknown:
        raise DataError(f"{table}: clip {unknown[0]} is not in MSR-VTT's captions: get both from one source")
    listed = first_file(root, TRAIN_9K)
    train = {clip for _, (clip,) in read_rows(listed, (("video_id",),))} if listed else set(captions)
    validation = {"validation"}
    splits = {clip: validation if owners.get(clip) == validation else {"train"} for clip in train}
    splits |= {key: {"test"} for key in test}
    chosen = {clip: [test[clip]] if clip in test else captions[clip] for clip in captions if clip in splits}
    return clip_corpus("msr_vtt_1k_a", root, chosen, splits, FOLDERS, require_images=require_images)


def _read_captions(root: Path) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
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
