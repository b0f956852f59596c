"""A tiny COCO in Karpathy's form, with ratings and extended positives in the published forms."""

from __future__ import annotations

import json
from pathlib import Path

CAPTIONS = {100: [900, 901], 101: [910, 911], 102: [920, 921], 103: [930, 931, 932]}
"""The captions of each test image; no judgement knows the last one."""


def image_name(number: int) -> str:
    return f"COCO_val2014_{number:012d}.jpg"


def write_coco(root: Path, word: str = "dog") -> Path:
    """Write ``dataset_coco.json`` with four test images and a training image."""
    root.mkdir(parents=True)
    images = [
        {
            "filename": image_name(number),
            "filepath": "val2014",
            "split": "test",
            "sentences": [{"raw": f"a {word}  number {each}", "sentid": each} for each in captions],
        }
        for number, captions in CAPTIONS.items()
    ]
    images.append(
        {
            "filename": image_name(7),
            "filepath": "val2014",
            "split": "restval",
            "sentences": [{"raw": "a tree", "sentid": 70}],
        }
    )
    (root / "dataset_coco.json").write_text(json.dumps({"images": images}))
    return root


def write_cxc(folder: Path) -> Path:
    """Write the files of ratings; caption 911 was rated as fitting neither its own image nor the other caption."""
    folder.mkdir(parents=True, exist_ok=True)

    def caption(number: int) -> str:
        return f"COCO_val2014:sentid:{number}"

    own = [
        (each, image, 2.0 if each == 911 else 4.5) for image, all_ in CAPTIONS.items() for each in all_ if each != 932
    ]
    sits = [
        *((caption(c), image_name(i), rating, "c2i_original") for c, i, rating in own),
        (caption(901), image_name(102), 3.0, "c2i_intrasim"),
        (caption(920), image_name(103), 1.5, "c2i_intrasim"),
    ]
    sts = [
        (caption(900), caption(901), 4.5, "c2c_cocaption"),
        (caption(910), caption(911), 2.5, "c2c_cocaption"),
        (caption(901), caption(920), 3.0, "c2c_isim"),
        (caption(910), caption(930), 1.0, "c2c_isim"),
        (caption(921), caption(931), 3.5, "c2c_isim"),
    ]
    sis = [
        (image_name(100), image_name(101), 1.0, "i2i_csim"),
        (image_name(102), image_name(103), 3.2, "i2i_csim"),
        (image_name(101), image_name(103), 2.0, "i2i_csim"),
        (image_name(103), image_name(100), 2.5, "i2i_csim"),
    ]
    headers = {"sits": "caption,image", "sts": "caption1,caption2", "sis": "image1,image2"}
    for task, rows in (("sits", sits), ("sts", sts), ("sis", sis)):
        lines = [f"{headers[task]},agg_score,sampling_method", *(",".join(map(str, row)) for row in rows)]
        (folder / f"{task}_test.csv").write_text("\r\n".join(lines) + "\r\n")
    return folder


def write_eccv(folder: Path) -> Path:
    """Write the files of extended positives."""
    contents = {
        "eccv_image_to_caption": {"100": [900, 901, 910], "103": [930, 920]},
        "eccv_caption_to_image": {"901": [100, 102], "931": [103]},
        "original_caption_to_image": {
            str(each): [image] for image, all_ in CAPTIONS.items() for each in all_ if each != 932
        },
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
