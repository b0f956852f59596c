"""Evaluate embeddings of any model, given as arrays: recalls, ranks, intervals and the level of chance."""

import numpy as np

import openvse

rng = np.random.default_rng(0)
meaning = rng.normal(size=(300, 64))
images = meaning + rng.normal(size=meaning.shape)  # [300, 64]; they need no unit length

# Five texts an image, in the order of the images: nothing else has to be said.
texts = np.repeat(meaning, 5, axis=0) + 2 * rng.normal(size=(1500, 64))
report = openvse.evaluate(images, texts, name="five texts an image")
print(report.to_markdown())
low, high = report.intervals["rsum"]
print(f"RSUM {report.metrics['rsum']:.1f}, 95 % interval {low:.1f} to {high:.1f}\n")

# Texts in another order: say the image of each text, or list pairs (image, text).
order = rng.permutation(1500)
owner = order // 5
shuffled = openvse.evaluate(images, texts[order], owner)
pairs = np.stack([owner, np.arange(1500)], axis=1)
assert shuffled.metrics == openvse.evaluate(images, texts[order], pairs).metrics
print(f"the same in another order: {shuffled.metrics['rsum']:.1f}")

# Several embeddings an item, [300, 3, 64]: the best pair of two items counts.
views = meaning[:, None] + rng.normal(size=(300, 3, 64))
print(f"three embeddings an image: {openvse.evaluate(views, texts).metrics['rsum']:.1f}")

report.save("report")  # report/report.json and report/report.md
