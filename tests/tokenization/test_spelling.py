"""Which known word an unknown one is read as."""

import torch

from openvse.encoders import BiGRU
from openvse.tokenization.vocabulary import UNKNOWN, Spellings, UnknownWord, unknown_line
from tests.failures import Failures
from tests.naming import names

KNOWN = [
    "elephant",
    "dog",
    "color",
    "colored",
    "stop",
    "stopped",
    "run",
    "running",
    "city",
    "bench",
    "star",
    "stare",
    "staring",
    "horse",
    "football",
    "center",
    "photograph",
    "cap",
    "sleeping",
    "theater",
    "bicycle",
    "gray",
    "jewelry",
    "church",
    "organize",
    "t-shirt",
    "dance",
    "2021",
    "cat",
]


def test_forms_and_spellings(failures: Failures) -> None:
    for word, known in [
        ("elephants", "elephant"),
        ("dogs", "dog"),
        ("cities", "city"),
        ("benches", "bench"),
        ("stops", "stop"),
        ("stopping", "stop"),
        ("ran", None),
        ("runs", "run"),
        ("stares", "stare"),
        ("stars", "star"),
        ("sleep", "sleeping"),
        ("dancing", "dance"),
        ("colour", "color"),
        ("coloured", "color"),
        ("centre", "center"),
        ("theatre", "theater"),
        ("grey", "gray"),
        ("organise", "organize"),
        ("elefant", "elephant"),
        ("elephnat", "elephant"),
        ("bicicle", "bicycle"),
        ("fotball", "football"),
        ("footballl", "football"),
        ("photogrqph", "photograph"),
    ]:
        with failures.of(word, known):
            assert Spellings(KNOWN).nearest(word) == known


def test_no_bold_guesses(failures: Failures) -> None:
    for word in ["house", "car", "cart", "pope", "do", "2022", "zebra", "xylophone", "norse", "string", "oars"]:
        with failures.of(word):
            assert Spellings(KNOWN).nearest(word) is None


def test_of_several_the_first_known_word_is_taken() -> None:
    assert Spellings(["dance", "dancing"]).nearest("danced") == "dance"
    assert Spellings(["dancing", "dance"]).nearest("danced") == "dancing"


CAPTIONS = ["an elephant runs", "a dog"]


def bigru(**options: object) -> BiGRU:
    torch.manual_seed(0)
    return BiGRU(**({"embed_dim": 4, "captions": CAPTIONS, "min_count": 1, "word_dim": 3} | options)).eval()


def test_nearest_reads_another_word_and_says_so() -> None:
    encoder = bigru(unknown="nearest")
    (found,), (expected,) = encoder.tokenize(["two Elefants run!"]), encoder.tokenize(["xyz elephant runs"])
    assert torch.equal(found, expected) and found[1] == UNKNOWN
    assert encoder.pieces("two Elefants run!") == ["<start>", "<two>", "<elefants: elephant>", "<run: runs>", "<end>"]
    words = encoder.unknown_words("two Elefants run!")
    assert words == [UnknownWord("two"), UnknownWord("elefants", "elephant"), UnknownWord("run", "runs")]
    assert names(unknown_line(words), "'two'", "'elefants'", "'elephant'", "'run'", "'runs'")


def test_the_default_reads_as_before(tmp_path) -> None:
    shared, nearest = bigru(), bigru(unknown="nearest")
    (ids,) = shared.tokenize(["two Elefants run!"])
    assert ids.tolist()[1:-1] == [1, 1, 1]
    assert shared.unknown_words("elefants") == [UnknownWord("elefants")]
    nearest.save_assets(tmp_path)
    loaded = bigru(assets=tmp_path, captions=(), unknown="nearest")
    assert torch.equal(loaded.tokenize(["elefants"])[0], nearest.tokenize(["elephant"])[0])
