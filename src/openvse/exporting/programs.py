"""Towers as programs, and the files of these programs: ONNX, and ONNX with weights in int8.

A program takes batches and sets of any size. It is one module for each side, with tensors as input and output.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from openvse.aggregators import GPO
from openvse.aggregators.base import Aggregator, RankedPooling
from openvse.aggregators.learned import AdPool
from openvse.encoders import BiGRU
from openvse.encoders.transformers_text import TransformersText
from openvse.errors import ModelError, message_of
from openvse.model.tower import Tower
from openvse.types import EmbeddingSet, Inputs

_MOST_ITEMS = 1 << 16  # the largest batch of a program
_SINGLE_FILE = 1_900_000_000  # ONNX files hold at most 2 GiB; larger weights go into a file beside it
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class TabledGPO(RankedPooling):
    """A GPO whose coefficients are a table by set size, up to a largest size.

    Its generator reads packed sequences, whose sizes decide the shapes of a program. A table needs one look-up.
    """

    table: Tensor

    def __init__(self, pooling: GPO, longest: int) -> None:
        nn.Module.__init__(self)
        with torch.no_grad():
            rows = [pooling.coefficients(torch.tensor([size]))[0] for size in range(1, longest + 1)]
        table = nn.utils.rnn.pad_sequence(
            [*rows, rows[-1].new_zeros(longest + 1, *rows[-1].shape[1:])], batch_first=True
        )
        # One column is never read: cutting a whole table would be a case of its own.
        self.register_buffer("table", table[:-1])

    def pool_ranked(self, ranked: Float[Tensor, "B L N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B L"]:
        """Sum the sorted values of each dimension with the coefficients of the item's size."""
        theta = self.table[mask.sum(dim=1) - 1][:, : mask.shape[1]].to(ranked.dtype)
        if theta.dim() == 3:
            return (ranked * theta.transpose(1, 2)).sum(dim=2)
        return torch.einsum("bln,bn->bl", ranked, theta)


class Program(nn.Module):
    """A tower with tensors as input and output."""

    def __init__(self, tower: Tower[Any]) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, values: Tensor, mask: Bool[Tensor, "B N"] | None = None) -> Float[Tensor, "B K D"]:
        """Embed a batch of pixels, or of tokens or features with their mask."""
        embedded: EmbeddingSet = self.tower(Inputs(values, mask))
        return embedded.vectors


def check_tower(tower: Tower[Any], side: str) -> None:
    """Raise ModelError if a program of the tower cannot give the model's embeddings."""
    aggregator: Aggregator = tower.aggregator
    if not aggregator.fixed_k:
        raise ModelError(
            f"the {side} side keeps all of its tokens, for a similarity that compares pairs: export a model whose "
            f"embeddings an index can hold, and keep this one for --rerank"
        )
    for part in tower.modules():
        if isinstance(part, AdPool) and part.count_padding:
            raise ModelError(
                f"the {side} side has adpool with count_padding, whose result depends on the padding of the batch, so "
                f"no program gives the same embeddings: train or convert with count_padding: false"
            )
    if not aggregator.indexable:
        raise ModelError(
            f"the embeddings of the {side} side depend on more than the item, so no program gives the same: "
            f"export a model with another aggregator"
        )


def program_of(tower: Tower[Any], longest: int) -> Program:
    """Return a copy of a tower on the CPU, in evaluation mode, in which every part can be exported."""
    made = Program(copy.deepcopy(tower).cpu().eval())
    return with_tables(made, longest).requires_grad_(False)


def with_tables(module: ModuleT, longest: int) -> ModuleT:
    """Replace each GPO inside a module by a table of its coefficients, and return the module."""
    for name, child in module.named_children():
        if isinstance(child, GPO):
            setattr(module, name, TabledGPO(child, longest))
        else:
            with_tables(child, longest)
    return module


def longest_text(encoder: object, longest: int) -> int:
    """Return the largest number of tokens that a text encoder makes of a sentence, or ``longest`` without a limit."""
    if isinstance(encoder, TransformersText):
        return int(encoder.max_length)
    if isinstance(encoder, BiGRU) and encoder.max_words is not None:
        return encoder.max_words + 2 * encoder.boundaries
    return longest


def traced(program: nn.Module, example: Sequence[Tensor], longest: int | None, side: str) -> Any:
    """Return the program of ``torch.export`` for batches of any size, and sets up to the longest. None fixes them."""
    batch = torch.export.Dim("batch", min=1, max=_MOST_ITEMS)
    if longest is None:
        sizes: tuple[dict[int, Any], ...] = ({0: batch},)
    else:
        shape = {0: batch, 1: torch.export.Dim("size", min=1, max=longest)}
        sizes = (shape, shape)
    try:
        with _silence(), torch.no_grad():
            return torch.export.export(program, tuple(example), dynamic_shapes=sizes, strict=False)
    except Exception as error:  # whatever a part does that a program cannot
        raise ModelError(
            f"the {side} side cannot be exported, because an export does not support one of its parts "
            f"({message_of(error)}): take built-in parts, or report it"
        ) from error


def write_onnx(traced_program: Any, names: Sequence[str], path: Path, side: str) -> None:
    """Write a program as an ONNX file."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ModelError("an export to ONNX needs more packages: pip install onnx onnxscript") from error
    try:
        with _silence(), torch.no_grad():
            made: Any = torch.onnx.export(
                traced_program,
                input_names=list(names),
                output_names=["embeddings"],
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        raise ModelError(f"the {side} side has no form in ONNX ({message_of(error)}): report it") from error
    size = sum(weight.numel() * weight.element_size() for weight in traced_program.state_dict.values())
    made.save(str(path), external_data=size > _SINGLE_FILE)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the exporters' notes to their developers out of the output."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def quantize(path: Path) -> None:
    """Round the weights of the matrix products and of the word embeddings of an ONNX file to int8, in its place.

    Activations are rounded while the program runs (dynamic quantisation), so no data is needed. The activations of a
    layer share one scale, so a program has to run on one item at a time, without padding. Convolutions stay in float32,
    because ONNX Runtime has no fast dynamic form of them. The integers are unsigned: products with signed ones overflow
    on processors without VNNI.
    """
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise ModelError("int8 needs more packages: pip install onnx onnxruntime") from error
    rounded = path.with_suffix(".int8")
    logging.getLogger("root").addFilter(_no_advice)
    try:
        quantize_dynamic(
            str(path),
            str(rounded),
            op_types_to_quantize=["MatMul", "Gemm", "Gather"],
            weight_type=QuantType.QUInt8,
            per_channel=True,
        )
    finally:
        logging.getLogger("root").removeFilter(_no_advice)
    rounded.replace(path)


def _no_advice(record: logging.LogRecord) -> bool:
    """Suppress the quantiser's advice to run its preprocessing first."""
    return "pre-processing" not in record.getMessage()
