"""Train on a folder, index it, and search it by sentence and by image, all from Python."""

from pathlib import Path

import openvse
from openvse.search import contact_sheet
from shapes import draw

paths, _ = draw(Path("shapes"))
run = openvse.train("folder", data="shapes", out="runs/shapes", overrides="seed=1")
print(f"RSUM on validation: {run.progress.best_score:.1f}")

model = openvse.load(run.best)  # a folder, or a name on the Hugging Face hub
items = openvse.index(model, "shapes", "runs/shapes/index").items
print(f"{items.count} images indexed, {len(items.failed)} that cannot be read")

engine = openvse.open("runs/shapes")  # its index, with its model
queries = ["a small blue square", "a large orange triangle"]
results = engine.search(queries, top_k=4)
for query, hits in zip(queries, results, strict=True):
    print(f"{query}: " + ", ".join(f"{hit.id} {hit.score:.2f}" for hit in hits))

similar = engine.search(paths[0], top_k=3)
print(f"like {paths[0].name}: " + ", ".join(hit.id for hit in similar[1:]))

Path("hits.html").write_text(contact_sheet(dict(zip(queries, results, strict=True))), encoding="utf-8")
print("hits.html shows the images")
