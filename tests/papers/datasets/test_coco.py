"""COCO captions in Karpathy's JSON and in the owners' files."""

import json
from pathlib import Path

import pytest

from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.errors import DataError
from openvse_papers.datasets.captioned import open_coco
from tests.naming import names, refusal

# Identifier, part, Karpathy's split, and the sentences with the identifiers that annotations have.
IMAGES = [
    (391895, "val2014", "test", {770337: "A man with a red helmet on a small moped.", 771687: "Man riding."}),
    (522418, "val2014", "restval", {681330: "A woman wearing a net.", 686718: "Woman cutting cake."}),
    (9, "train2014", "train", {661611: "Closeup of bins of food.", 661977: "A meal in bins."}),
    (139, "val2014", "val", {826834: "A woman stands in the dining area.", 826838: "A room."}),
]


def file_name(number: int, part: str) -> str:
    return f"COCO_{part}_{number:012d}.jpg"


def write_pictures(root: Path) -> None:
    for number, part, _, _ in IMAGES:
        (root / part).mkdir(parents=True, exist_ok=True)
        (root / part / file_name(number, part)).touch()


def write_karpathy(path: Path) -> None:
    images = [
        {
            "filepath": part,
            "filename": file_name(number, part),
            "imgid": position,
            "cocoid": number,
            "split": split,
            "sentids": list(sentences),
            "sentences": [
                {"tokens": text.lower().split(), "raw": text, "imgid": position, "sentid": sentid}
                for sentid, text in sentences.items()
            ],
        }
        for position, (number, part, split, sentences) in enumerate(IMAGES)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"images": images, "dataset": "coco"}))


def write_official(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train2014", "val2014"):
        chosen = [image for image in IMAGES if image[1] == part]
        tree = {
            "info": {"year": 2014},
            "licenses": [],
            "images": [{"id": number, "file_name": file_name(number, part), "license": 1} for number, *_ in chosen],
            # Annotations of an image do not stand together, nor in the order of their identifiers.
            "annotations": [
                {"id": key, "image_id": number, "caption": text}
                for place in (1, 0)
                for number, _, _, sentences in chosen
                for key, text in [list(sentences.items())[place]]
            ],
        }
        (folder / f"captions_{part}.json").write_text(json.dumps(tree))


@pytest.mark.parametrize("place", ["dataset_coco.json", "annotations/dataset_coco.json"])
@pytest.mark.parametrize("images", [".", "images"])
def test_karpathys_json(tmp_path, place, images):
    write_pictures(tmp_path / images)
    write_karpathy(tmp_path / place)
    corpus = open_corpus(tmp_path)
    assert (corpus.name, corpus.problems) == ("coco", ())
    assert corpus.image_ids == tuple(file_name(*IMAGES[place][:2]) for place in (2, 1, 0, 3))
    assert corpus.splits == ("train", "train", "test", "validation")  # restval is training
    assert corpus.split("test").captions == tuple(IMAGES[0][3].values())
    assert all(path.is_file() for path in corpus.image_paths)


def test_the_owners_files(tmp_path):
    write_pictures(tmp_path)
    write_official(tmp_path / "annotations")
    corpus = open_coco(tmp_path)
    assert corpus.splits == ("train", "validation", "validation", "validation")
    (note,) = corpus.problems
    assert note.startswith("the owners' split of COCO") and "dataset_coco.json" in note
    assert names(refusal(DataError, corpus.split, "test"), "'test'", 1, 3)


def test_both_forms_hold_the_same_images_and_sentences(tmp_path):
    write_official(tmp_path)
    official = open_coco(tmp_path, require_images=False)
    write_karpathy(tmp_path / "karpathy" / "dataset_coco.json")  # beside the owners' files it has precedence
    karpathy = open_coco(tmp_path, require_images=False)
    assert karpathy.problems == ()
    assert dict(zip(official.image_ids, official.image_paths, strict=True)) == dict(
        zip(karpathy.image_ids, karpathy.image_paths, strict=True)
    )
    assert sentences(official) == sentences(karpathy)


def sentences(corpus: Corpus) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for image, text in zip(corpus.relevance.images.tolist(), corpus.relevance.texts.tolist(), strict=True):
        found.setdefault(corpus.image_ids[image], []).append(corpus.captions[text])
    return found


def test_an_image_without_captions_is_reported(tmp_path):
    write_official(tmp_path)
    path = tmp_path / "captions_train2014.json"
    tree = json.loads(path.read_text())
    tree["images"].append({"id": 30, "file_name": file_name(30, "train2014")})
    path.write_text(json.dumps(tree))
    assert "skipped 1 image(s) without a caption" in open_coco(tmp_path, require_images=False).problems[1]


def test_what_is_missing(tmp_path):
    assert names(refusal(DataError, open_coco, tmp_path), "train2014/", "val2014/")
    refused = refusal(DataError, open_coco, tmp_path, require_images=False)
    assert names(refused, "dataset_coco.json", "annotations/captions_train2014.json")
    write_official(tmp_path / "annotations")
    (tmp_path / "annotations" / "captions_val2014.json").unlink()
    refused = refusal(DataError, open_coco, tmp_path, require_images=False)
    assert names(refused, "annotations/captions_val2014.json")


@pytest.mark.parametrize("content", ["no json", "[]", '{"images": [{}]}', '{"annotations": [{}], "images": []}'])
def test_damaged_files_are_named(tmp_path, content):
    write_official(tmp_path)
    (tmp_path / "captions_val2014.json").write_text(content)
    assert names(refusal(DataError, open_coco, tmp_path, require_images=False), "captions_val2014.json")
    (tmp_path / "dataset_coco.json").write_text(content.replace('"images": []', '"images": [{}]'))
    assert names(refusal(DataError, open_coco, tmp_path, require_images=False), "dataset_coco.json")
