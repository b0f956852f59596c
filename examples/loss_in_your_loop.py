"""Train two encoders of your own with AdOpt, five texts an image, and look at what other losses say."""

import torch
from torch import nn

import openvse

torch.manual_seed(0)
ITEMS, TEXTS_EACH, DIM = 200, 5, 32
meaning = torch.randn(ITEMS, 8)  # what an image and its texts have in common
pixels = meaning @ torch.randn(8, 40) + 2 * torch.randn(ITEMS, 40)
owner = torch.arange(ITEMS).repeat_interleave(TEXTS_EACH)  # the image of each text
words = meaning[owner] @ torch.randn(8, 24) + 2 * torch.randn(ITEMS * TEXTS_EACH, 24)

image_encoder, text_encoder = nn.Linear(40, DIM), nn.Linear(24, DIM)
parameters = [*image_encoder.parameters(), *text_encoder.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-2)
adopt = openvse.losses.adopt(temperature=0.1)

for epoch in range(5):
    for chosen in torch.randperm(ITEMS).split(50):
        texts = torch.isin(owner, chosen)
        # Which row of the batch each text belongs to.
        rows = (owner[texts].unsqueeze(1) == chosen).int().argmax(dim=1)
        loss = adopt(image_encoder(pixels[chosen]), text_encoder(words[texts]), positives=rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: AdOpt {loss.item():.3f}")

with torch.no_grad():
    images, texts = image_encoder(pixels), text_encoder(words)
    for name in ("triplet", "info_nce", "mil"):
        print(f"{name}: {getattr(openvse.losses, name)(reduction='mean')(images, texts, owner).item():.3f}")
    scores = openvse.functional.normalize(images) @ openvse.functional.normalize(texts).T
    print(f"AdOpt on the scores: {adopt.from_scores(scores, owner).item():.3f}")
print(openvse.evaluate(images, texts, owner, name="the training items").to_markdown())
