"""What ``first_hour.py`` tries of other formats of data, of questions, and of options that all commands share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tests.acceptance.first_hour_cases import UNKNOWN, opened
from tests.acceptance.stage import ONE_EPOCH, Outcome, Stage

PIXELS_MOVED = 2


def other_names(stage: Stage) -> Outcome:
    folder = stage.few("other_names", 2)
    lines = [{"path": "00.png", "text": "a red thing"}, {"image": "01.png", "description": "another thing"}]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return opened(stage, folder)


def lone_parquet(stage: Stage) -> Outcome:
    code = (
        "import sys, pyarrow, pyarrow.parquet\n"
        "columns = {'file_name': ['00.png', '01.png'], 'caption': ['a red thing', 'another thing']}\n"
        "pyarrow.parquet.write_table(pyarrow.table(columns), sys.argv[1])"
    )
    folder = stage.few("lone_parquet", 2)
    written = stage.python(code, folder / "captions.parquet")
    return opened(stage, folder) if written.code == 0 else written.told("written")


def hub_dataset(stage: Stage) -> Outcome:
    code = (
        "import pathlib, sys, pyarrow, pyarrow.parquet\n"
        "images = [{'bytes': path.read_bytes(), 'path': path.name}\n"
        "          for path in sorted(pathlib.Path(sys.argv[1]).glob('*.png'))]\n"
        "table = pyarrow.table({'image': images, 'text': ['a red thing', 'another thing']})\n"
        "pyarrow.parquet.write_table(table, sys.argv[2])"
    )
    folder = stage.new("from_the_hub/data")
    stage.python(code, stage.few("for_the_hub", 2), folder / "train-00000-of-00001.parquet")
    answer = stage.openvse("data", "check", f"hf:{folder.parent}")
    return answer.told("2 items, 2 captions")


def heic(stage: Stage) -> Outcome:
    code = (
        "import sys, pillow_heif; from PIL import Image; pillow_heif.register_heif_opener()\n"
        "Image.open(sys.argv[1]).convert('RGB').save(sys.argv[2])"
    )
    folder = stage.few("phone", 1)
    stage.python(code, folder / "00.png", folder / "01.heic")
    answer = stage.openvse("index", stage.run / "best", folder, "--out", stage.place / "phone_index")
    return answer.told("2 images")


def near_duplicate(stage: Stage) -> Outcome:
    folder = stage.copy(stage.album, "nearly")
    names = {entry["split"]: folder / str(entry["file_name"]) for entry in stage.entries}
    with Image.open(names["train"]) as image:
        image.convert("RGB").resize((image.width + PIXELS_MOVED, image.height)).save(names["test"])
    answer = stage.check(folder)
    found = answer.line(names["train"].name, names["test"].name)
    if not found:
        return Outcome(False, f"not noticed: `{answer.end}`")
    return Outcome("Traceback" not in answer.err, f"`{found.strip()}`")


def quick_check(stage: Stage) -> Outcome:
    folder = stage.few("quick_check", 2)
    for number in range(2):
        (folder / f"{number:02d}.txt").write_text(f"a thing of number {number}\n")
    return stage.openvse("data", "check", folder, "--quick").told("2 items")


def captions_in_evaluation(stage: Stage) -> Outcome:
    folder = stage.copy(stage.album, "same_sentence")
    changed = [{**entry, "captions": ["A thing. ", *entry["captions"][1:]]} for entry in stage.entries]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in changed))
    answer = stage.openvse(
        "evaluate", stage.run / "best", "--on", folder, "--out", stage.place / "same_report"
    )
    found = answer.told("identical captions")
    return found if found.good or answer.code else Outcome(False, "wrong for each other, and nothing said")


def json_of(stage: Stage, *words: object) -> Outcome:
    """Judge whether a command prints one JSON document with its schema."""
    answer = stage.openvse(*words, "--json")
    if answer.code:
        return answer.told("schema")
    document = json.loads(answer.out)
    return Outcome("schema" in document, f"one document with the keys {', '.join(document)}")


def json_of_evaluate(stage: Stage) -> Outcome:
    return json_of(
        stage, "evaluate", stage.run / "best", "--on", stage.album, "--out", stage.place / "json_report"
    )


def json_of_index(stage: Stage) -> Outcome:
    return json_of(
        stage, "index", stage.run / "best", stage.few("for_json"), "--out", stage.place / "json_index"
    )


def json_of_check(stage: Stage) -> Outcome:
    return json_of(stage, "data", "check", stage.album)


def json_of_ask(stage: Stage) -> Outcome:
    return json_of(stage, "ask", stage.answerer / "best", an_image(stage), "what colour is it?")


def an_image(stage: Stage) -> Path:
    """Return the path of an image of the album."""
    return stage.album / str(stage.entries[0]["file_name"])


def asked(stage: Stage) -> Outcome:
    answer = stage.openvse("ask", stage.answerer / "best", an_image(stage), f"what {UNKNOWN} is it?")
    found = answer.told("not know", UNKNOWN)
    return found if found.good or answer.code else Outcome(False, f"no word of it: `{answer.end}`")


def probabilities(stage: Stage) -> Outcome:
    answer = stage.openvse("ask", stage.answerer / "best", an_image(stage), "what colour is it?", "-k", 1)
    found = answer.told("add")
    return found if found.good or answer.code else Outcome(False, f"nothing of it: `{answer.end}`")


def question_for_an_image(stage: Stage) -> Outcome:
    answer = stage.openvse("ask", stage.answerer / "best", an_image(stage), an_image(stage))
    found = answer.told("question", code=2)
    return found if found.good else answer.told("path", code=0)


def no_colour(stage: Stage) -> Outcome:
    with_colours, without = (stage.terminal("--help", env=env) for env in ({}, {"NO_COLOR": "1"}))
    colour = re.compile(r"\x1b\[[0-9;]*3[1-7]m")
    good = bool(colour.search(with_colours)) and not colour.search(without) and "Usage" in without
    return Outcome(good, "no colour is printed" if good else "colours are printed")


def device(stage: Stage) -> Outcome:
    words = stage.training(ONE_EPOCH, out=stage.place / "device_run")
    return stage.openvse(*words, "--device", "cpu").told("best: epoch 1")


def a_path(stage: Stage) -> Outcome:
    code = (
        "import sys, openvse; print('embeddings:', len(openvse.load(sys.argv[1]).encode_image(sys.argv[2])))"
    )
    return stage.python(code, stage.run / "best", an_image(stage)).told("embeddings: 1")


def moved_model(stage: Stage) -> Outcome:
    model, index = stage.copy(stage.run / "best", "model_to_move"), stage.place / "moved_model_index"
    stage.openvse("index", model, stage.few("for_moved_model"), "--out", index)
    model.rename(stage.place / "model_moved")
    answer = stage.openvse("search", index, "a red thing", "-k", 1)
    return answer.told("model_to_move", code=2)


def missing_file_on_a_page(stage: Stage) -> Outcome:
    folder, page = stage.few("to_thin_out", 2), stage.place / "thinned.html"
    index = stage.place / "thinned_index"
    stage.openvse("index", stage.run / "best", folder, "--out", index)
    (folder / "00.png").unlink()
    answer = stage.openvse("search", stage.run / "best", index, "a red thing", "--html", page)
    shown = page.read_text() if page.exists() else ""
    told = "missing" in shown or "not there" in shown or "no longer" in shown
    return Outcome(answer.code == 0 and told, "the card says so" if told else f"nothing said: `{answer.end}`")


def captions_on_a_page(stage: Stage) -> Outcome:
    page = stage.place / "captioned.html"
    answer = stage.search("a red thing", "-k", 1, "--html", page)
    captions = [caption for entry in stage.entries for caption in entry["captions"]]
    shown = page.read_text() if page.exists() else ""
    some = any(caption in shown for caption in captions)
    return Outcome(answer.code == 0 and some, "the captions are shown" if some else "no caption is shown")


def spelled_wrongly(stage: Stage) -> Outcome:
    answer = stage.train(ONE_EPOCH, "training.batchsize=8", out=stage.place / "misspelled")
    return answer.told("batch_size", code=2)


WIDER: dict[str, Callable[[Stage], Outcome]] = {
    "Data: columns `path`, `image`, `text`, `description`": other_names,
    "Data: a lone captions.parquet in the folder": lone_parquet,
    "Data: a data set in the hub's format": hub_dataset,
    "Data: an HEIC image, with the extra `heif`": heic,
    "Data: `data check` with an image that is nearly one of the test split": near_duplicate,
    "Data: `data check --quick`": quick_check,
    "Data: identical captions of different images, in `evaluate`": captions_in_evaluation,
    "Terminal: `evaluate --json`": json_of_evaluate,
    "Terminal: `index --json`": json_of_index,
    "Terminal: `data check --json`": json_of_check,
    "Terminal: `ask --json`": json_of_ask,
    "Terminal: `ask` with a word that the model does not know": asked,
    "Terminal: `ask` says that probabilities need not add to 1": probabilities,
    "Terminal: `ask` with a path for a question": question_for_an_image,
    "Terminal: NO_COLOR": no_colour,
    "Terminal: `train --device cpu`": device,
    "Terminal: `encode_image` with one path": a_path,
    "Terminal: the model of an index was moved": moved_model,
    "Terminal: a card whose file is gone": missing_file_on_a_page,
    "Terminal: captions on the page of `search --html`": captions_on_a_page,
    "Terminal: a mistyped option of a recipe": spelled_wrongly,
}
