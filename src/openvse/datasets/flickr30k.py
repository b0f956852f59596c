"""Flickr30K (Young, Lai, Hodosh and Hockenmaier, TACL 2014): 31,783 photographs with five sentences each."""

from __future__ import annotations

from pathlib import Path

from openvse.corpus.corpus import Corpus
from openvse.corpus.facts import Facts, Form
from openvse.datasets.flickr_layout import COMPACT_SPLITS, TABLE, FlickrLayout, open_flickr
from openvse.datasets.karpathy import KARPATHY_SOURCE

_ILLINOIS = "on request from https://shannon.cs.illinois.edu/DenotationGraph"
_ENDS = {"": ("1000092795.jpg", "998845445.jpg")}

LAYOUT = FlickrLayout(
    name="flickr30k",
    karpathy="dataset_flickr30k.json",
    captions=("results_20130124.token", TABLE),
    images=("flickr30k-images/", "flickr30k_images/", "images/", "Images/"),
    splits=COMPACT_SPLITS,
)

FLICKR30K = Facts(
    name="flickr30k",
    title="31,783 photographs of everyday life with five sentences each (Young, Lai, Hodosh, Hockenmaier, TACL 2014)",
    pieces=LAYOUT.pieces(
        images=f"flickr30k-images.tar.gz (4.4 GB), {_ILLINOIS}",
        captions=f"{LAYOUT.karpathy}, {KARPATHY_SOURCE}; or flickr30k.tar.gz (13 MB), {_ILLINOIS}",
        splits=f"in {LAYOUT.karpathy}, {KARPATHY_SOURCE}; the owners publish none",
    ),
    forms=(
        Form("Karpathy's JSON", (29_000, 1014, 1000), 155_070, ends=_ENDS),
        Form("the token file with Karpathy's lists", (29_000, 1014, 1000), 158_915, outside=769, ends=_ENDS),
    ),
    licence="for non-commercial research and education only; the images belong to their photographers "
    "(Flickr's terms), do not redistribute them",
    captions_each=5,
)


def open_flickr30k(root: Path, *, require_images: bool = True) -> Corpus:
    """Open Flickr30K; see ``open_flickr``."""
    return open_flickr(LAYOUT, root, require_images=require_images)
