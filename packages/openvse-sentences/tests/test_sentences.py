"""Poolings and text towers that sentence-transformers loads, trains and saves."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer

from openvse import export
from openvse.aggregators import AGGREGATORS
from openvse.errors import ModelError, RecipeError
from openvse.model.two_tower import TwoTower
from openvse.retrieval.build import build_model
from openvse.specs.model import TwoTowerSpec
from openvse_sentences import SentencePooling

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "cat", "runs", "sits", "red")
SENTENCES = ["a dog runs", "cat", "a red cat sits", "zebra dog"]
ONE_EMBEDDING = [
    name
    for name in AGGREGATORS
    if name not in ("blocks", "frame_levels", "multi_view", "pie_net", "slot_attention", "tokens")
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert"))


def write_bert(folder: Path, width: int = 16) -> Path:
    """Write a small BERT with random weights, and its tokenizer."""
    from transformers import BertConfig, BertModel, BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    BertModel(config).eval().save_pretrained(folder)
    BertTokenizer(str(vocabulary)).save_pretrained(folder)
    return folder


def sentence_model(bert: Path, pooling: str) -> SentenceTransformer:
    return SentenceTransformer(
        modules=[Transformer(str(bert)), SentencePooling(pooling, dim=16), Normalize()], device="cpu"
    )


@pytest.mark.parametrize("name", ONE_EMBEDDING)
def test_every_pooling_comes_back(name: str, bert: Path, tmp_path: Path) -> None:
    model, folder = sentence_model(bert, name), tmp_path / name
    assert model.get_embedding_dimension() == 16
    model.save(str(folder), create_model_card=False)
    again = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    assert isinstance(again[1], SentencePooling) and again[1].pooling == name
    one, other = (each.encode(SENTENCES, show_progress_bar=False) for each in (model, again))
    assert np.array_equal(one, other)
    alone = again.encode(SENTENCES[1:2], show_progress_bar=False)
    assert np.allclose(alone, one[1:2], atol=1e-5)  # the rest of a batch changes nothing


def test_the_library_trains_a_pooling(bert: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    from datasets import Dataset

    model = sentence_model(bert, "gpo")
    before = {name: weight.clone() for name, weight in model[1].named_parameters()}
    pairs = Dataset.from_dict({"anchor": SENTENCES, "positive": SENTENCES[::-1]})
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path),
        num_train_epochs=1,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        learning_rate=0.01,
    )
    SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model)
    ).train()
    assert all(not torch.equal(weight, before[name]) for name, weight in model[1].named_parameters())


@pytest.mark.parametrize(
    ("pooling", "told"), [("multi_view", "makes 3 embeddings"), ("pie_net", "needs a global vector")]
)
def test_poolings_of_another_kind_are_refused(pooling: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        SentencePooling(pooling, dim=16)


def text_model(encoder: dict[str, object], aggregator: str = "gpo") -> TwoTower:
    spec = TwoTowerSpec.of(
        {
            "embed_dim": 8,
            "image": {"encoder": {"name": "precomputed", "feature_dim": 6}, "aggregator": "gpo"},
            "text": {"encoder": encoder, "aggregator": aggregator},
        }
    )
    return build_model(spec, captions=SENTENCES).eval()


def test_a_text_tower_is_a_sentence_transformer(bert: Path, tmp_path: Path) -> None:
    words = {"name": "bigru", "word_dim": 6, "min_count": 1}
    for name, encoder in {"words": words, "bert": {"name": "transformers_text", "model": str(bert)}}.items():
        model, folder = text_model(encoder), tmp_path / name
        done = export(model, folder, format="sentence_transformers")
        assert done.differences[0].largest <= 1e-5
        loaded = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
        ours = model.encode_text(SENTENCES).vectors[:, 0].numpy()
        assert np.abs(loaded.encode(SENTENCES, show_progress_bar=False) - ours).max() <= 1e-5
        assert loaded.get_embedding_dimension() == 8
        loaded.save(str(tmp_path / f"{name}_again"), create_model_card=False)
        again = SentenceTransformer(str(tmp_path / f"{name}_again"), trust_remote_code=True, device="cpu")
        assert np.abs(again.encode(SENTENCES, show_progress_bar=False) - ours).max() <= 1e-5


def test_several_embeddings_are_refused(tmp_path: Path) -> None:
    model = text_model({"name": "bigru", "word_dim": 6, "min_count": 1}, "multi_view")
    with pytest.raises(ModelError, match="3 embeddings"):
        export(model, tmp_path / "out", format="sentence_transformers")
    assert not (tmp_path / "out").exists()
