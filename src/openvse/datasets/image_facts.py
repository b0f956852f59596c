"""The published facts of the image data sets: where they are found, how many items they have, on which terms."""

from __future__ import annotations

from openvse.corpus.facts import Facts, Form, Piece

_KARPATHY = "in caption_datasets.zip (36 MB) of https://cs.stanford.edu/people/karpathy/deepimagesent"
_ILLINOIS_8K = "on request from https://hockenmaier.cs.illinois.edu/8k-pictures.html"
_ILLINOIS_30K = "on request from https://shannon.cs.illinois.edu/DenotationGraph"

_ENDS_8K = {
    "train": ("1000268201_693b08cb0e.jpg", "997338199_7343367d7f.jpg"),
    "validation": ("1022454332_6af2c1449a.jpg", "989851184_9ef368e520.jpg"),
    "test": ("1056338697_4f7d7ce270.jpg", "997722733_0cb5439472.jpg"),
}
_ENDS_30K = {"": ("1000092795.jpg", "998845445.jpg")}
_ENDS_COCO = {"": ("COCO_train2014_000000000009.jpg", "COCO_val2014_000000581929.jpg")}
_ENDS_COCO_KARPATHY = {
    **_ENDS_COCO,
    "validation": ("COCO_val2014_000000000139.jpg", "COCO_val2014_000000581394.jpg"),
    "test": ("COCO_val2014_000000000042.jpg", "COCO_val2014_000000581929.jpg"),
}

FLICKR8K = Facts(
    name="flickr8k",
    title="8,091 photographs of people and animals with five sentences each (Hodosh, Young, Hockenmaier, JAIR 2013)",
    pieces=(
        Piece(
            "pictures",
            ("Flicker8k_Dataset/", "Flickr8k_Dataset/", "images/", "Images/"),
            f"Flickr8k_Dataset.zip (1.1 GB), {_ILLINOIS_8K}",
            media=True,
        ),
        Piece(
            "captions",
            (
                "dataset_flickr8k.json",
                "Flickr8k_text/Flickr8k.token.txt",
                "Flickr8k.token.txt",
                "captions.txt",
            ),
            f"dataset_flickr8k.json, {_KARPATHY}; or Flickr8k_text.zip (2.3 MB), {_ILLINOIS_8K}",
        ),
        Piece(
            "splits",
            (
                "dataset_flickr8k.json",
                "Flickr8k_text/Flickr_8k.testImages.txt",
                "Flickr_8k.testImages.txt",
                "splits/test.txt",
            ),
            f"in dataset_flickr8k.json, {_KARPATHY}; or in Flickr8k_text.zip (2.3 MB), {_ILLINOIS_8K}",
        ),
    ),
    forms=(
        Form("Karpathy's JSON", (6000, 1000, 1000), 40_000, ends=_ENDS_8K),
        Form("the owners' lists", (6000, 1000, 1000), 40_455, outside=91, ends=_ENDS_8K),
    ),
    licence="for research and education only; the pictures belong to their photographers, do not redistribute them",
    captions_each=5,
)

FLICKR30K = Facts(
    name="flickr30k",
    title="31,783 photographs of everyday life with five sentences each (Young, Lai, Hodosh, Hockenmaier, TACL 2014)",
    pieces=(
        Piece(
            "pictures",
            ("flickr30k-images/", "flickr30k_images/", "images/", "Images/"),
            f"flickr30k-images.tar.gz (4.4 GB), {_ILLINOIS_30K}",
            media=True,
        ),
        Piece(
            "captions",
            ("dataset_flickr30k.json", "results_20130124.token", "captions.txt"),
            f"dataset_flickr30k.json, {_KARPATHY}; or flickr30k.tar.gz (13 MB), {_ILLINOIS_30K}",
        ),
        Piece(
            "splits",
            ("dataset_flickr30k.json", "splits/test.txt"),
            f"in dataset_flickr30k.json, {_KARPATHY}; the owners publish none",
        ),
    ),
    forms=(
        Form("Karpathy's JSON", (29_000, 1014, 1000), 155_070, ends=_ENDS_30K),
        Form(
            "the token file with Karpathy's lists", (29_000, 1014, 1000), 158_915, outside=769, ends=_ENDS_30K
        ),
    ),
    licence="for non-commercial research and education only; the pictures belong to their photographers "
    "(Flickr's terms), do not redistribute them",
    captions_each=5,
)

COCO = Facts(
    name="coco",
    title="123,287 photographs of objects in context with five to seven sentences each (Lin et al., ECCV 2014; "
    "Chen et al., 2015)",
    pieces=(
        Piece(
            "captions and splits",
            (
                "dataset_coco.json",
                "annotations/dataset_coco.json",
                "karpathy/dataset_coco.json",
                "annotations/captions_train2014.json",
                "captions_train2014.json",
            ),
            f"dataset_coco.json, {_KARPATHY}: the split of the papers; or captions_train2014.json and "
            "captions_val2014.json in annotations_trainval2014.zip (241 MB) of https://cocodataset.org/#download: "
            "the owners' split, without a test part",
        ),
        Piece(
            "pictures of train2014",
            ("train2014/", "images/train2014/"),
            "train2014.zip (13 GB) of https://cocodataset.org/#download",
            media=True,
        ),
        Piece(
            "pictures of val2014",
            ("val2014/", "images/val2014/"),
            "val2014.zip (6 GB) of https://cocodataset.org/#download",
            media=True,
        ),
    ),
    forms=(
        Form(
            "Karpathy's split (restval is training)", (113_287, 5000, 5000), 616_767, ends=_ENDS_COCO_KARPATHY
        ),
        Form("the owners' split", (82_783, 40_504, 0), 616_767, ends=_ENDS_COCO),
    ),
    licence="the sentences under CC BY 4.0; the pictures belong to their photographers, on Flickr's terms of use",
)

PRECOMPUTED = Facts(
    name="precomputed",
    title="region features and captions of Flickr30K or COCO as arrays and lines, the layout of SCAN and VSE-infinity",
    pieces=(
        Piece(
            "features of the training images",
            ("train_ims.npy", "precomp/train_ims.npy"),
            "[n, 36, 2048] of bottom-up attention; links at https://github.com/kuanghuei/SCAN#download-data (Lee et "
            "al., ECCV 2018); 31 GiB for COCO's 113,287 images, 8 GiB for Flickr30K's 29,000; likewise dev_ims.npy and "
            "test_ims.npy (COCO: testall_ims.npy)",
        ),
        Piece(
            "captions of the training images",
            ("train_caps.txt", "precomp/train_caps.txt"),
            "from the same archive, one a line; likewise dev_caps.txt and test_caps.txt (COCO: testall_caps.txt)",
        ),
        Piece(
            "identifiers of the training images",
            ("train_ids.txt", "precomp/train_ids.txt"),
            "from the same archive, one a line; likewise for the other splits",
            required=False,
        ),
        Piece(
            "file names",
            ("id_mapping.json", "precomp/id_mapping.json"),
            "file name of each identifier, from the data of https://github.com/woodfrog/vse_infty (Chen et al., CVPR "
            "2021)",
            required=False,
        ),
    ),
    forms=(),
    licence="those of Flickr30K or COCO, from whose pictures and sentences it is made; see openvse data flickr30k, "
    "openvse data coco",
)
