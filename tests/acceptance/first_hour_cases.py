"""What ``first_hour.py`` tries of words, data and the terminal; ``bad_day_cases.py`` has the bad day."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.acceptance.stage import ONE_EPOCH, TWO_PHASES, Outcome, Stage

LONG = 20_000
UNKNOWN = "xylophone"
SPINNER = " ⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
KINDS = ("video.mp4", "clip.webm", "photo.heic", "drawing.svg")


def rare_words(stage: Stage) -> Outcome:
    captions = [
        caption for entry in stage.entries if entry["split"] == "train" for caption in entry["captions"]
    ]
    counts = Counter(word for caption in captions for word in set(re.findall(r"[a-z]{4,}", caption.lower())))
    one, other = [word for word, count in counts.items() if count == 1][:2]
    answer = stage.search(one, other, "-k", 3)
    hits = answer.out.replace(other, one).split(f"{one}\n")[1:]
    told = answer.told(one)
    if not told.good:
        return told
    same = hits[0] == hits[1]
    return Outcome(
        not same, "two such words find " + ("the same images with the same scores" if same else "their own")
    )


def unknown_words(stage: Stage) -> Outcome:
    answer = stage.search(f"a {UNKNOWN}", "-k", 1)
    found = answer.told("not know", UNKNOWN)
    return (
        found
        if found.good
        else Outcome(False, f"a hit, and no word of it: `{answer.out.splitlines()[-1].strip()}`")
    )


def unknown_words_in_python(stage: Stage) -> Outcome:
    code = (
        "import sys, openvse; from openvse.search import Index, SearchEngine\n"
        "engine = SearchEngine(openvse.load(sys.argv[1]), Index.open(sys.argv[2]))\n"
        f"print('carries', engine.search(['a {UNKNOWN}'])[0][0].unknown_words)"
    )
    return stage.python(code, stage.run / "best", stage.index).told("carries", UNKNOWN)


def words_left_out(stage: Stage) -> Outcome:
    found = stage.second.told("words kept", "unknown words")
    return found if found.good else Outcome(False, "training says nothing of it")


def opened(stage: Stage, folder: Path) -> Outcome:
    """Judge whether a folder opens as captioned images: two of them, with two captions."""
    answer = stage.check(folder)
    found = answer.told("2 items, 2 captions")
    return found if found.good else Outcome(False, f"`{(answer.line('WRONG  ') or answer.end).strip()}`")


def sidecars(stage: Stage) -> Outcome:
    folder = stage.few("sidecars", 2)
    for number in range(2):
        (folder / f"{number:02d}.txt").write_text(f"a thing of number {number}\n")
    return opened(stage, folder)


def lone_csv(stage: Stage) -> Outcome:
    folder = stage.few("lone_csv", 2)
    (folder / "captions.csv").write_text("image,caption\n00.png,a red thing\n01.png,another thing\n")
    return opened(stage, folder)


def one_string(stage: Stage) -> Outcome:
    folder = stage.few("one_string", 2)
    lines = [
        json.dumps({"file_name": f"{n:02d}.png", "captions": f"a thing of number {n}"}) for n in range(2)
    ]
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return opened(stage, folder)


def shards(stage: Stage) -> Outcome:
    images, folder = stage.few("unpacked", 2), stage.new("shards")
    with tarfile.open(folder / "train-0000.tar", "w") as shard:
        for number in range(2):
            shard.add(images / f"{number:02d}.png", f"{number:02d}.png")
            caption = f"a thing of number {number}".encode()
            member = tarfile.TarInfo(f"{number:02d}.txt")
            member.size = len(caption)
            shard.addfile(member, io.BytesIO(caption))
    return opened(stage, folder)


def refused_type(stage: Stage) -> Outcome:
    folder = stage.few("refused_type", 2)
    lines = [{"file_name": "00.png", "captions": "a thing"}, {"file_name": "01.png", "captions": 5}]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    answer = stage.train(f"data.source={folder}", "data.features=null", out=stage.place / "refused_run")
    return answer.told("metadata.jsonl", "2", "captions", "5", code=2)


def outside(stage: Stage, name: str, folder: Path) -> Outcome:
    """Judge whether a name that leads out of the folder is refused."""
    line = {"file_name": name, "captions": ["the secret of another folder"], "split": "train"}
    (folder / "metadata.jsonl").write_text(json.dumps(line) + "\n")
    answer = stage.check(folder)
    found = answer.told("outside", code=1)
    if not found.good and "1 items" in answer.out:
        return Outcome(False, f"the image is read: `{answer.line('1 items').strip()}`")
    return found if found.good else answer.told("outside", code=2)


def parent_folder(stage: Stage) -> Outcome:
    stage.few("elsewhere", 1)
    return outside(stage, "../elsewhere/00.png", stage.new("leads_out"))


def absolute_path(stage: Stage) -> Outcome:
    return outside(stage, str(stage.few("elsewhere_too", 1) / "00.png"), stage.new("leads_away"))


def link(stage: Stage) -> Outcome:
    folder = stage.new("links_out")
    (folder / "00.png").symlink_to(stage.few("elsewhere_linked", 1) / "00.png")
    return outside(stage, "00.png", folder)


def broken_images(stage: Stage) -> Outcome:
    folder = stage.copy(stage.album, "broken")
    broken = folder / str(stage.entries[3]["file_name"])
    broken.write_bytes(broken.read_bytes()[:60])
    shutil.copy(folder / str(stage.entries[0]["file_name"]), folder / str(stage.entries[1]["file_name"]))
    answer = stage.check(folder)
    if broken.name not in answer.out:
        return Outcome(False, f"exit status {answer.code}: `{answer.end}`")
    both = bool(answer.line("are the same"))
    return answer.told(
        "WRONG", "are broken", code=1, also=both, otherwise="the same image twice is not noticed"
    )


def identical_captions(stage: Stage) -> Outcome:
    folder = stage.copy(stage.album, "identical")
    changed = [{**entry, "captions": ["A thing. ", *entry["captions"][1:]]} for entry in stage.entries]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in changed))
    answer = stage.train(ONE_EPOCH, f"data.source={folder}", out=stage.place / "identical_run")
    found = answer.told("identical captions")
    return found if found.good else Outcome(False, f"wrong for each other, and nothing said: `{answer.end}`")


def long_caption(stage: Stage) -> Outcome:
    folder = stage.copy(stage.album, "long")
    first = json.dumps({**stage.entries[0], "captions": ["word " * LONG]})
    rest = "".join(json.dumps(entry) + "\n" for entry in stage.entries[1:])
    (folder / "metadata.jsonl").write_text(f"{first}\n{rest}")
    answer = stage.train(ONE_EPOCH, f"data.source={folder}", out=stage.place / "long_run")
    found = answer.told("256 words")
    return found if found.good or answer.code else Outcome(False, "all its words are read in every epoch")


def other_kinds(stage: Stage) -> Outcome:
    folder = stage.few("mixed")
    for name in KINDS:
        (folder / name).write_bytes(b"not read")
    answer = stage.openvse("index", stage.run / "best", folder, "--out", stage.place / "mixed_index")
    found = answer.told("left out", "2 videos", "SVG")
    if found.good and "HEIC" not in found.seen:  # the extra heif reads it
        heic = answer.line("photo.heic").strip()
        return Outcome(bool(heic), f"{found.seen.split(':')[1].strip()}; `{heic}`")
    return found if found.good or answer.code else Outcome(False, f"not mentioned: `{answer.end}`")


def newline(stage: Stage) -> Outcome:
    folder = stage.few("newline")
    (folder / "00.png").rename(folder / "a\nb.png")
    answer = stage.openvse("index", stage.run / "best", folder, "--out", stage.place / "newline_index")
    found = answer.told("a\\nb.png")
    return found if found.good or answer.code else Outcome(False, f"left out without a word: `{answer.end}`")


def progress_in_a_pipe(stage: Stage) -> Outcome:
    told, first_epoch = stage.trained.err, stage.trained.err.find("epoch   1/")
    line = stage.trained.line(" of ", "took") or stage.trained.line("extracting")
    in_order = told.find("extracting") < first_epoch  # a short extraction says nothing
    return Outcome(
        in_order and "took" in line, f"`{line.strip()}`" + ("" if in_order else ", after the epochs")
    )


def columns(stage: Stage) -> Outcome:
    drawn = stage.terminal(
        *stage.training(TWO_PHASES, "data.features=auto", out=stage.place / "terminal_run")
    )
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    bars = [line.strip(SPINNER) for line in re.split(r"[\r\n]+", plain) if "━" in line]
    cut = [line for line in bars if "…" in line or "..." in line or len(line) > 80]
    if not bars:
        return Outcome(False, f"no bar is drawn: `{plain[-100:]}`")
    return Outcome(not cut, f"`{re.sub('━+', '━━', (cut or bars)[-1])}`")


def as_json(stage: Stage) -> Outcome:
    answer = stage.search(f"a red {UNKNOWN}", "--json", "-k", 2)
    if answer.code:
        return answer.told("schema")
    document = json.loads(answer.out)
    (query,) = document["result"]["queries"]
    good = len(query["hits"]) == 2 and query["unknown_words"][-1]["word"] == UNKNOWN
    return Outcome(good, f"one document with the keys {', '.join(document)}")


def quiet(stage: Stage) -> Outcome:
    words = ("index", stage.run / "best", stage.few("quiet"), "--out", stage.place / "quiet_index", "--quiet")
    answer = stage.openvse(*words)
    return answer.told("6 images", also=not answer.err, otherwise=f"still says `{answer.err.strip()}`")


def image_query(stage: Stage) -> Outcome:
    image = stage.album / str(stage.entries[0]["file_name"])
    answer = stage.search(image, "-k", 1)
    hit = answer.out.splitlines()[-1].strip() if answer.out else answer.end
    as_sentence = bool(answer.line("1  0.")) and not answer.line("1  1.0000", image.name)
    return Outcome(answer.code == 0 and not as_sentence, f"{'read as a sentence: ' * as_sentence}`{hit}`")


def index_alone(stage: Stage) -> Outcome:
    return stage.openvse("search", stage.index, "a red thing", "-k", 1).told("1  ")


def moved_folder(stage: Stage) -> Outcome:
    folder, index = stage.few("to_move"), stage.place / "to_move_index"
    stage.openvse("index", stage.run / "best", folder, "--out", index)
    folder.rename(stage.place / "moved")
    answer = stage.openvse("search", stage.run / "best", index, "a red thing", "-k", 1)
    found = answer.told("warning", "no longer in")
    return found if found.good or answer.code else Outcome(False, f"no warning: `{answer.end.strip()}`")


def linked_cards(stage: Stage) -> Outcome:
    page = stage.place / "hits.html"
    answer = stage.search("a red thing", "-k", 2, "--html", page)
    links = page.read_text().count("<a ") if page.exists() else 0
    return Outcome(answer.code == 0 and links >= 2, f"{links} of 2 cards link to their files")


def a_string(stage: Stage) -> Outcome:
    code = "import sys, openvse; print('embeddings:', len(openvse.load(sys.argv[1]).encode_text('a dog')))"
    answer = stage.python(code, stage.run / "best")
    return answer.told("embeddings:", also="embeddings: 1\n" in answer.out, otherwise=f"`{answer.end}`")


def empty_query(stage: Stage) -> Outcome:
    answer = stage.search("", "a red thing", "-k", 1)
    return answer.told(
        "warning", "empty", also="1  " in answer.out, otherwise="the other query is not answered"
    )


def did_you_mean(stage: Stage) -> Outcome:
    answer = stage.openvse("train", "vse_infinity/folder", f"data.source={stage.album}")
    names = len(set(re.findall(r"\w+/\w+", answer.err))) - 1
    return Outcome(answer.code == 2 and 1 <= names <= 3, f"{names} names: `{answer.end}`")


def completion(stage: Stage) -> Outcome:
    words = {"_OPENVSE_COMPLETE": "complete_bash", "COMP_WORDS": "openvse train vse_inf", "COMP_CWORD": "2"}
    answer = stage.openvse(env={**words, "_TYPER_COMPLETE_ARGS": "openvse train vse_inf"})
    names = [name for name in answer.out.split() if name.startswith("vse_infinity/")]
    return Outcome(len(names) > 1, f"{len(names)} names of recipes")


def chance(stage: Stage) -> Outcome:
    few = bool(stage.trained.line("validation has only"))
    return stage.trained.told("epoch   1", "chance", also=few, otherwise="nothing said of so few images")


def phase_change(stage: Stage) -> Outcome:
    found = stage.trained.told("phase 2 of 2")
    return found if found.good else Outcome(False, "not announced")


FIRST_HOUR: dict[str, Callable[[Stage], Outcome]] = {
    "Words: two words that stand once in the captions": rare_words,
    "Words: a query of a word that the model does not know": unknown_words,
    "Words: the same in Python": unknown_words_in_python,
    "Words: training leaves words out": words_left_out,
    "Data: a text file beside each image": sidecars,
    "Data: a lone captions.csv in the folder": lone_csv,
    'Data: `"captions": "one string"`': one_string,
    "Data: WebDataset shards": shards,
    'Data: `"captions": 5`': refused_type,
    "Data: a `file_name` with `../`": parent_folder,
    "Data: an absolute `file_name`": absolute_path,
    "Data: a `file_name` that is a link out of the folder": link,
    "Data: `data check` with a truncated and a repeated image": broken_images,
    "Data: identical captions of different images": identical_captions,
    "Data: a caption of 20,000 words": long_caption,
    "Data: videos, HEIC and SVG in an indexed folder": other_kinds,
    "Data: a file name with a newline": newline,
    "Terminal: training in a pipe": progress_in_a_pipe,
    "Terminal: bars in 80 columns": columns,
    "Terminal: `search --json`": as_json,
    "Terminal: `index --quiet`": quiet,
    "Terminal: `search` with the path of an image": image_query,
    "Terminal: `search` without the model": index_alone,
    "Terminal: the folder of images was moved": moved_folder,
    "Terminal: cards of `--html`": linked_cards,
    'Terminal: `encode_text("a dog")`': a_string,
    "Terminal: one query of two is empty": empty_query,
    "Terminal: a mistyped recipe": did_you_mean,
    "Terminal: completion of `openvse train vse_inf`": completion,
    "Terminal: chance beside validation, and a small split": chance,
    "Terminal: a phase changes the loss": phase_change,
}
