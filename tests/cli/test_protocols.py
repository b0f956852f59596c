"""``openvse evaluate --protocol`` on a tiny COCO with ratings and extended positives, and ``--every``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from coco_judgements import CAPTIONS, image_name, write_coco, write_cxc, write_eccv
from tests.naming import names

pytestmark = pytest.mark.medium


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    root = write_coco(tmp_path / "coco")
    (root / "val2014").mkdir()
    for number in (*CAPTIONS, 7):
        Image.new("RGB", (48, 40), (2 * number, 90, 255 - number)).save(root / "val2014" / image_name(number))
    return root


def test_judgements_are_evaluated(invoke, works, trained: Path, coco: Path, tmp_path: Path) -> None:
    model, data = trained / "run" / "best", f"coco:{coco}"
    cxc, eccv = write_cxc(tmp_path / "cxc"), tmp_path / "eccv"
    eccv.mkdir()
    write_eccv(eccv)
    words = ["evaluate", model, "--on", data, "--protocol", "cxc", "--annotations", cxc]
    result = works(*words, "--out", tmp_path / "out")
    assert names(result.stdout, "| image to image |", "| text-text |")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["retrieval"]["text to text"]["queries"] == 8
    document = json.loads(invoke(*words[:5], "eccv_caption", "--annotations", eccv, "--json", "-q").stdout)
    judged = document["result"]["report"]
    assert set(judged["retrieval"]["image to text"]["metrics"]) == {"map_at_r", "rprecision", "r1"}


def test_another_number_of_images_is_told(invoke, works, trained: Path, coco: Path) -> None:
    result = works("evaluate", trained / "run" / "best", "--on", f"coco:{coco}", "--protocol", "coco_5k", "--every")
    assert names(result.stderr, "warning: ", "coco_5k", "5,000", "25,000", 4, 9)
    assert "i2t nDCG@10" in result.stdout
    assert "i2t nDCG@10" not in invoke("evaluate", trained / "run" / "best", "--on", f"coco:{coco}").stdout


def test_the_sentences_of_a_protocol_are_those_that_are_ranked(invoke, trained: Path, coco: Path) -> None:
    path = coco / "dataset_coco.json"
    tree = json.loads(path.read_text())
    said = tree["images"][0]["sentences"]
    said += [{"raw": f"a cat number {each}", "sentid": 9000 + each} for each in range(5)]
    path.write_text(json.dumps(tree))
    counts = {}
    for words in ([], ["--protocol", "coco_5k"], ["--protocol", "coco_5k_all"]):
        result = invoke("evaluate", trained / "run" / "best", "--on", f"coco:{coco}", *words, "--json", "-q")
        counts[" ".join(words)] = json.loads(result.stdout)["result"]["report"]["protocol"]["num_texts"]
    assert counts == {"": 14, "--protocol coco_5k": 12, "--protocol coco_5k_all": 14}


def test_what_does_not_fit_a_protocol_gets_one_line(refused, trained: Path, coco: Path, tmp_path: Path) -> None:
    model, data = trained / "run" / "best", f"coco:{coco}"
    for words, named in (
        ((trained / "album", "--protocol", "coco_5k"), ["coco_5k", "coco", "album", "coco:ROOT"]),
        ((data, "--protocol", "coco5k"), ["'coco5k'"]),
        ((data, "--protocol", "cxc"), ["cxc", "--annotations"]),
        ((data, "--protocol", "cxc", "--annotations", tmp_path), ["sits_test.csv"]),
        ((data, "--exchanged"), ["--exchanged"]),
    ):
        assert names(refused("evaluate", model, "--on", *words), *named), words


def test_protocols_are_listed(invoke) -> None:
    lines = invoke("list", "protocols").stdout.splitlines()
    assert "coco_1k: COCO 1K: the mean of five folds of 1,000 test images of COCO 5K" in lines
    place = lines.index("msr_vtt: MSR-VTT: 2,990 test clips; equal sentences are one text")
    assert lines[place + 1] == "  as in cshizhe/hgr_v2t, t2vretrieval/readers/mpdata.py"
    assert max(map(len, lines)) <= 80
