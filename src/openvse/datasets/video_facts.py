"""The published facts of the data sets of clips: where they are found, how many items they have, on which terms.

Counts are those of the papers; they were not compared with the owners' files. Clips vanish from the web, so a copy may
have fewer.
"""

from __future__ import annotations

from openvse.corpus.facts import Facts, Form, Piece

_YOUTUBE = "the clips belong to those who put them on YouTube; for research only, do not redistribute them"
_GIFS = "the animations belong to those who published them; for research only, do not redistribute them"
_MSR = "https://www.microsoft.com/en-us/research/publication/msr-vtt-a-large-video-description-dataset"
_TGIF = "https://github.com/raingo/TGIF-Release"
_PVSE = "https://github.com/yalesong/pvse"

_MSR_VTT_PIECES = (
    Piece(
        "captions and splits",
        (
            "train_val_videodatainfo.json",
            "MSRVTT_data.json",
            "videodatainfo.json",
            "annotation/MSR_VTT.json",
        ),
        f"train_val_videodatainfo.json and test_videodatainfo.json of {_MSR}",
    ),
    Piece(
        "clips",
        ("videos/", "videos/all/", "all/", "TrainValVideo/", "MSRVTT_Videos/"),
        f"10,000 files video0.mp4 to video9999.mp4 (some gigabytes) from the same place, {_MSR}",
        media=True,
    ),
)

MSR_VTT = Facts(
    name="msr_vtt",
    title="10,000 clips of 10 to 30 seconds with 20 sentences each, in the owners' split (Xu et al., CVPR 2016)",
    pieces=_MSR_VTT_PIECES,
    forms=(Form("the owners' split", (6513, 497, 2990), 200_000, ends={"": ("video0", "video9999")}),),
    licence=_YOUTUBE,
    items="clips",
    captions_each=20,
    shrinks=True,
)

MSR_VTT_1K_A = Facts(
    name="msr_vtt_1k_a",
    title="MSR-VTT in the split 1k-A: 1,000 test clips with one sentence each (Yu et al., ECCV 2018)",
    pieces=(
        *_MSR_VTT_PIECES,
        Piece(
            "test clips and sentences",
            (
                "MSRVTT_JSFUSION_test.csv",
                "msrvtt_jsfusion_test.csv",
                "splits/MSRVTT_JSFUSION_test.csv",
            ),
            "MSRVTT_JSFUSION_test.csv, with the data of the public code of JSFusion and of CLIP4Clip",
        ),
        Piece(
            "training clips",
            ("MSRVTT_train.9k.csv", "msrvtt_train.9k.csv", "splits/MSRVTT_train.9k.csv"),
            "MSRVTT_train.9k.csv, with the data of the public code of CLIP4Clip; without it all others train",
            required=False,
        ),
    ),
    forms=(),
    licence=_YOUTUBE,
    items="clips",
)

VATEX = Facts(
    name="vatex",
    title="28,991 clips of 10 seconds with ten English sentences each; half of its validation clips are the test "
    "(Wang et al., ICCV 2019; Chen et al., CVPR 2020)",
    pieces=(
        Piece(
            "captions of the training clips",
            ("vatex_training_v1.0.json", "annotations/vatex_training_v1.0.json"),
            "vatex_training_v1.0.json of https://eric-xw.github.io/vatex-website",
        ),
        Piece(
            "captions of the validation clips",
            ("vatex_validation_v1.0.json", "annotations/vatex_validation_v1.0.json"),
            "vatex_validation_v1.0.json of https://eric-xw.github.io/vatex-website",
        ),
        Piece(
            "halves of the validation clips",
            ("splits/test.txt", "test.txt"),
            "a name a line, beside splits/val.txt, to be written from the data of https://github.com/cshizhe/hgr_v2t",
            required=False,
        ),
        Piece(
            "clips",
            ("videos/", "train/", "training/", "videos/train/"),
            "from YouTube by their identifiers and seconds; the owners publish I3D features instead",
            media=True,
        ),
    ),
    forms=(Form("HGR's halves", (25_991, 1500, 1500), 289_910),),
    licence="the sentences under CC BY 4.0; " + _YOUTUBE,
    items="clips",
    captions_each=10,
    shrinks=True,
)

TGIF = Facts(
    name="tgif",
    title="102,068 animated GIF from Tumblr, one sentence each, in the test three (Li et al., CVPR 2016)",
    pieces=(
        Piece(
            "captions",
            ("tgif-v1.0.tsv", "data/tgif-v1.0.tsv"),
            f"data/tgif-v1.0.tsv of {_TGIF}",
        ),
        Piece(
            "splits",
            ("splits/test.txt", "data/splits/test.txt"),
            f"data/splits/train.txt, val.txt and test.txt of {_TGIF}",
        ),
        Piece(
            "clips",
            ("gifs/", "gif/", "videos/", "data/gifs/", "images/"),
            "from the addresses in tgif-v1.0.tsv, each under its file's name",
            media=True,
        ),
    ),
    forms=(Form("the owners' split", (80_000, 10_708, 11_360), 125_781),),
    licence=_GIFS,
    items="clips",
    shrinks=True,
)

MRW = Facts(
    name="mrw",
    title="50,107 reaction GIF with the sentence that each reacts to, my reaction when (Song and Soleymani, CVPR 2019)",
    pieces=(
        Piece("captions", ("mrw-v1.0.tsv", "data/mrw-v1.0.tsv"), f"with the data of {_PVSE}"),
        Piece("splits", ("splits/test.txt", "data/splits/test.txt"), f"with the data of {_PVSE}"),
        Piece(
            "clips",
            ("gifs/", "gif/", "videos/", "data/gifs/", "images/"),
            "from the addresses in mrw-v1.0.tsv, each under its file's name",
            media=True,
        ),
    ),
    forms=(Form("PVSE's split", (44_107, 1000, 5000), 50_107),),
    licence=_GIFS,
    items="clips",
    captions_each=1,
    shrinks=True,
)

MSVD = Facts(
    name="msvd",
    title="1,970 clips of YouTube with about 40 English sentences each (Chen and Dolan, ACL 2011)",
    pieces=(
        Piece(
            "captions",
            ("AllVideoDescriptions.txt", "annotations/AllVideoDescriptions.txt"),
            "AllVideoDescriptions.txt of https://www.cs.utexas.edu/users/ml/clamp/videoDescription",
        ),
        Piece(
            "splits",
            ("test_list.txt", "splits/test_list.txt", "splits/test.txt"),
            "train_list.txt, val_list.txt and test_list.txt, with the data of the public code of CLIP4Clip",
        ),
        Piece(
            "clips",
            ("YouTubeClips/", "videos/", "MSVD_Videos/"),
            "YouTubeClips.tar (about 2 GB) of https://www.cs.utexas.edu/users/ml/clamp/videoDescription",
            media=True,
        ),
    ),
    forms=(),
    licence=_YOUTUBE,
    items="clips",
)
