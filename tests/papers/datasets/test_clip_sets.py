"""The data sets of clips, each in its owners' files; clips are tiny animations under the names of videos."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from openvse.datasets import open_corpus
from openvse.datasets.check import check_data
from openvse.errors import DataError
from openvse_papers.datasets.captioned import clip_names
from tests.facts import FACTS
from tests.naming import names, refusal


def touch(folder: Path, names: Iterable[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"clip")


def split_ids(corpus) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item, split in zip(corpus.image_ids, corpus.splits, strict=True):
        found.setdefault(split, []).append(item)
    return found


def captions_of(corpus, item: str) -> list[str]:
    position = corpus.image_ids.index(item)
    chosen = corpus.relevance.texts[corpus.relevance.images == position]
    return [corpus.captions[text] for text in chosen]


def write_msr_vtt(root: Path) -> Path:
    """Write twelve clips as the owners do: two JSON files, and the clips as their archives unpack."""
    split_of = {n: "train" if n < 6 else "validate" if n < 8 else "test" for n in range(12)}

    def tree(wanted: tuple[str, ...]) -> dict:
        clips = [n for n, split in split_of.items() if split in wanted]
        unread = {"category": 9, "url": "https://www.youtube.com/watch?v=9lZi22qLlEo"}
        unread |= {"start time": 137.72, "end time": 149.44}
        videos = [{**unread, "video_id": f"video{n}", "split": split_of[n], "id": n} for n in clips]
        sentences = [
            {"caption": f"sentence {k} of {n}", "video_id": f"video{n}", "sen_id": 20 * n + k}
            for k in (1, 0)
            for n in clips
        ]
        return {"info": {"year": "2016"}, "videos": videos, "sentences": sentences}

    root.mkdir()
    (root / "train_val_videodatainfo.json").write_text(json.dumps(tree(("train", "validate"))))
    (root / "test_videodatainfo.json").write_text(json.dumps(tree(("test",))))
    touch(root / "TrainValVideo", [f"video{n}.mp4" for n in range(8)])
    touch(root / "TestVideo", [f"video{n}.mp4" for n in range(8, 12)])
    return root


def test_msr_vtt_in_the_owners_split(tmp_path: Path) -> None:
    corpus = open_corpus(f"msr_vtt:{write_msr_vtt(tmp_path / 'm')}")
    assert corpus.image_ids == tuple(f"video{n}" for n in range(12))
    assert [*map(len, split_ids(corpus).values())] == [6, 2, 4]
    assert [*split_ids(corpus)] == ["train", "validation", "test"]
    assert captions_of(corpus, "video10") == ["sentence 0 of 10", "sentence 1 of 10"]
    assert corpus.image_paths[10] == tmp_path / "m" / "TestVideo" / "video10.mp4"


def test_msr_vtt_in_the_split_1k_a(tmp_path: Path) -> None:
    root = write_msr_vtt(tmp_path / "m")
    (root / "MSRVTT_JSFUSION_test.csv").write_text(
        'key,vid_key,video_id,sentence\nret0,msr9,video9,"one, two"\nret1,msr2,video2,a dog\n'
    )
    corpus = open_corpus(f"msr_vtt_1k_a:{root}")
    assert split_ids(corpus)["test"] == ["video2", "video9"]
    assert captions_of(corpus, "video9") == ["one, two"]
    assert split_ids(corpus)["validation"] == ["video6", "video7"]
    assert len(split_ids(corpus)["train"]) == 8 and "video8" in split_ids(corpus)["train"]
    (root / "MSRVTT_train.9k.csv").write_text("video_id\nvideo0\nvideo6\n")
    smaller = open_corpus(f"msr_vtt_1k_a:{root}")
    assert split_ids(smaller) == {"train": ["video0"], "test": ["video2", "video9"], "validation": ["video6"]}


def test_what_is_wrong_with_msr_vtt(tmp_path: Path) -> None:
    root = write_msr_vtt(tmp_path / "m")
    assert names(refusal(DataError, open_corpus, f"msr_vtt_1k_a:{root}"), "MSRVTT_JSFUSION_test.csv")
    (root / "MSRVTT_JSFUSION_test.csv").write_text("video_id,sentence\nvideo99,a dog\n")
    assert names(refusal(DataError, open_corpus, f"msr_vtt_1k_a:{root}"), "MSR", "VTT")
    (root / "MSRVTT_JSFUSION_test.csv").write_text("clip,words\nvideo9,a dog\n")
    assert names(refusal(DataError, open_corpus, f"msr_vtt_1k_a:{root}"), "video_id")
    (root / "test_videodatainfo.json").write_text('{"videos": []}')
    assert names(refusal(DataError, open_corpus, f"msr_vtt:{root}"), "test_videodatainfo.json", "MSR", "VTT")
    (tmp_path / "empty").mkdir()
    refused = refusal(DataError, open_corpus, f"msr_vtt:{tmp_path / 'empty'}")
    assert names(refused, "MSRVTT_data.json", "train_val_videodatainfo.json")


def test_a_clip_that_vanished_is_skipped_and_stored_features_need_none(tmp_path: Path) -> None:
    root = write_msr_vtt(tmp_path / "m")
    (root / "TestVideo" / "video9.mp4").unlink()
    corpus = open_corpus(f"msr_vtt:{root}")
    assert len(corpus) == 11
    assert names(corpus.problems[0], 1, "video9.mp4")
    for folder in ("TrainValVideo", "TestVideo"):
        for path in (root / folder).iterdir():
            path.unlink()
    assert names(refusal(DataError, open_corpus, f"msr_vtt:{root}"), "videos/")
    assert len(open_corpus(f"msr_vtt:{root}", require_images=False)) == 12


def write_vatex(root: Path) -> Path:
    root.mkdir()
    for name, clips in (("training", range(3)), ("validation", range(3, 13))):
        entries = [
            {"videoID": f"id-{n}_000001_000011", "enCap": [f"en {n} {k}" for k in range(10)], "chCap": ["zh"]}
            for n in clips
        ]
        (root / f"vatex_{name}_v1.0.json").write_text(json.dumps(entries))
    touch(root / "videos", [f"id-{n}_000001_000011.mp4" for n in range(13)])
    return root


def test_vatex_cuts_its_validation_clips_in_halves(tmp_path: Path) -> None:
    root = write_vatex(tmp_path / "v")
    corpus = open_corpus(f"vatex:{root}")
    found = split_ids(corpus)
    assert {split: len(ids) for split, ids in found.items()} == {"train": 3, "validation": 5, "test": 5}
    assert captions_of(corpus, "id-4_000001_000011") == [f"en 4 {k}" for k in range(10)]
    assert len(corpus.problems) == 1
    assert split_ids(open_corpus(f"vatex:{root}")) == found
    (root / "splits").mkdir()
    (root / "splits" / "val.txt").write_text("id-3_000001_000011\n")
    (root / "splits" / "test.txt").write_text("id-4_000001_000011\nid-5_000001_000011\n")
    listed = open_corpus(f"vatex:{root}")
    assert listed.problems == () and len(split_ids(listed)["test"]) == 2
    assert len(split_ids(listed)[""]) == 7, "a clip that no list names is in no split"
    (root / "vatex_training_v1.0.json").write_text('[{"videoID": "x"}]')
    assert names(refusal(DataError, open_corpus, f"vatex:{root}"), "VATEX", "KeyError", "'enCap'")


TUMBLR = "https://38.media.tumblr.com/9f6c/tumblr_{}_500.gif"


def test_animations_by_their_addresses(tmp_path: Path) -> None:
    table = tmp_path / "data" / "tgif-v1.0.tsv"
    table.parent.mkdir()
    lines = [(TUMBLR.format("a"), "a man  nods\t20"), (TUMBLR.format("b"), "a cat"), (TUMBLR.format("a"), "he nods")]
    table.write_text("".join(f"{address}\t{sentence}\n" for address, sentence in lines))
    splits = tmp_path / "data" / "splits"
    splits.mkdir()
    for split, item in (("train", "a"), ("val", "b"), ("test", "gone")):
        (splits / f"{split}.txt").write_text(TUMBLR.format(item) + "\n")
    touch(tmp_path / "gifs", ["tumblr_a_500.gif", "tumblr_b_500.mp4"])
    corpus = open_corpus(f"tgif:{tmp_path}")
    assert split_ids(corpus) == {"train": ["tumblr_a_500"], "validation": ["tumblr_b_500"]}
    assert captions_of(corpus, "tumblr_a_500") == ["a man nods", "he nods"]
    assert corpus.image_paths[1].name == "tumblr_b_500.mp4"
    table.write_text("no tab here\n")
    assert names(refusal(DataError, open_corpus, f"tgif:{tmp_path}"), "v1.0.tsv", 1)
    for columns in ("a man\tnods", "a man\t20\t8", "20\ta man"):
        table.write_text(f"{TUMBLR.format('a')}\ta cat\n\n{TUMBLR.format('b')}\t{columns}\n")
        assert names(refusal(DataError, open_corpus, f"tgif:{tmp_path}"), "v1.0.tsv", 3)


def test_tgif_as_pvse_lays_it_out(tmp_path: Path) -> None:
    """The number of frames in the third column, -1 if unknown, is no part of a caption."""
    lines = [(TUMBLR.format("a"), "a man", 20), (TUMBLR.format("b"), "a cat", -1), (TUMBLR.format("a"), "he nods", 20)]
    table = "".join("\t".join(map(str, line)) + "\n" for line in lines)
    (tmp_path / "tgif-v1.0-gulp.tsv").write_text(table)
    (tmp_path / "split").mkdir()
    for part, item in (("train", "a"), ("valid", "b"), ("test", "gone")):
        (tmp_path / "split" / f"{part}.txt").write_text(TUMBLR.format(item) + "\n")
    touch(tmp_path / "gifs", ["tumblr_a_500.gif", "tumblr_b_500.gif"])
    corpus = open_corpus(f"tgif:{tmp_path}")
    assert split_ids(corpus) == {"train": ["tumblr_a_500"], "validation": ["tumblr_b_500"]}
    assert corpus.captions == ("a man", "he nods", "a cat")


@pytest.mark.parametrize("validation", ["valid", "val"])
def test_mrw_as_pvse_lays_it_out(tmp_path: Path, validation: str) -> None:
    """``valid.tsv`` is the name in PVSE's data.py, and ``val.tsv`` that in its script for downloads."""
    items = [
        {"id": "x7Rj", "sentence": "MRW a", "images": {"mp4_url": "https://i.imgur.com/x.mp4"}},
        {"id": 42, "sentence": "MRW  b", "gulp_num_frames": 12},
        {"id": "y", "sentence": "MRW c"},
    ]
    (tmp_path / "mrw-v1.0.json").write_text(json.dumps(items))
    (tmp_path / "split").mkdir()
    for part, item in (("train", "x7Rj"), (validation, "42"), ("test", "y")):
        (tmp_path / "split" / f"{part}.tsv").write_text(f"{item}\n")
    touch(tmp_path / "mp4", ["x7Rj.mp4", "42.mp4", "y.mp4"])
    corpus = open_corpus(f"mrw:{tmp_path}")
    assert split_ids(corpus) == {"train": ["x7Rj"], "validation": ["42"], "test": ["y"]}
    assert corpus.captions == ("MRW a", "MRW b", "MRW c")
    (tmp_path / "split" / "test.tsv").write_text("y\t12\n")
    assert names(refusal(DataError, open_corpus, f"mrw:{tmp_path}"), "test.tsv", 1)
    (tmp_path / "mrw-v1.0.json").write_text('[{"id": "y", "sentence": null}]')
    assert names(refusal(DataError, open_corpus, f"mrw:{tmp_path}"), "mrw-v1.0.json")


def test_files_that_hosts_call_alike_stay_apart() -> None:
    names = clip_names(
        [
            "https://38.media.tumblr.com/1/tumblr_x_400.gif",
            "https://33.media.tumblr.com/2/tumblr_x_400.gif",
            "https://media.giphy.com/media/7rj2/giphy.gif",
            "https://media.giphy.com/media/Zgtt/giphy.gif?x=1",
            "https://i.imgur.com/abc.gif",
            "def.gif",
        ]
    )
    assert list(names.values()) == ["tumblr_x_400", "tumblr_x_400", "7rj2_giphy", "Zgtt_giphy", "abc", "def"]


def test_msvd(tmp_path: Path) -> None:
    (tmp_path / "AllVideoDescriptions.txt").write_text(
        "# Descriptions of clips\nClips are called by start and end.\n\n"
        "-4wsuPCjDBc_5_15 a squirrel is eating\n-4wsuPCjDBc_5_15 it eats\nmv89psg6zh4_33_46 a bird bathes\n"
    )
    (tmp_path / "train_list.txt").write_text("-4wsuPCjDBc_5_15\n")
    (tmp_path / "test_list.txt").write_text("mv89psg6zh4_33_46.avi\n")
    touch(tmp_path / "YouTubeClips", ["-4wsuPCjDBc_5_15.avi", "mv89psg6zh4_33_46.avi"])
    corpus = open_corpus(f"msvd:{tmp_path}")
    assert split_ids(corpus) == {"train": ["-4wsuPCjDBc_5_15"], "test": ["mv89psg6zh4_33_46"]}
    assert captions_of(corpus, "-4wsuPCjDBc_5_15") == ["a squirrel is eating", "it eats"]
    with (tmp_path / "AllVideoDescriptions.txt").open("a") as file:
        file.write("what is this\n")
    assert names(refusal(DataError, open_corpus, f"msvd:{tmp_path}"), "AllVideoDescriptions.txt", 7)


def test_a_clip_in_two_lists_is_leakage(tmp_path: Path) -> None:
    (tmp_path / "tgif-v1.0.tsv").write_text(f"{TUMBLR.format('a')}\ta man\n{TUMBLR.format('b')}\ta cat\n")
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "train.txt").write_text(f"{TUMBLR.format('a')}\n{TUMBLR.format('b')}\n")
    (tmp_path / "splits" / "test.txt").write_text(f"{TUMBLR.format('b')}\n")
    touch(tmp_path / "gifs", ["tumblr_a_500.gif", "tumblr_b_500.gif"])
    corpus = open_corpus(f"tgif:{tmp_path}")
    assert split_ids(corpus) == {"train": ["tumblr_a_500"], "test": ["tumblr_b_500"]}
    assert any(problem.startswith("leakage: 1 image(s)") for problem in corpus.problems)


@pytest.mark.parametrize("name", ["msr_vtt", "msr_vtt_1k_a", "vatex", "tgif", "mrw", "msvd"])
def test_facts_name_the_files_that_the_loader_reads(name: str, tmp_path: Path) -> None:
    """A folder that holds the first path of every piece opens as far as their contents, which are empty, allow."""
    for piece in FACTS[name].pieces:
        place = tmp_path / piece.paths[0]
        if piece.media:
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("")
    assert names(refusal(DataError, open_corpus, f"{name}:{tmp_path}"), tmp_path)
    assert all(
        finding.text.startswith(f"{piece.what}: ")
        for finding, piece in zip(check_data(f"{name}:{tmp_path}"), FACTS[name].pieces, strict=False)
    )
    assert f"openvse data check {name}:ROOT" in FACTS[name].describe()


def test_a_copy_of_msr_vtt_is_counted(tmp_path: Path) -> None:
    findings = {finding.text: finding.mark for finding in check_data(f"msr_vtt:{write_msr_vtt(tmp_path / 'm')}")}
    assert findings["clips: 12, expected 10,000; what is missing is no longer published"] == "note"
    assert any(text.startswith("captions of each of the clips: 20 expected, 12 have") for text in findings)
