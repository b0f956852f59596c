"""Published data sets of images and clips with captions, as owners and mirrors lay them out.

COCO captions (Lin et al., ECCV 2014) are Karpathy's JSON, or the original files with the original split. Flickr8k
(Hodosh et al., JAIR 2013) and Flickr30K (Young et al., TACL 2014) have several layouts. The precomputed layout of SCAN
and VSE-infinity has region features as arrays and captions as lines of text.

Clips are matched with captions and splits by file name without suffix. MSR-VTT (Xu et al., CVPR 2016) has 10,000 clips
with 20 sentences each, in the original split or the 1k-A split. MSVD (Chen and Dolan, ACL 2011) has 1,970 clips of
YouTube with about 40 English sentences each. VATEX (Wang et al., ICCV 2019) has clips with 10 English sentences each,
and half of the validation clips are the test. TGIF (Li et al., CVPR 2016) and MRW (PVSE, section 4) have animated GIFs
from the web, by their addresses.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from openvse.corpus.corpus import Corpus, Record, build_corpus, in_order
from openvse.corpus.facts import Facts, Form, Piece
from openvse.corpus.splits import SPLITS, hashed_splits
from openvse.datasets.folder import read_table
from openvse.datasets.rows import COMMENTS, field_names, first_file, read_rows, read_tabbed, reading_json, table_lines
from openvse.errors import DataError
from openvse.features.arrays import ArrayFeatures, ArrayPart, ArrayRows
from openvse.media.videos import is_video
from openvse.specs.load import parse_yaml

_PUBLISHED = parse_yaml(resources.files("openvse_papers.datasets").joinpath("facts.yaml").read_text(encoding="utf-8"))


def published(name: str) -> Facts:
    """Return the facts of a published data set, which ``facts.yaml`` lists."""
    fields = dict(_PUBLISHED[name])
    pieces = tuple(Piece(**{**each, "paths": tuple(each["paths"])}) for each in fields.pop("pieces"))
    forms = []
    for each in fields.pop("forms", ()):
        ends = {split: tuple(names) for split, names in each.get("ends", {}).items()}
        forms.append(Form(**{**each, "splits": tuple(each["splits"]), "ends": ends}))
    return Facts(name, pieces=pieces, forms=tuple(forms), **fields)


def first_folder(root: Path, names: Iterable[str]) -> Path | None:
    """Return the first of some paths under the root that is a folder."""
    return next((root / name for name in names if (root / name).is_dir()), None)


def require_file(facts: Facts, root: Path, what: str) -> Path:
    """Return the file of a piece of a published data set. Raise DataError if there is none."""
    names = facts.places(what)
    if (path := first_file(root, names)) is None:
        raise DataError(f"{root}: no {' or '.join(names)}: get the captions of {facts.name} from its owners")
    return path


def read_splits(root: Path, lists: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return the splits of each name in some lists. Of a list's possible paths, the first that exists is read."""
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for split, names in lists.items():
        path = first_file(root, names)
        for number, line in enumerate(table_lines(path) if path else (), start=1):
            if "\t" in line.strip():
                raise DataError(f"{path}, line {number}: several columns between tabs: write one name a line")
            if line.strip():
                splits[line.strip()].add(split)
    return splits


def read_karpathy(path: Path, folder_of: Callable[[str], Path]) -> Iterator[Record]:
    """Yield a record for each image, with the raw sentences and not their tokens.

    Format: ``{"images": [{"filename", "filepath", "split", "sentences": [{"raw"}]}]}`` (Karpathy and Fei-Fei, CVPR
    2015). Only COCO has ``filepath``, the folder of the image.
    """
    with reading_json(path, "Karpathy's format") as tree:
        entries = tree["images"]
        folders = {name: folder_of(name) for name in {entry.get("filepath", "") for entry in entries}}
        for entry in entries:
            sentences = [sentence["raw"] for sentence in entry["sentences"]]
            file = folders[entry.get("filepath", "")] / entry["filename"]
            yield Record(entry["filename"], file, sentences, entry["split"])


COCO = published("coco")
KARPATHY = COCO.places("captions and splits")[:3]
OFFICIAL = {"train2014": "train", "val2014": "validation"}
"""The original parts, and the split of each."""


def image_folders(part: str) -> tuple[str, ...]:
    """Return the possible folders of the images of a part, for instance "val2014", under the root."""
    return (f"{part}/", f"images/{part}/")


def open_coco(root: Path, *, require_images: bool = True) -> Corpus:
    """Open COCO captions. Identifiers are file names, such as ``COCO_val2014_000000391895.jpg``.

    With Karpathy's JSON the split is 113,287 / 5,000 / 5,000, where restval counts as training. Without it, the
    original ``captions_train2014.json`` and ``captions_val2014.json`` are training and validation. There is no test
    split then, and ``problems`` reports it.
    """
    if require_images and not any(first_folder(root, image_folders(part)) for part in OFFICIAL):
        raise DataError(f"{root}: no image folder train2014/ or val2014/: see openvse list data coco")
    if karpathy := first_file(root, KARPATHY):
        records = in_order(read_karpathy(karpathy, lambda part: find_image_folder(root, part)), only_training=True)
        return build_corpus("coco", records, require_images=require_images)
    official = (record for part, split in OFFICIAL.items() for record in _read_official(root, part, split))
    corpus = build_corpus("coco", in_order(official, only_training=True), require_images=require_images)
    note = (
        "the owners' split of COCO: no test part, and no published retrieval figure is on it; put dataset_coco.json "
        "there for Karpathy's split"
    )
    return replace(corpus, problems=(note, *corpus.problems))


def find_image_folder(root: Path, part: str) -> Path:
    """Return the actual or expected folder of the images of a part."""
    return (first_folder(root, image_folders(part)) if part else None) or root / part


def official_captions(root: Path, part: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Yield the name of each image of ``captions_<part>.json``, and its captions with their numbers, in this order."""
    files = (f"annotations/captions_{part}.json", f"captions_{part}.json")
    if (path := first_file(root, files)) is None:
        raise DataError(f"{root}: neither {KARPATHY[0]} nor {files[0]}: see openvse list data coco")
    captions: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    with reading_json(path, "COCO's format") as tree:
        for annotation in sorted(tree["annotations"], key=lambda annotation: annotation["id"]):
            captions[annotation["image_id"]].append((int(annotation["id"]), annotation["caption"]))
        yield from ((image["file_name"], captions[image["id"]]) for image in tree["images"])


def _read_official(root: Path, part: str, split: str) -> Iterator[Record]:
    """Yield the images of a part, with or without captions."""
    folder = find_image_folder(root, part)
    for name, captions in official_captions(root, part):
        yield Record(name, folder / name, [caption for _, caption in captions], split)


TABLE = "captions.txt"
"""The caption file of mirrors. Other data sets use its name too."""

RESULTS = "results.csv"
"""Kaggle's form of Flickr30k's token file. Other data sets use its name too."""

COMPACT_SPLITS = (("splits/train.txt",), ("splits/dev.txt", "splits/val.txt"), ("splits/test.txt",))
"""Lists of train, validation and test in a separate folder."""


@dataclass(frozen=True)
class FlickrLayout:
    """The possible places of the parts of a data set under its root. The first that exists is used.

    Captions are Karpathy's JSON, which has the splits too, files of ``name.jpg#0<TAB>sentence``, or tables with a
    header ``image,caption``. For train, validation and test, ``splits`` are lists of file names.
    """

    facts: Facts
    splits: tuple[tuple[str, ...], ...]

    def fits(self, root: Path) -> bool:
        """Return whether a folder holds these files."""
        captions = self.facts.places("captions")
        own = [name for name in captions if name not in (TABLE, RESULTS)]
        comments = RESULTS in captions and (root / RESULTS).is_file()
        table = (root / TABLE).is_file() or (comments and field_names(root / RESULTS) == COMMENTS)
        images = first_folder(root, self.facts.places("image files"))
        return first_file(root, own) is not None or (table and images is not None)

    def open(self, root: Path, *, require_images: bool = True) -> Corpus:
        """Open the data set.

        Images that no split list names belong to no split (Flickr8k has 91 of them). Without any list, ``Corpus.split``
        uses its split by hash, whose results cannot be compared with published ones. Images are in the order of their
        identifiers, so that every form gives the same training batches.
        """
        name, places = self.facts.name, self.facts.places("image files")
        if (images := first_folder(root, places)) is None and require_images:
            raise DataError(f"{root}: no image folder {' or '.join(places)}: see openvse list data {name}")
        folder, captions = images or root, first_file(root, self.facts.places("captions"))
        if captions is None:
            allowed = " or ".join(self.facts.places("captions"))
            raise DataError(f"{root}: no caption file {allowed}: see openvse list data {name}")
        if captions.suffix == ".json":
            records = read_karpathy(captions, lambda _: folder)
        else:
            splits = read_splits(root, dict(zip(SPLITS, self.splits, strict=True)))
            records = (
                Record(file, folder / file, sentences, split)
                for file, sentences in _sentences(captions).items()
                for split in splits.get(file, {""})
            )
        return build_corpus(name, in_order(records), require_images=require_images)


FLICKR8K_LAYOUT = FlickrLayout(
    published("flickr8k"),
    splits=tuple(
        (f"Flickr8k_text/Flickr_8k.{part}Images.txt", f"Flickr_8k.{part}Images.txt", *compact)
        for part, compact in zip(("train", "dev", "test"), COMPACT_SPLITS, strict=True)
    ),
)
FLICKR30K_LAYOUT = FlickrLayout(published("flickr30k"), splits=COMPACT_SPLITS)


def _sentences(path: Path) -> Mapping[str, Sequence[str]]:
    """Return the sentences of each image, from a token file or from the table of mirrors."""
    lines = table_lines(path)
    captions: defaultdict[str, list[str]] = defaultdict(list)
    if lines and "\t" not in lines[0]:
        for row in read_table(path):
            captions[row.image_id] += row.captions
    else:
        for key, caption in read_tabbed(path, "name.jpg#0"):
            captions[key.partition("#")[0]].append(caption)
    return captions


_SPLITS = {"train": ("train",), "validation": ("dev", "val"), "test": ("testall", "test")}
"""The prefixes of the files of a split. The first that exists is used."""

FOLDERS = ("", "precomp/")
"""The possible folders of the files under the root."""

IMAGES, CAPTIONS, IDS = "_ims.npy", "_caps.txt", "_ids.txt"
"""The suffixes of the files of a split."""

MAPPING = "id_mapping.json"
_IMAGE_FOLDERS = ("images/", "flickr30k-images/")


def open_precomputed(root: Path, *, require_images: bool = True) -> Corpus:
    """Open features in the layout of SCAN and VSE-infinity, with their captions.

    ``{split}_ims.npy`` holds ``[n, N, C]``, usually ``[n, 36, 2048]``. ``{split}_caps.txt`` has one caption per line,
    with the captions of an image in sequence. An image has one row, or as many equal rows as captions. This is
    detected, and it is encoded once. The splits are train, dev (or val) and test. COCO's testall, whose first thousand
    images are test, takes precedence over test.

    ``{split}_ids.txt`` may name the images, with a line for each image, row or caption, and ``id_mapping.json`` may
    give their file names (``{"391895": "val2014/COCO_val2014_000000391895.jpg"}``). Then the identifiers are equal to
    the data set's other forms, so that its stores fit. The arrays may be in a folder ``precomp`` of the root, as in
    VSE-infinity's data. Image files, if there are any, are expected in ``images/`` or ``flickr30k-images/``.
    ``require_images`` has no effect.

    The features belong to the corpus: a model with the encoder ``precomputed`` reads them unless there is a store.
    """
    if (folder := find_folder(root)) is None:
        raise DataError(f"{root}: no train_ims.npy with train_caps.txt (or dev_, test_), in it or in precomp/")
    names = _file_names(folder)
    parts = [_open_part(folder, split, file, names) for split, file in _splits_of(folder)]
    base = folder.parent if folder.name == "precomp" else folder
    images = first_folder(base, _IMAGE_FOLDERS) or base / _IMAGE_FOLDERS[0]
    path_of = {Path(path).name: path for path in names.values()}
    records = [
        Record(item, images / path_of.get(item, item), captions, part.split)
        for part, owned in parts
        for item, captions in zip(part.ids, owned, strict=True)
    ]
    records = in_order(records, only_training=True)
    corpus = build_corpus(root.resolve().name, records, require_images=False)
    return replace(corpus, features=ArrayFeatures([part for part, _ in parts]))


def find_folder(root: Path) -> Path | None:
    """Return the folder of the files of this layout: the root, ``precomp`` in it, or None."""
    return next((folder for folder in (root / name for name in FOLDERS) if any(_splits_of(folder))), None)


def _splits_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the splits of a folder, with the prefixes of their files."""
    for split, names in _SPLITS.items():
        for name in names:
            if (folder / f"{name}{IMAGES}").is_file() or (folder / f"{name}{CAPTIONS}").is_file():
                yield split, name
                break


def _open_part(
    folder: Path, split: str, file: str, names: dict[str, str]
) -> tuple[ArrayPart, tuple[Sequence[str], ...]]:
    """Return features and captions of one split. Raise DataError if a file is missing, or the counts differ."""
    rows = ArrayRows(folder / f"{file}{IMAGES}")
    captions = _lines(folder / f"{file}{CAPTIONS}")
    # Rows can only be repeated if there is one for each caption.
    repeats = rows.repeats() if len(rows) == len(captions) else 1
    num_images = len(rows) // repeats
    each, rest = divmod(len(captions), num_images or 1)
    if rest or not each or not num_images:
        raise DataError(
            f"{folder}: {file}{IMAGES} has {len(rows)} rows ({num_images} images) and {file}{CAPTIONS} {len(captions)} "
            "captions, which is not the same number for each image: download both again"
        )
    ids_file = folder / f"{file}{IDS}"
    if ids_file.is_file():
        ids = _one_each(ids_file, _lines(ids_file), num_images)
    else:
        ids = [f"{split}/{number:06d}" for number in range(num_images)]
    named = tuple(Path(names[item]).name if item in names else item for item in ids)
    twice = next((item for item, count in Counter(named).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{ids_file}: {twice!r} is listed twice, for different rows: download the file again")
    owned = tuple(captions[number * each : (number + 1) * each] for number in range(num_images))
    return ArrayPart(split, rows, named, repeats), owned


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, including empty ones in the middle, so that the others keep their positions."""
    lines = table_lines(path)
    return lines[:-1] if lines and not lines[-1].strip() else lines


def _one_each(path: Path, lines: Sequence[str], num_images: int) -> list[str]:
    """Return the identifier of each image from a list with a line for each image, row or caption."""
    step, rest = divmod(len(lines), num_images)
    if rest or not step:
        raise DataError(f"{path}: {len(lines)} lines for {num_images} images: give a line an image, row or caption")
    ids = [line.strip() for line in lines]
    chosen = ids[::step]
    for start, item in zip(range(0, len(ids), step), chosen, strict=True):
        if not item or any(other != item for other in ids[start : start + step]):
            raise DataError(
                f"{path}, line {start + 1}: {step} lines from here should name one image, and hold "
                f"{sorted(set(ids[start : start + step]))}: download the file again"
            )
    return chosen


def _file_names(folder: Path) -> dict[str, str]:
    """Return the file name of each identifier that a mapping contains."""
    places = (MAPPING, f"../{MAPPING}") if folder.name == "precomp" else (MAPPING,)
    if (path := first_file(folder, places)) is None:
        return {}
    with reading_json(path, 'the form {"391895": "a.jpg"}') as names:
        return {str(key): Path(value).as_posix() for key, value in names.items()}


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
    clips: dict[str, Path] = {}
    for folder in folders:  # of equal names, the clip in the first folder is kept
        for path in sorted((root / folder).iterdir()) if (root / folder).is_dir() else ():
            if is_video(path) or path.suffix.lower() in _ANIMATIONS:
                clips.setdefault(path.stem, path)
    if require_images and not clips:
        raise DataError(f"{root}: no clips in {' or '.join(folders)}: put them there, or train on stored features")
    records = (
        Record(clip, clips.get(clip, root / folders[0] / f"{clip}.mp4"), sentences, split)
        for clip, sentences in captions.items()
        for split in splits.get(clip, ("",))
    )
    corpus = build_corpus(facts.name, records, require_images=require_images)
    return replace(corpus, problems=(*notes, *corpus.problems))


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
        raise DataError(f"{root}: no {' or '.join((*WHOLE, *PARTS))}: get the captions of msr_vtt from its owners")
    captions: defaultdict[str, list[str]] = defaultdict(list)
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        with reading_json(path, "MSR-VTT's format") as tree:
            for video in tree["videos"]:
                splits[video["video_id"]].add("validation" if video["split"] == "validate" else video["split"])
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
    table, captions = require_file(MSVD, root, "captions"), defaultdict[str, list[str]](list)
    for number, line in enumerate(table_lines(table), start=1):
        if match := _LINE.fullmatch(line.strip()):
            captions[match[1]].append(match[2])
        elif captions and line.strip():
            raise DataError(f"{table}, line {number}: write the clip's name, a space and the sentence")
    splits = {Path(name).stem: where for name, where in read_splits(root, _MSVD_LISTS).items()}
    return clip_corpus(MSVD, root, captions, splits, require_images=require_images)


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
    parts = []
    for part in ("training", "validation"):
        file = require_file(VATEX, root, f"captions of the {part} clips")
        with reading_json(file, "VATEX's format") as entries:
            parts.append({entry["videoID"]: entry["enCap"] for entry in entries})
    training, validation = parts
    listed = read_splits(root, _VATEX_LISTS)
    clips = list(validation)
    halves = dict(zip(clips, hashed_splits(clips, (0.0, 0.5, 0.5)), strict=True))
    splits = {key: {"train"} for key in training}
    splits |= listed or {clip: {half} for clip, half in halves.items()}
    notes = () if listed else (_BY_HASH,)
    return clip_corpus(VATEX, root, training | validation, splits, require_images=require_images, notes=notes)


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
