"""Data sets of the Hugging Face hub, in the forms in which the library ``datasets`` and the hub keep them."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from drawn import COLOURS, drawn
from PIL import ImageColor

from openvse.datasets import hf, open_corpus, parquet
from openvse.errors import BadImageError, DataError
from openvse.media.images import read_image
from tests.naming import names, refusal

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FEATURES = {"info": {"features": {"image": {"_type": "Image"}, "caption": {"dtype": "string", "_type": "Value"}}}}


def table(numbers, *, paths=True, captions=None):
    images = [{"bytes": drawn(n), "path": f"{n}.png" if paths else None} for n in numbers]
    captions = captions or [f"colour {n}" for n in numbers]
    made = pa.table({"image": pa.array(images, IMAGE), "caption": captions, "label": list(numbers)})
    return made.replace_schema_metadata({"huggingface": json.dumps(FEATURES)})


def hub_folder(root, paths=True, readme=True):
    """Write the layout of ``push_to_hub``: shards of Parquet below data/, their splits in README.md."""
    (root / "data").mkdir(parents=True)
    pq.write_table(table([0, 1], paths=paths), root / "data" / "train-00000-of-00002.parquet", row_group_size=1)
    pq.write_table(table([2], paths=paths), root / "data" / "train-00001-of-00002.parquet")
    pq.write_table(table([3, 4], paths=paths), root / "data" / "test-00000-of-00001.parquet")
    if readme:
        (root / "README.md").write_text(
            "---\ndataset_info:\n  features:\n  - name: image\n    dtype: image\nconfigs:\n"
            "- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n"
            "  - split: test\n    path: data/test-*\n---\n# Colours\n"
        )
    return root


@pytest.mark.parametrize("source", ["{}", "hf:{}", "parquet:{}"])
@pytest.mark.parametrize("readme", [True, False])
def test_parquet_in_the_hub_s_layout(tmp_path, source, readme):
    root = hub_folder(tmp_path / "colours", readme=readme)
    corpus = open_corpus(source.format(root))
    by_id = dict(zip(corpus.image_ids, corpus.splits, strict=True))
    assert by_id == {**{f"{n}.png": "train" for n in range(3)}, **{f"{n}.png": "test" for n in (3, 4)}}
    for name, image in zip(corpus.image_ids, corpus.image_paths, strict=True):
        again = pickle.loads(pickle.dumps(image))
        assert len(pickle.dumps(image)) < 1000
        expected = ImageColor.getrgb(COLOURS[int(name[0])])
        np.testing.assert_allclose(read_image(again).getpixel((8, 6)), expected, atol=4)
    assert corpus.split("test").captions == ("colour 3", "colour 4")


def test_images_without_names_are_numbered(tmp_path):
    corpus = open_corpus(hub_folder(tmp_path / "colours", paths=False))
    places = {"train-00000-of-00002": 2, "train-00001-of-00002": 1, "test-00000-of-00001": 2}
    numbered = {f"data/{file}/{row:06d}" for file, count in places.items() for row in range(count)}
    assert set(corpus.image_ids) == numbered


def test_lists_of_captions_and_plain_bytes(tmp_path):
    made = pa.table({"image": [drawn(0), drawn(1)], "captions": [["a", "b"], ["c"]], "split": ["train", "val"]})
    pq.write_table(made, tmp_path / "x.parquet")
    corpus = open_corpus(tmp_path / "x.parquet")
    assert corpus.captions == ("a", "b", "c") and corpus.splits == ("train", "validation")
    assert read_image(corpus.image_paths[1]).getpixel((1, 1)) == ImageColor.getrgb("green")


def test_paths_without_bytes_name_files(tmp_path):
    (tmp_path / "0.png").write_bytes(drawn(0))
    images = pa.array([{"bytes": None, "path": "0.png"}], IMAGE)
    pq.write_table(pa.table({"image": images, "text": ["red"]}), tmp_path / "x.parquet")
    assert open_corpus(tmp_path).image_paths == (tmp_path / "0.png",)


def test_what_save_to_disk_writes(tmp_path):
    for split, numbers in (("train", [0, 1]), ("test", [2])):
        folder = tmp_path / split
        folder.mkdir()
        with pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink:
            made = table(numbers)
            with pa.ipc.new_stream(sink, made.schema) as writer:
                writer.write_table(made, max_chunksize=1)
        (folder / "state.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    corpus = open_corpus(tmp_path)
    assert corpus.image_ids == ("0.png", "1.png", "2.png")
    assert corpus.splits == ("train", "train", "test")
    assert read_image(corpus.image_paths[1]).getpixel((1, 1)) == ImageColor.getrgb("green")


def two_configurations(root, columns=("image", "caption", "label")):
    for name, number in (("de", 0), ("en", 1)):
        (root / name).mkdir(parents=True)
        pq.write_table(table([number]).rename_columns([*columns]), root / name / "all.parquet")
    entries = "".join(f"- config_name: {name}\n  data_files: {name}/*.parquet\n" for name in ("de", "en"))
    (root / "README.md").write_text(f"---\nconfigs:\n{entries}---\n")
    return root


def test_several_configurations_have_to_be_named(tmp_path):
    root = two_configurations(tmp_path / "set")
    assert names(refusal(DataError, open_corpus, root), "de, en")
    assert open_corpus(f"hf:{root}#en").image_ids == ("1.png",)
    assert names(refusal(DataError, open_corpus, f"hf:{root}#fr"), "'fr'")


def test_a_configuration_stays_in_its_folder(tmp_path):
    root = hub_folder(tmp_path / "colours", readme=False)
    (root / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: ../other/*.parquet\n---\n")
    assert names(refusal(DataError, open_corpus, root), "'../other/*.parquet'")


def test_a_name_is_downloaded(tmp_path, monkeypatch):
    """The hub keeps files apart from the links to them, in its cache."""
    asked = []
    snapshot = tmp_path / "cache" / "snapshots" / "abc"
    (tmp_path / "cache" / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (tmp_path / "cache" / "blobs" / "1").write_bytes(drawn(0))
    (snapshot / "a.png").symlink_to("../../blobs/1")
    (snapshot / "metadata.csv").write_text("file_name,text\na.png,red\n")

    def download(name, *, repo_type, revision):
        asked.append((name, repo_type, revision))
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert open_corpus("hf:owner/colours@v2").captions == ("red",)
    assert asked == [("owner/colours", "dataset", "v2")]
    (snapshot / "b.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "secret.png").write_bytes(drawn(1))
    (snapshot / "metadata.csv").write_text("file_name,text\na.png,red\nb.png,green\n")
    assert names(refusal(DataError, open_corpus, "hf:owner/colours@v2", allow_outside=True), "'b.png'")


def test_a_name_that_the_hub_does_not_give(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no\nconnection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    assert names(refusal(DataError, open_corpus, "hf:owner/gone"), "owner/gone", "OSError")
    assert names(refusal(DataError, open_corpus, f"hf:{tmp_path / 'gone'}"), tmp_path / "gone")


def test_damaged_tables(tmp_path):
    root = hub_folder(tmp_path / "colours", readme=False)
    shard = root / "data" / "test-00000-of-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-40])
    assert names(refusal(DataError, open_corpus, root), "test-00000-of-00001.parquet")


def test_an_empty_cell_is_a_bad_image(tmp_path):
    images = pa.array([{"bytes": drawn(0), "path": "0.png"}, {"bytes": None, "path": "1.png"}], IMAGE)
    pq.write_table(pa.table({"image": images, "text": ["red", "gone"]}), tmp_path / "x.parquet")
    _, image = open_corpus(tmp_path).image_paths
    assert names(refusal(BadImageError, read_image, image), "x.parquet", "1.png")


def test_large_row_groups_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_LARGE_PART", 100)
    assert len(open_corpus(hub_folder(tmp_path / "colours")).problems) == 1


def test_a_head_that_is_not_yaml(tmp_path):
    (tmp_path / "README.md").write_text("---\na: [\n---\n")
    assert names(refusal(DataError, hf.read_configs, tmp_path / "README.md"), "README.md", "YAML")


def rows_of(root, **files):
    for name, rows in files.items():
        entries = [{"image": {"bytes": drawn(n), "path": path}, "caption": text} for n, path, text in rows]
        pq.write_table(pa.Table.from_pylist(entries), root / f"{name}.parquet", row_group_size=1)
    return open_corpus(root)


def test_a_row_for_each_caption_in_several_shards(tmp_path):
    corpus = rows_of(tmp_path, s_0=[(0, "a.png", "x"), (1, "b.png", "y"), (0, "a.png", "z")], s_1=[(1, "b.png", "w")])
    assert corpus.image_ids == ("a.png", "b.png") and corpus.problems == ()
    assert [corpus.select(np.array([n])).captions for n in range(2)] == [("x", "z"), ("y", "w")]


def test_rows_without_a_name_are_one_image_if_their_bytes_are_equal(tmp_path):
    corpus = rows_of(tmp_path, s=[(0, None, "x"), (1, None, "y"), (0, None, "z")])
    assert (corpus.image_ids, corpus.captions) == (("s/000000", "s/000001"), ("x", "z", "y"))


def test_a_name_of_different_images_is_reported(tmp_path):
    corpus = rows_of(tmp_path, s=[(0, "a.png", "x"), (1, "a.png", "y"), (0, "a.png", "z")])
    assert (corpus.image_ids, corpus.captions) == (("s/000000", "s/000001"), ("x", "z", "y"))
    assert corpus.problems[0].cases == ("a.png",)


def test_an_image_of_two_splits_is_leakage(tmp_path):
    corpus = rows_of(tmp_path, train=[(0, "a.png", "x"), (1, "b.png", "y")], test=[(0, "a.png", "z")])
    assert dict(zip(corpus.image_ids, corpus.splits, strict=True)) == {"b.png": "train", "a.png": "test"}
    assert corpus.problems[0].startswith("leakage: 1 image(s)")


def test_columns_of_a_data_set_of_the_hub_are_named(tmp_path):
    root = two_configurations(tmp_path / "set", ("photo", "alt", "key"))
    corpus = open_corpus(f"hf:{root}#en,image=photo,caption=alt,id=key")
    assert (corpus.image_ids, corpus.captions) == (("1",), ("colour 1",))
    corpus = open_corpus(f"{root / 'de'}#image=photo,caption=alt")
    assert (corpus.image_ids, corpus.captions) == (("0.png",), ("colour 0",))
    refused = refusal(DataError, open_corpus, f"hf:{root}#en,image=image,caption=alt")
    assert names(refused, "'image'", "photo, alt, key")
