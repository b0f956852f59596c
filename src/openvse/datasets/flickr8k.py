"""Flickr8k (Hodosh, Young and Hockenmaier, JAIR 2013): 8,091 photographs with five sentences each."""

from __future__ import annotations

from pathlib import Path

from openvse.corpus.corpus import Corpus
from openvse.corpus.facts import Facts, Form
from openvse.datasets.flickr_layout import COMPACT_SPLITS, TABLE, FlickrLayout, open_flickr
from openvse.datasets.karpathy import KARPATHY_SOURCE

_ILLINOIS = "on request from https://hockenmaier.cs.illinois.edu/8k-pictures.html"
_ENDS = {
    "train": ("1000268201_693b08cb0e.jpg", "997338199_7343367d7f.jpg"),
    "validation": ("1022454332_6af2c1449a.jpg", "989851184_9ef368e520.jpg"),
    "test": ("1056338697_4f7d7ce270.jpg", "997722733_0cb5439472.jpg"),
}

LAYOUT = FlickrLayout(
    name="flickr8k",
    karpathy="dataset_flickr8k.json",
    captions=("Flickr8k_text/Flickr8k.token.txt", "Flickr8k.token.txt", TABLE),
    images=("Flicker8k_Dataset/", "Flickr8k_Dataset/", "images/", "Images/"),
    splits=tuple(
        (f"Flickr8k_text/Flickr_8k.{part}Images.txt", f"Flickr_8k.{part}Images.txt", *compact)
        for part, compact in zip(("train", "dev", "test"), COMPACT_SPLITS, strict=True)
    ),
)

FLICKR8K = Facts(
    name="flickr8k",
    title="8,091 photographs of people and animals with five sentences each (Hodosh, Young, Hockenmaier, JAIR 2013)",
    pieces=LAYOUT.pieces(
        images=f"Flickr8k_Dataset.zip (1.1 GB), {_ILLINOIS}",
        captions=f"{LAYOUT.karpathy}, {KARPATHY_SOURCE}; or Flickr8k_text.zip (2.3 MB), {_ILLINOIS}",
        splits=f"in {LAYOUT.karpathy}, {KARPATHY_SOURCE}; or in Flickr8k_text.zip (2.3 MB), {_ILLINOIS}",
    ),
    forms=(
        Form("Karpathy's JSON", (6000, 1000, 1000), 40_000, ends=_ENDS),
        Form("the owners' lists", (6000, 1000, 1000), 40_455, outside=91, ends=_ENDS),
    ),
    licence="for research and education only; the images belong to their photographers, do not redistribute them",
    captions_each=5,
)


def open_flickr8k(root: Path, *, require_images: bool = True) -> Corpus:
    """Open Flickr8k; see ``open_flickr``."""
    return open_flickr(LAYOUT, root, require_images=require_images)
