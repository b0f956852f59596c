"""OpenMoji's images with their names in the emoji package and in Unicode's CLDR."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from openvse.corpus.corpus import Corpus, Record, build_corpus
from openvse.corpus.splits import stable_hash
from openvse.datasets.openmoji.captions import emoji_captions, variant_group
from openvse.datasets.openmoji.render import image_folder, missing_extra, render_emoji

NUM_TEST = 200
NUM_VALIDATION = 200


def open_openmoji(root: Path, *, require_images: bool = True) -> Corpus:
    """Open the emoji as a corpus; the first time, their images are drawn (some seconds).

    The corpus has the 1,914 emoji of Unicode that OpenMoji draws, each once. Skin tones (variants of the same drawing),
    separate hair styles (parts of other emoji), and OpenMoji's own symbols and brands (without names in CLDR) are left
    out. A text that fits several emoji is one text, relevant to all of them.

    200 emoji are for test and 200 for validation, chosen by a hash of what they show; variants of one thing are in the
    same split. The 262 flags of countries and regions are only for training, since unseen flags cannot be named.

    Args:
        root: the folder for the images, which are drawn into a subfolder and reused.
        require_images: whether to draw the images.

    Raises:
        DataError: the packages of the extra "demo" are not installed.
    """
    try:
        from emoji import EMOJI_DATA
    except ImportError as error:
        raise missing_extra() from error
    annotations = _annotations()
    splits = split_by_group({code: variant_group(name) for code, (name, _) in annotations.items()})
    folder = image_folder(root)
    if require_images:
        render_emoji(folder, annotations)
    records = []
    for code, (name, keywords) in annotations.items():
        character = "".join(chr(int(point, 16)) for point in code.split("-"))
        # Code points in file names lack the selector of the emoji form if the character is unambiguous
        # without it.
        entry = EMOJI_DATA.get(character) or EMOJI_DATA.get(f"{character}\ufe0f") or {}
        aliases = [entry.get("en", name), *entry.get("alias", [])]
        captions = emoji_captions(name, aliases, keywords)
        records.append(Record(code, folder / f"{code}.png", captions, splits[code]))
    return build_corpus("openmoji", records, require_images=require_images, merge_captions=True)


def split_by_group(
    groups: Mapping[str, str], num_test: int = NUM_TEST, num_validation: int = NUM_VALIDATION
) -> dict[str, str]:
    """Split without dividing groups: in the order of their hashes they fill test, then validation, then train.

    Args:
        groups: the group of each item; the group "flag" goes to training.
        num_test: the number of items for test; a group that would exceed it goes to validation or training.
        num_validation: the number of items for validation.

    Returns:
        The split of each item.
    """
    members: defaultdict[str, list[str]] = defaultdict(list)
    for item, group in groups.items():
        members[group].append(item)
    room = {"test": num_test, "validation": num_validation}
    splits: dict[str, str] = {}
    for group in sorted(members, key=stable_hash):
        size = len(members[group])
        split = next((name for name in room if room[name] >= size and group != "flag"), "train")
        if split in room:
            room[split] -= size
        splits.update(dict.fromkeys(members[group], split))
    return splits


def _annotations() -> dict[str, tuple[str, list[str]]]:
    """Return CLDR's short name and keywords by the code points of a file name."""
    text = resources.files(__package__).joinpath("annotations_en.json").read_text(encoding="utf-8")
    return {code: (name, keywords) for code, (name, keywords) in json.loads(text)["annotations"].items()}
