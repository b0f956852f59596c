"""Token states of texts in a store: each text once, under a digest, whatever the order, stopped and continued."""

from pathlib import Path

import pytest
import torch

from encoders.conftest import bert_checkpoint  # noqa: F401 - a fixture
from openvse.batches.pairs import StoredTexts, TokenTable, text_batches, text_loader
from openvse.encoders import TransformersText
from openvse.errors import StoreError
from openvse.features.extract import extract_text_features, text_id
from openvse.features.store import FeatureStore, open_store
from openvse.functional import pad
from openvse.pipeline import WorkProgress
from openvse.types import Inputs
from tests.naming import names, refusal

TEXTS = ["a dog runs on the red mat", "two cats", "the dog", "", "two cats", "Two cats", "a cat sits"]


@pytest.fixture
def encoder(bert_checkpoint: str) -> TransformersText:  # noqa: F811
    return TransformersText(embed_dim=8, model=bert_checkpoint, fine_tune=False, size_augmentation="drop")


def alone(encoder: TransformersText, text: str) -> torch.Tensor:
    with torch.inference_mode():
        return encoder.eval().token_states(pad(encoder.tokenize([text]))).local[0]


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_every_text_gets_its_own_states_once(encoder, tmp_path: Path, batch_size: int) -> None:
    report = extract_text_features(encoder, TEXTS, tmp_path, batch_size=batch_size, dtype="float32")
    assert (report.done, report.skipped_existing, report.failed, report.unit) == (6, 0, [], "texts")
    store = FeatureStore(tmp_path, encoder.fingerprint)
    assert set(store.ids) == {text_id(text) for text in TEXTS} and len(store) == 6
    texts = StoredTexts(store, TEXTS)
    assert texts.lengths.tolist() == TokenTable(encoder.tokenize(TEXTS)).lengths.tolist()
    for position, text in enumerate(TEXTS):
        (states,) = texts.take(torch.tensor([position]).numpy()).values
        torch.testing.assert_close(states, alone(encoder, text))


def test_no_text_can_be_read_in_the_store(encoder, tmp_path: Path) -> None:
    extract_text_features(encoder, TEXTS, tmp_path)
    for path in tmp_path.iterdir():
        content = path.read_bytes().lower()
        assert not any(text and text.lower().encode() in content for text in TEXTS), path.name
    assert len(text_id("two cats")) == 32 and text_id("two cats") != text_id("Two cats")


def test_the_order_of_the_texts_does_not_matter(encoder, tmp_path: Path) -> None:
    extract_text_features(encoder, TEXTS, tmp_path / "one", batch_size=3, dtype="float32")
    extract_text_features(encoder, [*TEXTS[::-1], "the mat"], tmp_path / "two", batch_size=2, dtype="float32")
    one, two = (StoredTexts(FeatureStore(tmp_path / name), TEXTS) for name in ("one", "two"))
    every = torch.arange(len(TEXTS)).numpy()
    torch.testing.assert_close(one.take(every).values, two.take(every).values)


def test_little_of_a_batch_is_padding(encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    states = encoder.token_states

    def watched(inputs: Inputs):
        assert not encoder.backbone.training and torch.is_inference_mode_enabled()
        seen.append(float(inputs.mask.float().mean()))
        return states(inputs)

    monkeypatch.setattr(encoder, "token_states", watched)
    short, long = [f"dog {'a ' * i}" for i in range(4)], [f"{'the ' * 20} {'mat ' * i}" for i in range(4)]
    mixed = [text for pair in zip(short, long, strict=True) for text in pair]
    extract_text_features(encoder.train(), mixed, tmp_path, batch_size=4)
    assert len(seen) == 2 and min(seen) > 0.6
    assert encoder.training, "the mode from before is back"


def test_a_stopped_extraction_goes_on(encoder, tmp_path: Path) -> None:
    def stop(progress: WorkProgress) -> None:
        assert progress.unit == "texts"
        raise KeyboardInterrupt

    refusal(KeyboardInterrupt, extract_text_features, encoder, TEXTS, tmp_path, batch_size=2, progress=stop)
    assert len(FeatureStore(tmp_path)) == 2
    shown: list[WorkProgress] = []
    report = extract_text_features(encoder, TEXTS, tmp_path, batch_size=2, progress=shown.append)
    assert (report.done, report.skipped_existing) == (4, 2)
    assert [(state.done, state.total) for state in shown] == [(4, 6), (6, 6)]
    whole = extract_text_features(encoder, TEXTS, tmp_path, progress=shown.append)
    assert (whole.done, whole.skipped_existing, shown[-1].done) == (0, 6, 6)
    StoredTexts(FeatureStore(tmp_path), TEXTS)


def test_a_store_of_another_text_model_is_refused(encoder, tmp_path: Path) -> None:
    extract_text_features(encoder, TEXTS, tmp_path)
    with torch.no_grad():
        encoder.backbone.embeddings.word_embeddings.weight[7, 0] += 1
    assert names(refusal(StoreError, extract_text_features, encoder, ["a new text"], tmp_path), "'bert@", "'bert@")
    assert names(refusal(StoreError, open_store, tmp_path, encoder), "'bert@", "'bert@")


def test_a_text_that_is_missing_is_named(encoder, tmp_path: Path) -> None:
    extract_text_features(encoder, TEXTS, tmp_path)
    with pytest.raises(StoreError, match="1.*2.*'a new text'.*'openvse extract'"):
        text_loader(encoder, ["two cats", "a new text"], open_store(tmp_path, encoder))


def test_batches_by_length_are_those_of_token_ids(encoder, tmp_path: Path) -> None:
    extract_text_features(encoder, TEXTS, tmp_path)
    from_store = list(text_batches(text_loader(encoder, TEXTS, open_store(tmp_path, encoder)), 3))
    from_ids = list(text_batches(text_loader(encoder, TEXTS, None), 3))
    for (places, states), (others, ids) in zip(from_store, from_ids, strict=True):
        assert places.tolist() == others.tolist() and torch.equal(states.mask, ids.mask)
        assert states.values.shape == (*ids.values.shape, 16)
