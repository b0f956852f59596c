"""An index with hubs taken out ranks as ``openvse.evaluate`` says, for every kind of model, and without them, too."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import openvse
from openvse import IndexSettings
from openvse.conversion.convert import convert
from openvse.corpus import Corpus
from openvse.datasets import open_corpus
from openvse.evaluation.embed import Member, embed_corpus, make_bank
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.search import Page
from openvse.specs.model import TwoTowerSpec
from search.engine_helpers import engine_of
from tests.conftest import draw_photo
from tests.dual_checkpoints import NORMALISATION, VISION, WORDS, save_dual

PHOTOS = 12
GAUSSIAN = {"name": "gaussian", "mean": "gpo", "start": -1.0}


def write_photos(folder: Path, seed: int) -> Corpus:
    """Write photos with two sentences each, of words that the models know. No two sentences are equal."""
    folder.mkdir()
    draw, lines = np.random.default_rng(seed), []
    for number in range(PHOTOS):
        name = f"new{seed}{number:02d}.png"
        draw_photo(100 * seed + number, (48, 48)).save(folder / name)
        captions = [" ".join(draw.choice(WORDS[:10], size, replace=False)) for size in (5, 6)]
        lines.append(json.dumps({"file_name": name, "captions": captions, "split": "test"}))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return open_corpus(str(folder))


def made(root: Path, pool: Any, **more: Any) -> TwoTower:
    """Return a model with random weights, whose image network is that of a checkpoint in a folder."""
    sees = {"name": "transformers_vision", "model": str(root / "vit"), "projection": "none"}
    reads = {"name": "bigru", "word_dim": 8, "min_count": 1}
    tree = {"embed_dim": 16, "image": {"encoder": sees}, "text": {"encoder": reads}} | more
    for side in ("image", "text"):
        tree[side]["aggregator"] = pool
    model = build_model(TwoTowerSpec.of(tree), captions=[" ".join(WORDS)])
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def models(root: Path) -> Iterator[tuple[str, Path, Path]]:
    """Yield kinds of models with a bank: the name, the model to evaluate and the one that embeds for an index."""
    learned = write_photos(root / "learned", 2)
    torch.manual_seed(0)
    transformers.AutoModel.from_config(transformers.ViTConfig(**VISION)).save_pretrained(root / "vit")
    shown = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (root / "vit" / "preprocessor_config.json").write_text(json.dumps(shown | NORMALISATION | {"resample": 3}))
    clip: Any = convert(str(save_dual("clip", root / "checkpoint")), root / "converted").model
    kinds: dict[str, TwoTower] = {
        "pooled": made(root, "gpo"),
        "gaussian": made(root, GAUSSIAN, embed_dim=18, similarity="csd"),
        "clip": clip,
    }
    for name, model in kinds.items():
        embedded = embed_corpus(model.eval(), learned)
        member = Member(embedded.images, embedded.texts, model.similarity)
        model.save(root / name)
        make_bank(model.fingerprint, member, embedded.corpus).write(root / name)
        yield name, root / name, root / name
    openvse.export(root / "pooled", root / "exported")
    yield "exported", root / "pooled", root / "exported"


def ranks(index: Path, queries: Sequence[Any], relevant: Sequence[set[str]]) -> list[int]:
    """Return the place of the first relevant item of each query, in the whole order of an index."""
    with openvse.open(index) as engine:
        answers = engine.answer(queries, Page(10 * PHOTOS, only="similarity"))
        names = [[hit.id for hit in each.hits] for each in answers]
    return [1 + min(map(order.index, wanted & {*order})) for order, wanted in zip(names, relevant, strict=True)]


def figures(images: list[int], texts: list[int]) -> dict[str, float]:
    """Return recalls and places of the queries of both directions."""
    found = {}
    for side, places in (("i2t", np.array(images)), ("t2i", np.array(texts))):
        found |= {f"{side}_r{k}": 100 * float((places <= k).mean()) for k in (1, 5, 10)}
        found |= {f"{side}_meanr": float(places.mean()), f"{side}_medr": float(np.median(places))}
    return found


def expect_ranks(name: str, evaluated: Path, embedder: Path, corpus: Corpus, work: Path) -> None:
    """Compare the ranks of growing indexes of photos and of sentences with the figures of ``evaluate``."""
    texts, photos, pairs = [*corpus.captions], [*corpus.image_paths], corpus.relevance
    told = [{texts[text] for text in pairs.texts[pairs.images == image]} for image in range(PHOTOS)]
    shown = [{photos[image].name} for image in pairs.images[np.argsort(pairs.texts)]]
    (work / "part").mkdir(parents=True)
    model, found = openvse.open(embedder), {}
    for source, asked, relevant in ((work / "part", texts, shown), (work / "sentences.txt", photos, told)):
        for share in (2, 1):  # the index grows
            for photo in photos[: PHOTOS // share]:
                shutil.copy2(photo, work / "part")
            (work / "sentences.txt").write_text("\n".join(texts[: len(texts) // share]))
            bank = openvse.index(model, source, work / "index" / source.stem, IndexSettings(towers="none")).bank
        assert bank is not None and bank["reliability"] > 0, (name, source.name, bank)
        out = work / "index" / source.stem
        found[source.name] = ranks(out, asked, relevant)
        engine_of(out, "int8")
        assert ranks(out, asked, relevant) == found[source.name], (name, source.name, "a store")
        assert openvse.index(model, source, out, IndexSettings(query_bank=(), engine="exact")).bank is None
        found[f"plain {source.name}"] = ranks(out, asked, relevant)
    report = openvse.evaluate(str(evaluated), str(photos[0].parent), resamples=0)
    for before, metrics in (("", report.hubs_out.metrics), ("plain ", report.metrics)):
        wanted = figures(found[f"{before}sentences.txt"], found[f"{before}part"])
        assert {key: metrics[key] for key in wanted} == pytest.approx(wanted), (name, before)
    assert report.metrics != report.hubs_out.metrics, name


pytestmark = pytest.mark.slow


def test_an_index_ranks_as_evaluate_says_with_hubs_out_and_without(unchecked: None, tmp_path: Path) -> None:
    corpus = write_photos(tmp_path / "photos", 1)
    for name, evaluated, embedder in models(tmp_path):
        expect_ranks(name, evaluated, embedder, corpus, tmp_path / name.replace(" ", "_"))
