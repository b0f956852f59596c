"""WordNet's nouns: read from its own files, and as similar as nltk says."""

import warnings
from pathlib import Path

import pytest
from tiny_wordnet import TAXONOMY, write_wordnet

from openvse.errors import DataError
from openvse_papers.vqa import answers as wordnet
from openvse_papers.vqa.answers import WordNet, find_wordnet


@pytest.fixture
def tiny(tmp_path) -> WordNet:
    return WordNet(write_wordnet(tmp_path / "dict"))


def nltk_reader(folder: Path, monkeypatch):
    """Open a folder with nltk, which wants the other parts of speech too, and reads nothing but its own folders."""
    nltk = pytest.importorskip("nltk")
    for kind in ("adj", "adv", "verb"):
        for name in (f"index.{kind}", f"data.{kind}", f"{kind}.exc"):
            (folder / name).touch()
    for name in ("cntlist.rev", "index.sense"):
        (folder / name).touch()
    (folder / "data.adj").write_text("  1 WordNet 3.0 Copyright\n")
    (folder / "lexnames").write_text("".join(f"{number:02d}\tfile{number}\t1\n" for number in range(45)))
    monkeypatch.setattr(nltk.data, "path", [str(folder.parents[1])])
    from nltk.corpus.reader.wordnet import WordNetCorpusReader
    from nltk.data import FileSystemPathPointer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return WordNetCorpusReader(FileSystemPathPointer(str(folder)), None)


@pytest.mark.medium
def test_every_pair_is_as_similar_as_nltk_says(tmp_path, monkeypatch):
    folder = write_wordnet(tmp_path / "corpora" / "wordnet")
    reader, tiny = nltk_reader(folder, monkeypatch), WordNet(folder)
    words = [*sorted({word for spelled, _ in TAXONOMY.values() for word in spelled}), "chairs", "women", "feet"]
    different = set()
    for one in words:
        for other in words:
            senses = [(a, b) for a in reader.synsets(one, "n") for b in reader.synsets(other, "n")]
            expected = max(a.wup_similarity(b) or 0.0 for a, b in senses)
            assert tiny.similarity(one, other) == pytest.approx(1.0 if one == other else expected, abs=1e-12)
            different.add(expected)
    assert len(different) > 10


def test_similarities_by_hand(tiny):
    # entity 1, object 2, artifact 3, furniture 4, seat 5, chair 6
    assert tiny.similarity("chair", "sofa") == pytest.approx(2 * 5 / (6 + 6))
    assert tiny.similarity("chair", "table") == pytest.approx(2 * 4 / (6 + 5))
    assert tiny.similarity("chair", "seat") == pytest.approx(2 * 5 / (6 + 5))
    # as a professor, a chair is nearer to a man than as furniture
    assert tiny.similarity("chair", "man") == pytest.approx(2 * 3 / (4 + 4))
    assert tiny.similarity("Eames chair", "sofa") == pytest.approx(2 * 5 / (7 + 6))
    assert tiny.similarity("chair", "idea") == 0
    assert tiny.similarity("chair", "zebra") == tiny.similarity("zebra", "chair") == 0
    assert tiny.similarity("zebra", "zebra") == 1


def test_spellings(tiny):
    for one, other in (
        ("couch", "sofa"),
        ("Sofas", "couches"),
        ("garbage bins", "bin"),
        ("garbage_bin", "bin"),
        ("t shirt", "t-shirts"),
        ("women", "woman"),
        ("feet", "foot"),
        ("physical object", "object"),
    ):
        assert tiny.similarity(one, other) == 1, (one, other)
    assert tiny.senses("foots") and not tiny.senses("feets") and not tiny.senses("") and not tiny.senses("-")


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match=r"index\.noun.*data\.noun.*WordNet") as caught:
        WordNet(tmp_path)
    assert "wordnet-base" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "culprit"),
    [
        ("index.noun", "chair n\n", "index.noun"),
        ("index.noun", "chair n x 00000000\n", "index.noun"),
        ("data.noun", "no data\n", "data.noun"),
        ("data.noun", "", "data.noun"),
    ],
)
def test_damaged_files(tmp_path, name, content, culprit):
    folder = write_wordnet(tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=f"{culprit}.*WordNet"):
        WordNet(folder).similarity("chair", "sofa")


def test_a_circle_is_no_wordnet(tmp_path):
    circle = {"hen": (["hen"], [("@", "egg")]), "egg": (["egg"], [("@", "hen")])}
    with pytest.raises(DataError, match="WordNet"):
        WordNet(write_wordnet(tmp_path, circle)).similarity("hen", "egg")


def test_where_it_is_installed(tmp_path, monkeypatch):
    folder = write_wordnet(tmp_path / "home" / "dict")
    monkeypatch.setattr(wordnet, "_INSTALLED", (tmp_path / "nowhere",))
    monkeypatch.delenv("WNSEARCHDIR", raising=False)
    monkeypatch.delenv("WNHOME", raising=False)
    assert find_wordnet() is None
    monkeypatch.setenv("WNHOME", str(tmp_path / "home"))
    assert find_wordnet() == folder
    monkeypatch.setenv("WNSEARCHDIR", str(write_wordnet(tmp_path / "other")))
    assert find_wordnet() == tmp_path / "other"
    monkeypatch.setattr(wordnet, "_INSTALLED", (folder,))
    monkeypatch.setenv("WNHOME", str(tmp_path / "gone"))
    monkeypatch.delenv("WNSEARCHDIR")
    assert find_wordnet() == folder
