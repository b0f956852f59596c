"""The published facts of the question sets: where they are found, how many items they have, on which terms."""

from __future__ import annotations

from openvse.corpus.facts import Facts, Form, Piece
from openvse.datasets.daquar import ALL_QUESTIONS, BY_PICTURE, BY_QUESTION, LISTS, PICTURES
from openvse.datasets.vqa2 import FOLDERS

_VQA = "of https://visualqa.org/download.html"
_COCO = "of https://cocodataset.org/#download"
_MPI = (
    "https://www.mpi-inf.mpg.de/departments/computer-vision-and-machine-learning/research/vision-and-language/"
    "visual-turing-challenge"
)


def _json(name: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}".lstrip("/") for folder in FOLDERS)


VQA2 = Facts(
    name="vqa2",
    title="1,105,904 questions about COCO's pictures, ten answers to each (Goyal et al., CVPR 2017)",
    pieces=(
        Piece(
            "questions of train2014",
            _json("v2_OpenEnded_mscoco_train2014_questions.json"),
            f"v2_Questions_Train_mscoco.zip {_VQA}",
        ),
        Piece(
            "annotations of train2014",
            _json("v2_mscoco_train2014_annotations.json"),
            f"v2_Annotations_Train_mscoco.zip {_VQA}",
        ),
        Piece(
            "questions of val2014",
            _json("v2_OpenEnded_mscoco_val2014_questions.json"),
            f"v2_Questions_Val_mscoco.zip {_VQA}",
        ),
        Piece(
            "annotations of val2014",
            _json("v2_mscoco_val2014_annotations.json"),
            f"v2_Annotations_Val_mscoco.zip {_VQA}",
        ),
        Piece(
            "questions of test2015",
            _json("v2_OpenEnded_mscoco_test2015_questions.json"),
            f"v2_Questions_Test_mscoco.zip {_VQA}; their answers are not published",
            required=False,
        ),
        Piece(
            "pictures of train2014",
            ("train2014/", "images/train2014/"),
            f"train2014.zip (13 GB) {_COCO}",
            media=True,
        ),
        Piece(
            "pictures of val2014", ("val2014/", "images/val2014/"), f"val2014.zip (6 GB) {_COCO}", media=True
        ),
        Piece(
            "pictures of test2015",
            ("test2015/", "images/test2015/"),
            f"test2015.zip (12 GB) {_COCO}",
            required=False,
            media=True,
        ),
    ),
    forms=(
        Form("with test2015", (82_783, 40_504, 81_434), 1_105_904),
        Form("without the test", (82_783, 40_504, 0), 658_111),
    ),
    licence="questions and answers under CC BY 4.0; the pictures belong to their photographers (Flickr's terms of use)",
    texts="questions",
)

DAQUAR = Facts(
    name="daquar",
    title="12,468 questions about 1,449 indoor photographs (Malinowski, Fritz, NIPS 2014)",
    pieces=(
        Piece(
            "pictures",
            tuple(f"{folder}/" for folder in PICTURES if folder),
            f"nyu_depth_images.tar of {_MPI}",
            media=True,
        ),
        Piece(
            "questions about training pictures",
            (BY_PICTURE["train"], *ALL_QUESTIONS, BY_QUESTION[0]),
            f"{BY_PICTURE['train']} of {_MPI}; tables that are passed around are read too",
        ),
        Piece(
            "questions about test pictures",
            (BY_PICTURE["test"], *ALL_QUESTIONS, BY_QUESTION[1]),
            f"{BY_PICTURE['test']} of the same page",
        ),
        Piece(
            "the split by picture",
            (BY_PICTURE["train"], LISTS["train"]),
            f"the two files above; beside tables, {LISTS['train']} and {LISTS['test']}",
        ),
    ),
    forms=(Form("the split by picture, validation by a hash", (715, 79, 653), 12_468),),
    licence="for research only; do not redistribute the pictures, which are NYU Depth v2's",
    texts="questions",
)
