"""What tests of encoders compare with: a GRU step by step, stored states, and batches."""

import torch

from openvse.encoders.transformers_text import TransformersText
from openvse.functional import pad
from openvse.types import Inputs
from tests.aggregators.slow_loops import gru_step


def gru_states(gru: torch.nn.GRU, words: torch.Tensor, suffix: str = "") -> torch.Tensor:
    """Run one direction over its words, step by step; return all states."""
    weights = dict(gru.named_parameters())
    state, states = torch.zeros(gru.hidden_size, dtype=words.dtype), []
    for word in words:
        state = gru_step(weights, suffix, word, state)
        states.append(state)
    return torch.stack(states)


def stored(encoder: TransformersText, captions: list[str]) -> Inputs:
    """Return what a store would give: the states of each caption, made alone."""
    with torch.inference_mode():
        states = [encoder.token_states(pad([ids])).local[0] for ids in encoder.tokenize(captions)]
    return pad([each.clone() for each in states])


def collate(rows: list[torch.Tensor], padding: float = 0.0) -> Inputs:
    values = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
    lengths = torch.tensor([len(row) for row in rows])
    return Inputs(values, torch.arange(values.shape[1]) < lengths.unsqueeze(1))
