"""The names of classes as sentences, and the model that they make of a folder of images without captions.

The 1,000 names are the words and definitions of WordNet 3.0 (``LICENSE-WORDNET``) for the classes of ImageNet-1k, in
the order of its classifiers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import torch

from openvse.errors import DataError, RecipeError
from openvse.features.extract import extract_features
from openvse.features.store import open_fitting
from openvse.files import read_lines
from openvse.media.listing import ImageFile, list_media, rules_of
from openvse.model.two_tower import TwoTower
from openvse.pipeline import WorkProgress, tell_skipped
from openvse.retrieval.build import build_model
from openvse.retrieval.closed_form import described_by, linear_of, maps_of_names, sentences_of, set_maps
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.specs.load import read_recipe, validated
from openvse.specs.model import Part, TwoTowerSpec
from openvse.training.inputs import AUTO, RunInputs, source_of, spread

NONE = "none"
LEAST_CAPTIONED = 20
"""The fewest images of a folder whose captions are worth a run."""

FINDS = "It finds things, animals and places outdoors, but not people, colours or counts"
"""What a model of names alone is good for."""

_SEEN_BEFORE = 100  # images whose mean of probabilities stands for those of a folder that is searched


def imagenet_names() -> list[str]:
    """Return a sentence for each class of ImageNet-1k: its words, a colon, and its definition."""
    text = files("openvse.retrieval").joinpath("imagenet_names.txt").read_text(encoding="utf-8")
    return text.splitlines()


@torch.no_grad()
def class_names(wanted: str, model: TwoTower) -> Sequence[str]:
    """Return a sentence for each class, and give the aggregator of images the classifier of its backbone.

    Args:
        wanted: ``auto``, which takes ImageNet's names if they fit and otherwise none, ``none``, or a text file with a
            sentence a line, in the order of the classifier.

    Raises:
        RecipeError: a file is named, and there is no classifier, or it has another number of classes.
    """
    image = linear_of("image", model.image.aggregator)
    own = model.image.encoder.backbone.classifier() if image.classes and wanted != NONE else None
    names = [] if own is None else imagenet_names() if wanted == AUTO else read_lines(Path(wanted))
    read = image.linear.in_features - image.classes - image.middle
    if own is not None and own.weight.shape == (len(names), read) and len(names) == image.classes:
        assert image.classifier is not None, "there are classes"
        image.classifier.load_state_dict(own.state_dict())
        return names
    if wanted in (AUTO, NONE):
        return ()
    raise RecipeError(
        f"recipe: start.names: {wanted} has {len(names)} lines, image.aggregator {image.classes} classes, and the "
        f"backbone {own.out_features if own else 'no classifier'}: give the same number of each, or names: none"
    )


def names_of(recipe: RetrievalRecipe) -> str:
    """Return what a recipe says of names, which is ``none`` if it does not begin at the closed form with classes."""
    if not isinstance(recipe.start, Part) or recipe.start.name != "closed_form":
        return NONE
    inner = Part.model_validate(recipe.image.aggregator.options.get("base", recipe.image.aggregator))
    return str(recipe.start.options.get("names", AUTO)) if inner.options.get("classes") else NONE


def model_without_captions(recipe: RetrievalRecipe, inputs: RunInputs, captioned: int) -> TwoTower:
    """Return the model of names alone for the images in the folder of a recipe, whose features the run keeps."""
    folder = Path(source_of(recipe))
    listing = list_media(folder, ignored=rules_of(folder))
    pictures = list(zip(listing.names, listing.paths, strict=True))
    with inputs.accelerator.main_process_first():
        model = model_of_names(recipe, pictures, inputs.folder / "features", inputs.on_extraction)
    what = f"captions of {captioned} image(s)" if captioned else "no captions"
    inputs.watcher.note(
        f"{folder} has {what}, so the model is made of the names of 1,000 things. {FINDS}, and it states no "
        f"probability. From {LEAST_CAPTIONED} captioned images on, openvse learns from the captions, too"
    )
    return model


def write_model_of_names(folder: Path, out: Path) -> None:
    """Write the model of names for a folder of images that is about to be indexed, from a sample of the images."""
    listing = list_media(folder, ignored=rules_of(folder))
    sample = [listing.names[position] for position in spread(len(listing.names), _SEEN_BEFORE)]
    recipe = validated(RetrievalRecipe, read_recipe("folder"))
    with tempfile.TemporaryDirectory() as place:
        model = model_of_names(recipe, [(name, folder / name) for name in sample], Path(place, "features"))
    model.save(out)


def model_of_names(
    recipe: RetrievalRecipe,
    pictures: Sequence[tuple[str, ImageFile]],
    store: Path,
    progress: Callable[[WorkProgress], None] | None = None,
) -> TwoTower:
    """Return a model of the linear maps of a recipe that knows names alone, for images like the given ones.

    Their features are extracted into the store, unless the recipe names another.

    Raises:
        RecipeError: there are no names for the classifier of the recipe.
        DataError: no image can be read.
    """
    model = build_model(_maps_alone(recipe), seed=recipe.seed).eval()
    if not (names := class_names(names_of(recipe), model)):
        raise RecipeError(f"recipe {recipe.name}: its backbone has no names of classes: give images captions")
    if recipe.data.features in (None, AUTO):
        report = extract_features(model.image.encoder.backbone, pictures, store, progress=progress)
        tell_skipped(report.failed)
    else:
        store = Path(recipe.data.features)
    encoder, described = model.image.encoder, described_by(model)
    features = open_fitting(store, fingerprint=encoder.fingerprint, dim=encoder.feature_dim)
    if not (there := [name for name, _ in pictures if name in features]):
        raise DataError(f"none of the {len(pictures)} images can be read: check the files")
    batches = (features.positions(there[start : start + 128]) for start in range(0, len(there), 128))
    with torch.inference_mode():
        seen = [described.image(features.gather(batch)).vectors[:, 0, -len(names) :] for batch in batches]
    linear = linear_of("image", model.image.aggregator).linear
    sentences, likely = sentences_of(described, names), torch.cat(seen).double().mean(0).numpy()
    set_maps(model, maps_of_names(sentences, likely, linear.in_features - len(names), linear.out_features))
    described_as = f"A model of the names of {len(names):,} things, made without captions. {FINDS}."
    model.provenance = {"recipe": recipe.name, "seed": recipe.seed, "description": described_as}
    return model


def _maps_alone(recipe: RetrievalRecipe) -> TwoTowerSpec:
    """Return the spec of a recipe without the poolings that only training fills."""
    tree = TwoTowerSpec.of(recipe.to_dict()).model_dump(mode="json")
    for side in ("image", "text"):
        options = tree[side]["aggregator"]
        if "base" in options:
            tree["embed_dim"] = options.get("base_dim") or tree["embed_dim"]
            tree[side]["aggregator"] = options["base"]
    return TwoTowerSpec.of(tree)
