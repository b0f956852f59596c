"""Build a model from parts, train it in a loop of your own, save it, load it, and search with it."""

from pathlib import Path

import torch

import openvse
from openvse.aggregators import GPO
from openvse.backbones import EfficientNetLite0
from openvse.encoders import BiGRU, ImageEncoder
from openvse.indexing import Index
from openvse.types import Inputs
from shapes import draw

torch.manual_seed(0)
paths, captions = draw(Path("shapes"))
encoder = ImageEncoder(backbone=EfficientNetLite0(image_size=96), embed_dim=64)
words = BiGRU(embed_dim=64, captions=captions, min_count=1, word_dim=32)
sides = [openvse.Tower(each, GPO(input_dim=64, embed_dim=64)) for each in (encoder, words)]
model = openvse.TwoTower(*sides, openvse.similarities.SetMax())

# The frozen backbone sees each image once. To fine-tune it, read the images in every step.
seen = encoder.backbone(model.read_images(paths))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)  # it skips frozen weights
loss = openvse.losses.triplet(margin=0.2, negatives="all", reduction="mean")
for epoch in range(12):
    model.train()
    for rows in torch.randperm(len(paths)).split(16):
        images = Inputs(seen.local[rows], seen.mask[rows])
        value = loss(*model(images, model.read_texts([captions[row] for row in rows])))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {value.item():.3f}")

model = openvse.load(model.save("my_model"))
openvse.index(model, "shapes", "my_index")
engine = openvse.SearchEngine(model, Index.open("my_index"))
for hit in engine.search(["a large red circle"], top_k=3)[0]:
    print(hit.rank, f"{hit.score:.2f}", hit.id)
