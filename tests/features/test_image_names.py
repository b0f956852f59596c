"""Names in feature files find the images they mean, or none."""

from __future__ import annotations

import pytest

from openvse.features.importing import ImageNames

COCO = ["COCO_train2014_000000000042.jpg", "COCO_val2014_000000391895.jpg"]
FLICKR = ["1000092795.jpg", "102351840_323e3de834.jpg", "beach/0001.jpg", "dunes/0001.jpg"]


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("42", COCO[0]),
        ("000000391895", COCO[1]),
        ("COCO_val2014_000000391895", COCO[1]),
        ("val2014/COCO_val2014_000000391895.jpg", COCO[1]),
        ("COCO_val2014_000000391895.jpg.npy", COCO[1]),
        ("43", None),
        ("1000092795", FLICKR[0]),
        ("1000092795.jpg", FLICKR[0]),
        ("834", None),
        ("beach/0001.jpg", FLICKR[2]),
        ("0001.jpg", None),
        ("0001", None),
        ("1", None),
        ("", None),
    ],
)
def test_a_name_means_one_image_or_none(name: str, image: str | None) -> None:
    assert ImageNames([*COCO, *FLICKR]).find(name) == image


def test_numbers_as_identifiers() -> None:
    names = ImageNames(["391895", "42"])
    assert names.find("COCO_val2014_000000391895.jpg") == "391895"
    assert names.find("000042") == "42"
