"""The terms of the papers by name, and their counterparts in openvse: parts, settings of a recipe, or commands.

This is the one source of ``openvse parts --terms`` and of the table in ``docs/terms.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import wrap
from types import MappingProxyType


@dataclass(frozen=True)
class PaperTerm:
    """A term of a paper.

    Attributes:
        name: the term, as the papers write it.
        source: where the papers define it.
        parts: the parts that implement it, as ``KIND NAME``.
        usage: settings of a recipe, each ``KEY=VALUE`` as for ``openvse train``, or whole commands.
    """

    name: str
    source: str
    parts: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()


POOLING = (
    PaperTerm(
        "GPO (generalized pooling operator)",
        "VSE-infinity, 3.2 and 3.3, eq. 2 to 5",
        ("aggregator gpo",),
        ("image.aggregator=gpo", "text.aggregator=gpo"),
    ),
    PaperTerm(
        "variants of GPO: Transformer, MLP, interpolation, learned index",
        "VSE-infinity, B, Tables 8 and 11",
        ("generator transformer", "generator mlp", "generator interpolation", "positions learned"),
        ("image.aggregator={name: gpo, generator: mlp}",),
    ),
    PaperTerm(
        "variants of GPO: per-dimension, data-dependent coefficients",
        "VSE-infinity, B, Tables 12 and 13",
        ("aggregator gpo", "aggregator gpo_data_dependent"),
        ("image.aggregator={name: gpo, per_dimension: true}",),
    ),
    PaperTerm(
        "size augmentation",
        "VSE-infinity, 3.3",
        ("augmentation region", "augmentation grid"),
        ("image.encoder.augmentation=region", "text.encoder.size_augmentation=drop"),
    ),
    PaperTerm(
        "AvgPool, MaxPool",
        "VSE-infinity, 3.2",
        ("aggregator mean", "aggregator max"),
        ("image.aggregator=mean",),
    ),
    PaperTerm(
        "K-MaxPool (k-max pooling)",
        "VSE-infinity, 3.2",
        ("aggregator k_max",),
        ("image.aggregator={name: k_max, k: 5}",),
    ),
    PaperTerm(
        "GeM, FSPool",
        "VSE-infinity, 5.2",
        ("aggregator gem", "aggregator fs_pool"),
        ("image.aggregator=gem",),
    ),
    PaperTerm(
        "Seq2Seq, SelfAttn, GCN",
        "VSE-infinity, Table 1",
        ("aggregator seq2seq", "aggregator self_attention", "aggregator gcn"),
        ("image.aggregator={name: gcn, aggregator: mean}",),
    ),
    PaperTerm(
        "CLS token", "VSE-infinity, 5.2", ("aggregator first_token",), ("text.aggregator=first_token",)
    ),
    PaperTerm(
        "AdPool (adaptive pooling)",
        "VSE+2AD, 3.2, eq. 3 to 5",
        ("aggregator adpool",),
        ("image.aggregator=adpool", "text.aggregator=adpool"),
    ),
)

_FRAMES = ("image.encoder.projection=none", "image.aggregator=frame_levels", "similarity=hierarchical")
EMBEDDINGS = (
    PaperTerm(
        "views; s*, the best of them",
        "MV-VSE, 3.2, eq. 4 to 6",
        ("aggregator multi_view", "similarity set_max"),
        ("image.aggregator={name: multi_view, aggregator: gpo, num_views: 3}", "similarity=set_max"),
    ),
    PaperTerm(
        "PIE-Net (K embeddings of an item)",
        "PVSE, 3.1 to 3.3, eq. 2 to 4",
        ("aggregator pie_net", "global vector mean"),
        (
            "image.encoder.projection=none",
            "image.encoder.global_vector=mean",
            "image.aggregator={name: pie_net, num_embeddings: 2}",
            "text.encoder.output=words",
            "text.aggregator={name: pie_net, num_embeddings: 2}",
        ),
    ),
    PaperTerm(
        "score attention, after cross-attention",
        "score attention, III-A and III-B, eq. 2 to 4",
        ("fusion score_attention", "similarity fused", "aggregator tokens"),
        (
            "image.aggregator=tokens",
            "text.aggregator=tokens",
            "similarity={name: fused, fusion: {name: score_attention, num_vectors: 1}}",
        ),
    ),
    PaperTerm(
        "mean, max, log-sum-exp, 1-D convolution and CLS in its place",
        "score attention, IV-C",
        ("fusion pooled", "aggregator log_sum_exp", "aggregator conv1d"),
        (
            "image.aggregator=tokens",
            "text.aggregator=tokens",
            "similarity={name: fused, fusion: {name: pooled, aggregator: log_sum_exp}}",
        ),
    ),
    PaperTerm(
        "HGR: role graphs, graph reasoning, three levels of matching",
        "HGR (Chen et al. 2020); VSE-infinity, Table 4",
        ("text encoder role_graph", "aggregator graph_levels", "aggregator frame_levels"),
        ("text.encoder=role_graph", "text.aggregator=graph_levels", *_FRAMES),
    ),
    PaperTerm(
        "order embeddings", "Vendrov et al. 2016; PVSE, Table 2", ("similarity order",), ("similarity=order",)
    ),
)

LOSSES = (
    PaperTerm(
        "MH loss (max of hinges): triplet loss on the hardest negative",
        "VSE++; VSE-infinity, eq. 1; VSE+2AD, eq. 2; MV-VSE, eq. 7",
        ("objective term contrast", "miner hardest", "criterion hinge"),
        ("objective.ranking={name: contrast, miner: hardest, criterion: {name: hinge, margin: 0.2}}",),
    ),
    PaperTerm(
        "SH loss (sum of hinges): triplet loss on all negatives",
        "VSE++; VSE-infinity, A.1",
        ("objective term contrast", "miner all", "criterion hinge"),
        ("objective.ranking={name: contrast, miner: all, criterion: {name: hinge, margin: 0.2}}",),
    ),
    PaperTerm(
        "AdOpt (adaptive objective): K hardest negatives",
        "VSE+2AD, 3.3, eq. 6",
        ("objective term contrast", "miner adaptive_top_k", "criterion info_nce"),
        (
            "objective.ranking={name: contrast, miner: adaptive_top_k, criterion: {name: info_nce, "
            "temperature: 0.05, margin: 0.2}, reduction: mean}",
        ),
    ),
    PaperTerm(
        "InfoNCE, normalised softmax",
        "VSE+2AD, 3.3; MV-VSE, 3.3",
        ("criterion info_nce",),
        ("objective.ranking.criterion={name: info_nce, temperature: 0.05}",),
    ),
    PaperTerm(
        "L_Max (MV-VSE): the triplet loss on s*",
        "MV-VSE, 3.3, eq. 9",
        ("objective term contrast", "similarity set_max"),
        ("objective.ranking={name: contrast, miner: hardest, criterion: hinge, weight: 0.7}",),
    ),
    PaperTerm(
        "L_Up (multi-view upper bound loss)",
        "MV-VSE, 3.3, eq. 10 to 12 and 15",
        ("objective term multi_view_bound",),
        (
            "objective.ranking.weight=0.7",
            "objective.bound={name: multi_view_bound, miner: hardest, criterion: hinge, weight: 0.3}",
        ),
    ),
    PaperTerm(
        "L_Rough (rough upper bound)",
        "MV-VSE, 3.3, eq. 13 and 14",
        ("objective term multi_view_bound",),
        ("objective.bound={name: multi_view_bound, miner: hardest, criterion: hinge, gated: false}",),
    ),
    PaperTerm(
        "L_Avg: each view trained separately",
        "MV-VSE, 3.3, eq. 8",
        ("objective term multi_view_average",),
        ("objective.ranking={name: multi_view_average, miner: hardest, criterion: hinge}",),
    ),
    PaperTerm(
        "MIL loss: the best of K x K pairs",
        "PVSE, 3.4, after eq. 6",
        ("objective term contrast", "similarity set_max", "criterion hinge"),
        (
            "objective.ranking={name: contrast, miner: all, criterion: {name: hinge, margin: 0.1, "
            "reduction: mean}, reduction: mean}",
        ),
    ),
    PaperTerm(
        "diversity loss",
        "PVSE, 3.4, eq. 7",
        ("objective term diversity",),
        ("objective.diversity={name: diversity, weight: 0.1}",),
    ),
    PaperTerm(
        "relative loss weights",
        "PVSE, 5.3, Fig. 7",
        ("objective term mmd",),
        ("objective.mmd={name: mmd, weight: 0.1, relative_to: ranking}",),
    ),
    PaperTerm(
        "domain discrepancy loss (MMD)",
        "PVSE, 3.4, eq. 8",
        ("objective term mmd",),
        ("objective.mmd={name: mmd, weight: 0.01}",),
    ),
)

TRAINING = (
    PaperTerm(
        "first epoch on all negatives",
        "VSE-infinity, A.1",
        ("miner all",),
        ("training.phases.0.objective={ranking.miner: all}",),
    ),
    PaperTerm("learning-rate warm-up", "VSE-infinity, A.1", (), ("training.phases.1.warmup_epochs=1",)),
    PaperTerm(
        "learning rate divided by 10 for the last epochs",
        "VSE-infinity, A.1; VSE+2AD, 4.2",
        (),
        ("training.phases.2.learning_rate=0.00005",),
    ),
    PaperTerm(
        "learning rate halved when the loss stagnates",
        "PVSE, 3.5",
        (),
        ("training.plateau={factor: 0.5, patience: 10}",),
    ),
    PaperTerm(
        "learning-rate multiplier of a pretrained part",
        "VSE-infinity, A.1",
        (),
        ("optimizer.multipliers={text.encoder.backbone: 0.1}",),
    ),
)

FEATURES = (
    PaperTerm(
        "regions, bottom-up attention (BUTD)",
        "Anderson et al. 2018; VSE-infinity, A.1",
        ("backbone precomputed", "projection residual_mlp"),
        (
            "openvse data import trainval_36.tsv features/regions --match coco:ROOT",
            "image.encoder={name: precomputed, feature_dim: 2048}",
        ),
    ),
    PaperTerm(
        "grids (of the BUTD CNN, of a ResNet, of WSL's ResNeXt)",
        "VSE-infinity, 5.1 and A.1",
        ("backbone resnet", "backbone transformers_vision", "backbone timm_vision", "projection linear"),
        (
            "openvse train vse_infinity/coco_butd_grids_bert data.source=coco:ROOT",
            "openvse train vse_infinity/coco_wsl_grids_bert data.source=coco:ROOT",
        ),
    ),
    PaperTerm(
        "patches of a ViT",
        "VSE+2AD, 4.2",
        ("backbone transformers_vision",),
        ("openvse train vse_2ad/coco_patches_bert data.source=coco:ROOT",),
    ),
    PaperTerm(
        "frames of a video",
        "PVSE, 3.1; VSE-infinity, 5.1.2",
        ("backbone frames", "global vector bigru"),
        ("openvse train pvse/tgif_frames_bigru data.source=tgif:ROOT",),
    ),
    PaperTerm(
        "BiGRU, BERT",
        "VSE-infinity, A.1",
        ("text encoder bigru", "text encoder transformers_text"),
        ("text.encoder={name: bigru, word_dim: 300}",),
    ),
)

EVALUATION = (
    PaperTerm(
        "R@K, RSUM",
        "VSE-infinity, 5.1",
        (),
        ("openvse evaluate runs/mine/best flickr30k:ROOT",),
    ),
    PaperTerm("MedR, nMR", "PVSE, 5", (), ("openvse evaluate runs/mine/best tgif:ROOT",)),
    PaperTerm(
        "COCO 1K: mean of 5 folds",
        "VSE-infinity, Table 2; VSE+2AD, 4.1",
        (),
        ("openvse evaluate runs/mine/best coco:ROOT --protocol coco_1k",),
    ),
    PaperTerm(
        "ensemble of models",
        "VSE-infinity, Table 2; VSE+2AD, Table 1",
        (),
        ("openvse evaluate runs/grids/best runs/regions/best coco:ROOT --features STORES",),
    ),
)

QUESTIONS = (
    PaperTerm(
        "score attention for VQA",
        "score attention, III-C",
        ("fusion score_attention",),
        ("task=vqa", "fusion={name: score_attention, num_heads: 8, num_vectors: 5}"),
    ),
    PaperTerm(
        "answers seen more than 8 times", "score attention, IV-B", (), ("task=vqa", "answers.min_count=9")
    ),
    PaperTerm(
        "soft targets, VQA accuracy",
        "Antol et al. 2015; score attention, III-C",
        (),
        ("openvse evaluate runs/mine/best vqa2:ROOT --split validation",),
    ),
    PaperTerm(
        "WUPS",
        "Malinowski and Fritz 2014",
        (),
        ("openvse evaluate runs/mine/best daquar:ROOT",),
    ),
)

PAPER_TERMS: Mapping[str, tuple[PaperTerm, ...]] = MappingProxyType(
    {
        "Pooling": POOLING,
        "Several embeddings, and scores": EMBEDDINGS,
        "Losses": LOSSES,
        "Training": TRAINING,
        "Features": FEATURES,
        "Evaluation": EVALUATION,
        "Questions about images": QUESTIONS,
    }
)
"""The terms by subject, in the order of the documentation."""


def terms_as_text(width: int = 80) -> str:
    """Return the terms for a terminal of a given width, each with its source, parts and usage."""
    lines: list[str] = []
    for subject, terms in PAPER_TERMS.items():
        lines += [subject.upper(), ""]
        for term in terms:
            lines += _folded(f"{term.name} [{term.source}]", width)
            lines += _folded(", ".join(term.parts), width, indent=2)
            for each in term.usage:
                lines += _folded(each, width, indent=2, further=6)
            lines.append("")
    return "\n".join(lines).rstrip()


def terms_as_markdown() -> str:
    """Return the terms as Markdown: a heading and a table for each subject."""
    sections = []
    for subject, terms in PAPER_TERMS.items():
        rows = [
            f"## {subject}",
            "",
            "| term | parts | in a recipe, or as a command | source |",
            "|---|---|---|---|",
        ]
        for term in terms:
            parts = ", ".join(f"{kind} `{name}`" for kind, _, name in (p.rpartition(" ") for p in term.parts))
            usage = "<br>".join(f"`{each}`" for each in term.usage)
            rows.append(f"| {term.name} | {parts} | {usage} | {term.source} |")
        sections.append("\n".join(rows))
    return "\n\n".join(sections)


def _folded(text: str, width: int, indent: int = 0, further: int | None = None) -> list[str]:
    """Break a text into lines at spaces; lines after the first are indented by ``further``."""
    rest = " " * (indent if further is None else further)
    return wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )
