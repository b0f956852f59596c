"""A data set of your own as a plug-in, with its contract test.

In every command: openvse --plugin examples/plugin_dataset.py train vse_infinity/folder_cpu data.source=pairs:FOLDER
"""

from pathlib import Path

from openvse.corpus import Corpus, Record, build_corpus
from openvse.datasets import DATASETS, open_corpus
from openvse.errors import DataError
from openvse_testing import check_dataset


def open_pairs(root: Path, *, require_images: bool = True) -> Corpus:
    """Open a folder with pairs.txt: in each line the name of an image, a tab and a sentence."""
    if not (root / "pairs.txt").is_file():
        raise DataError(f"{root} has no pairs.txt: give the folder that holds it")
    captions: dict[str, list[str]] = {}
    for line in (root / "pairs.txt").read_text().splitlines():
        name, _, sentence = line.partition("\t")
        captions.setdefault(name, []).append(sentence)
    # Without a split, images are split by a hash of their names.
    records = [Record(name, root / name, said) for name, said in captions.items()]
    return build_corpus("pairs", records, require_images=require_images)


DATASETS.add("pairs", open_pairs)


def test_pairs(folder: Path) -> None:
    """Check what training and evaluation rely on; a small copy in the real layout is enough."""
    check_dataset("pairs", folder)


if __name__ == "__main__":
    from shapes import draw

    paths, sentences = draw(Path("shapes"))
    lines = [f"{path.name}\t{sentence}" for path, sentence in zip(paths, sentences, strict=True)]
    Path("shapes/pairs.txt").write_text("\n".join(lines))
    test_pairs(Path("shapes"))
    corpus = open_corpus("pairs:shapes")
    print(f"{len(corpus)} images, {len(corpus.split('train'))} of them for training: {corpus.captions[0]!r}, ...")
