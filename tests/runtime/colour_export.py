"""An exported model of mean colours and the colours that words name, written without PyTorch."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from openvse.runtime.model import EXPORT, Description, Side
from openvse.tokenization.vocabulary import Vocabulary

COLOURS = {"red": (200, 20, 20), "green": (20, 180, 40), "blue": (30, 40, 210)}
SPECIALS = 5


def write_export(folder: Path) -> Path:
    """Write both programs, the vocabulary and the description."""
    folder.mkdir(parents=True, exist_ok=True)
    table = np.zeros((SPECIALS + len(COLOURS), 3), np.float32)
    table[SPECIALS:] = np.array(list(COLOURS.values()), np.float32) - 128
    sums = [
        helper.make_node("Gather", ["table", "tokens"], ["words"]),
        helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["real", "last"], ["wide"]),
        helper.make_node("Mul", ["words", "wide"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "one"], ["sum"], keepdims=1),
        helper.make_node("LpNormalization", ["sum"], ["embeddings"], axis=-1, p=2),
    ]
    constants = {"table": table, "last": np.array([2]), "one": np.array([1])}
    inputs = {"tokens": (TensorProto.INT64, ["B", "N"]), "mask": (TensorProto.BOOL, ["B", "N"])}
    _save(folder / "text.onnx", sums, constants, inputs)
    means = [
        helper.make_node("ReduceMean", ["pixels", "sides"], ["mean"], keepdims=0),
        helper.make_node("Unsqueeze", ["mean", "one"], ["single"]),
        helper.make_node("LpNormalization", ["single"], ["embeddings"], axis=-1, p=2),
    ]
    constants = {"sides": np.array([2, 3]), "one": np.array([1])}
    _save(folder / "image.onnx", means, constants, {"pixels": (TensorProto.FLOAT, ["B", 3, 8, 8])})
    Vocabulary(list(COLOURS)).save(folder / "vocabulary.json")
    words = {"kind": "vocabulary", "file": "vocabulary.json", "splitter": "words"}
    pixels = {"sizes": [[8, 8]], "mean": [128.0] * 3, "deviation": [1.0] * 3, "order": "subtract"}
    description = Description(
        precision="float32",
        fingerprint="colours",
        of_model="colours",
        num_embeddings=(1, 1),
        dim=3,
        score="inner",
        image=Side("image.onnx", ("pixels",), None, None, pixels),
        text=Side(
            "text.onnx", ("tokens", "mask"), 20, None, words | {"boundaries": False, "max_words": 20, "nearest": False}
        ),
        checked={},
        openvse="0",
    )
    (folder / EXPORT).write_text(description.to_json())
    return folder


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    inputs: dict[str, tuple[int, list[object]]],
) -> None:
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["B", 1, 3])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
