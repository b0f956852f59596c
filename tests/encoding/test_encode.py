"""Embeddings as files: the same bytes whatever the interruptions, and nothing that is lost without a word."""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from openvse.encoding import encode
from openvse.encoding.run import list_records
from openvse.errors import DataError, ModelError, OpenVSEError
from openvse.indexing import Index, embedding
from openvse.model.two_tower import TwoTower
from openvse.pipeline import Workers, WorkProgress
from tests.full_disk import full_disk
from tests.naming import names, refusal
from tests.pickled_work import pickled_work


def content(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder, but the lock."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "writer.lock"}


def stopping(after: int) -> Callable[[WorkProgress], None]:
    """Return what stops an encoding when some records are done."""

    def stop(state: WorkProgress) -> None:
        if state.done >= after:
            raise KeyboardInterrupt

    return stop


def interrupted(model: TwoTower, photos: Path, out: Path, after: int) -> None:
    """Stop an encoding when some records are done, as Ctrl-C does."""
    with pytest.raises(KeyboardInterrupt):
        encode(model, photos, out, shard_size=3, batch_size=2, progress=stopping(after))


@pytest.mark.medium
def test_an_array_has_the_embeddings_of_the_model(model: TwoTower, photos: Path, tmp_path: Path) -> None:
    report = encode(model, photos, tmp_path / "x.npy", shard_size=4, batch_size=3)
    ids = (tmp_path / "x_ids.txt").read_text().splitlines()
    vectors = np.load(tmp_path / "x.npy")
    assert ids == sorted(ids) and len(ids) == 11
    assert (report.count, report.num_embeddings, report.dim) == (11, 1, 16) == (11, 1, vectors.shape[1])
    expected = model.encode_image([photos / name for name in ids]).vectors[:, 0]
    torch.testing.assert_close(torch.from_numpy(vectors), expected, rtol=0, atol=1e-5)
    assert [item for item, _ in report.failed] == ["05 broken.jpg"]
    assert report.left_out.counts() == "1 video, 1 PDF"
    told = json.loads((tmp_path / "x.npy.json").read_text())
    assert told["count"] == 11 and told["left_out"] == [{"id": "05 broken.jpg", "reason": "it is not an image we read"}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "x.npy", "x.npy.json", "x_ids.txt"]


@pytest.mark.medium
@pytest.mark.parametrize("name", ["x.npy", "x.parquet", "folder"])
def test_interruptions_leave_no_trace(model: TwoTower, photos: Path, tmp_path: Path, name: str) -> None:
    whole, other = tmp_path / "whole", tmp_path / "other"
    whole.mkdir(), other.mkdir()
    encode(model, photos, whole / name, shard_size=3, batch_size=2)
    for after in (4, 1, 8):
        interrupted(model, photos, other / name, after)
    report = encode(model, photos, other / name, shard_size=3, batch_size=2)
    assert report.earlier == 9  # five batches of two, with one that cannot be used
    places = [each / name if name == "folder" else each for each in (whole, other)]
    assert content(places[0]) == content(places[1])
    assert not [path for path in places[1].iterdir() if "unfinished" in path.name]
    before = content(places[1])
    assert encode(model, photos, other / name, shard_size=3, batch_size=2).earlier == 12
    assert content(places[1]) == before


@pytest.mark.medium
def test_a_killed_encoding_goes_on(
    model: TwoTower, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(model, photos, tmp_path / "whole.npy", batch_size=1)
    work, kept = tmp_path / ".x.npy.unfinished", 0
    monkeypatch.setattr("openvse.pipeline.KEEP_SECONDS", 0)
    fork = get_context("fork")
    torch.set_num_threads(1)
    for wanted in (2, 5, 9):
        process = fork.Process(target=encode, args=(model, photos, tmp_path / "x.npy"), kwargs={"batch_size": 1})
        process.start()
        deadline = time.monotonic() + 60
        while kept < wanted and time.monotonic() < deadline and process.is_alive():
            with suppress(OpenVSEError):
                kept = len(Index.open(work))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert encode(model, photos, tmp_path / "x.npy", batch_size=1).earlier >= 9
    for name in (".npy", "_ids.txt"):
        assert (tmp_path / f"x{name}").read_bytes() == (tmp_path / f"whole{name}").read_bytes()


@pytest.mark.medium
def test_an_image_that_changed_is_encoded_again(model: TwoTower, photos: Path, tmp_path: Path) -> None:
    interrupted(model, photos, tmp_path / "x.npy", 9)
    Image.new("RGB", (40, 32), "white").save(photos / "01 é.png")
    assert encode(model, photos, tmp_path / "x.npy", shard_size=3, batch_size=2).earlier == 8
    encode(model, photos, tmp_path / "whole.npy")
    whole, again = np.load(tmp_path / "whole.npy"), np.load(tmp_path / "x.npy")
    assert whole.shape == again.shape
    np.testing.assert_allclose(again, whole, rtol=0, atol=1e-5)


@pytest.mark.medium
def test_a_list_keeps_its_order_and_its_ids(model: TwoTower, photos: Path, tmp_path: Path) -> None:
    names = ["02 é.png", "05 broken.jpg", "01 é.png", "02 é.png"]
    rows = [f"{item}\tphotos/{name}\n" for item, name in zip("xbca", names, strict=True)]
    (tmp_path / "list.tsv").write_text("id\tpath\n" + "".join(rows))
    for stop in (1, 2, 3, 4):
        with pytest.raises(KeyboardInterrupt):
            encode(model, tmp_path / "list.tsv", tmp_path / "x.npy", batch_size=1, progress=stopping(stop))
    report = encode(model, tmp_path / "list.tsv", tmp_path / "x.npy", batch_size=1)
    assert (report.earlier, report.failed) == (3, [("b", "it is not an image we read")])
    assert (tmp_path / "x_ids.txt").read_text().split() == ["x", "c", "a"]
    expected = [model.encode_image([photos / name]).vectors[0, 0].numpy() for name in ("02 é.png", "01 é.png")]
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), [expected[0], expected[1], expected[0]])


def test_a_table_names_no_image_outside_of_its_folder_unless_allowed(photos: Path, tmp_path: Path) -> None:
    """Somebody else may have written the table; a list without columns is your own."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").symlink_to(photos / "01 é.png")
    for name in ("../photos/01 é.png", str(photos / "01 é.png"), "a.png"):
        (tmp_path / "data" / "list.csv").write_text(f"path\n{name}\n")
        assert names(refusal(DataError, list_records, tmp_path / "data" / "list.csv"), "--allow-outside")
        assert len(list_records(tmp_path / "data" / "list.csv", allow_outside=True).records) == 1
        (tmp_path / "data" / "list.txt").write_text(f"{name}\n")
        assert len(list_records(tmp_path / "data" / "list.txt").records) == 1


@pytest.mark.medium
def test_sentences_keep_their_ids_and_texts(model: TwoTower, tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text('id,caption\na,red dog runs\nb,  \nc,"blue\n bird"\n')
    report = encode(model, tmp_path / "captions.csv", tmp_path / "x.parquet", dtype="float16")
    table = parquet.read_table(tmp_path / "x.parquet")
    assert table.column("id").to_pylist() == ["a", "c"]
    assert table.column("text").to_pylist() == ["red dog runs", "blue bird"]
    assert report.failed == [("b", "line 3 has no sentence")]
    expected = model.encode_text(["red dog runs", "blue bird"]).vectors[:, 0].half().numpy()
    np.testing.assert_array_equal(np.stack(table.column("vector").to_numpy()), expected)


@pytest.mark.medium
def test_several_embeddings_are_rows_of_parquet_and_an_axis_of_numpy(
    model: TwoTower, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "_vectors", lambda embedded: np.concatenate([embedded.vectors.numpy()] * 2, axis=1))
    encode(model, photos, tmp_path / "two", shard_size=6)
    first = parquet.read_table(tmp_path / "two" / "embeddings-00000.parquet")
    assert first.column("part").to_pylist() == [0, 1] * (first.num_rows // 2)
    encode(model, photos, tmp_path / "x.npy")
    assert np.load(tmp_path / "x.npy").shape == (11, 2, 16)


def test_lists_name_images_and_say_what_is_missing(photos: Path, model: TwoTower, tmp_path: Path) -> None:
    lines = ["photos/01 é.png", "photos/gone.png", "photos/clip.mp4"]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    listing = list_records(tmp_path / "list.txt")
    assert (listing.kind, [record.item.id for record in listing.records]) == ("images", lines[:1])
    assert listing.failed[0][0] == "photos/gone.png" and "No such file" in listing.failed[0][1]
    assert listing.left_out.counts() == "1 video"
    (tmp_path / "list.jsonl").write_text('{"image": "photos/01 é.png", "id": 7}\n')
    assert [record.item.id for record in list_records(tmp_path / "list.jsonl").records] == ["7"]


def test_names_in_a_list_match_as_those_of_captions_do(tmp_path: Path) -> None:
    for name in ("Ba\u0308ume.png", "B.PNG", "c.png", "C.png"):
        (tmp_path / name).write_bytes(b"x")
    rows = ["filename", "B\u00e4ume.png", "b.png", "C.PNG"]
    (tmp_path / "list.csv").write_text("\n".join(rows))
    listing = list_records(tmp_path / "list.csv")
    assert [record.path.name for record in listing.records] == ["Ba\u0308ume.png", "B.PNG"]
    assert [record.item.id for record in listing.records] == ["B\u00e4ume.png", "b.png"]
    ((item, reason),) = listing.failed
    assert item == "C.PNG" and reason


def test_rows_of_several_sentences(tmp_path: Path) -> None:
    lines = [
        {"file_name": "a.png", "captions": ["a dog", "a cat"], "title": "one"},
        {"file_name": "b.png", "captions": "a fish", "title": '["two", "three"]'},
        {"file_name": "c.png", "captions": []},
    ]
    path = tmp_path / "metadata.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    refused = refusal(DataError, list_records, path)
    advised = [word for word in refused.split() if word.startswith(f"{path}#")]
    listed = list_records(advised[-1])
    assert advised[0] == f"{path}#image=file_name" and listed.failed == [("3", "line 3 has no sentence")]
    assert [(each.item.id, each.text) for each in listed.records] == [
        ("1.1", "a dog"),
        ("1.2", "a cat"),
        ("2", "a fish"),
    ]
    both = list_records(f"{path}#caption=title,caption=captions,id=file_name").records
    assert [(each.item.id, each.text) for each in both[:3]] == [
        ("a.png.1", "one"),
        ("a.png.2", "a dog"),
        ("a.png.3", "a cat"),
    ]
    assert len(list_records(path, kind="texts").records) == 3
    (tmp_path / "t.txt").write_text("['a dog' 'a cat']\na fish\n")
    assert [each.text for each in list_records(tmp_path / "t.txt").records] == ["a dog", "a cat", "a fish"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "path,caption\nx.png,y\n", "#image=path.*#caption=caption"),
        ("a.csv", "name,other\nx,y\n", "name, other"),
        ("a.txt", "\n\n", "a.txt"),
        ("a.jsonl", "[1]\n", "1.*JSON"),
        ("a.csv", "id,text\n1,a\n1,b\n", "a.csv.*1"),
        ("a.doc", "x", "a.doc: "),
    ],
)
def test_lists_that_cannot_be_understood(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        list_records(tmp_path / name)


@pytest.mark.medium
def test_nothing_is_overwritten_unasked(model: TwoTower, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_text("mine")
    assert names(refusal(DataError, encode, model, photos, tmp_path / "x.npy"), "--out", "--overwrite")
    assert (tmp_path / "x.npy").read_text() == "mine"
    assert names(refusal(DataError, encode, model, photos, photos), "--out", "--overwrite")
    encode(model, photos, tmp_path / "x.npy", overwrite=True)
    (photos / "01 é.png").unlink()
    assert names(refusal(DataError, encode, model, photos, tmp_path / "x.npy"), "--out", "--overwrite")
    assert encode(model, photos, tmp_path / "x.npy", overwrite=True).count == 10
    encode(model, photos, tmp_path / "folder", shard_size=2)
    assert encode(model, photos, tmp_path / "folder", shard_size=6, overwrite=True).count == 10
    assert len([*(tmp_path / "folder").glob("embeddings-*")]) == 2


@pytest.mark.medium
def test_a_full_disk_is_one_line(model: TwoTower, photos: Path, tmp_path: Path) -> None:
    with full_disk(300), pytest.raises(OpenVSEError):
        encode(model, photos, tmp_path / "x.npy", shard_size=3)
    assert not (tmp_path / "x.npy").exists()
    assert encode(model, photos, tmp_path / "x.npy", shard_size=3).count == 11


def test_what_cannot_be(model: TwoTower, photos: Path, tmp_path: Path) -> None:
    refusal(ModelError, lambda: encode(model, photos, tmp_path / "x.npy", workers=Workers(2)))
    for name in list(photos.rglob("*.png")):
        name.unlink()
    assert names(refusal(DataError, encode, model, photos, tmp_path / "x.npy"), "1", "05 broken.jpg")


@pytest.mark.medium
def test_ray_is_asked_for_where_it_is_missing(
    model: TwoTower, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    folder = model.save(tmp_path / "model")
    with pytest.raises(OpenVSEError, match=r"pip install"):
        encode(folder, photos, tmp_path / "x.npy", workers=Workers(2))


@pytest.mark.medium
def test_workers_write_the_same_files(
    model: TwoTower, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = pickled_work(monkeypatch)
    folder = model.save(tmp_path / "model")
    encode(folder, photos, tmp_path / "here", shard_size=2, batch_size=2)
    expected = content(tmp_path / "here")
    report = encode(folder, photos, tmp_path / "shared", shard_size=2, batch_size=2, workers=Workers(3))
    assert (report.count, len(report.failed), len(work.taken)) == (11, 1, 6)
    assert content(tmp_path / "shared") == expected


def stop_at(folder: Path, number: int, patched: pytest.MonkeyPatch) -> None:
    """Stop at a change of the files of a folder, counted from 0."""
    left = [number]

    def before(path: Path) -> None:
        if path.parent == folder and not path.name.startswith("."):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1

    rename, remove = Path.replace, Path.unlink
    patched.setattr(Path, "replace", lambda path, target: (before(Path(target)), rename(path, target))[1])
    patched.setattr(
        Path, "unlink", lambda path, missing_ok=False: (before(path), remove(path, missing_ok=missing_ok))[1]
    )


@pytest.mark.medium
@pytest.mark.parametrize("name", ["x.npy", "folder"])
def test_new_ids_are_never_beside_old_embeddings(
    model: TwoTower, photos: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop an encoding that replaces another one at each change of the output, and go on."""
    out = tmp_path / "out" / name
    out.parent.mkdir()
    folder, other = (out, tmp_path / name) if name == "folder" else (out.parent, tmp_path)
    pairs = [("x.npy", "x_ids.txt")]
    if name == "folder":
        pairs = [(f"embeddings-{number:05d}.parquet",) * 2 for number in range(2)]

    def written(place: Path) -> None:
        encode(model, photos, place, shard_size=6, batch_size=2, overwrite=True)

    written(out)
    old = content(folder)
    (photos / "00 a.png").write_bytes((photos / "01 é.png").read_bytes())
    written(tmp_path / name)
    new = content(other)
    assert {ids for _, ids in pairs} <= {each for each in new if new[each] != old.get(each)}
    for stops in range(30):
        for each in content(folder):
            (folder / each).unlink()
        for each, value in old.items():
            (folder / each).write_bytes(value)
        with monkeypatch.context() as patched:
            stop_at(folder, stops, patched)
            try:
                written(out)
                break
            except KeyboardInterrupt:
                pass
        here = content(folder)
        for vectors, ids in pairs:
            both = here.get(vectors), here.get(ids)
            assert None in both or both in [(each[vectors], each[ids]) for each in (old, new)]
        written(out)
        assert {each: content(folder)[each] for each in new} == new
    assert 5 <= stops < 29


@pytest.mark.medium
def test_what_a_stopped_run_left_is_removed_by_the_same_command(model: TwoTower, photos: Path, tmp_path: Path) -> None:
    encode(model, photos, tmp_path / "x.npy")
    (tmp_path / ".x.npy.unfinished").mkdir()
    (tmp_path / ".x.npy.unfinished" / "vectors-0.npy").write_bytes(b"x")
    assert encode(model, photos, tmp_path / "x.npy").earlier == 12
    assert not (tmp_path / ".x.npy.unfinished").exists()
