"""Features of three images in every format that can be imported, written as the field's tools write them."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DIM = 3
SIZE = (640, 480)


@dataclass(frozen=True)
class Regions:
    """Region features of one image, with boxes in pixels."""

    features: np.ndarray
    boxes: np.ndarray


def make_regions(count: int, seed: int) -> Regions:
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.random((count, 2, 2)), axis=1).reshape(count, 4) * np.array([*SIZE, *SIZE])
    return Regions(rng.random((count, DIM), np.float32) + 0.1, corners.astype(np.float32))


REGIONS = {"391895": make_regions(2, 0), "42": make_regions(1, 1), "7": make_regions(4, 2)}


def tsv_line(item: str, regions: Regions) -> bytes:
    """Write a line as bottom-up attention does."""
    encoded = [base64.b64encode(np.ascontiguousarray(a, "<f4").tobytes()) for a in (regions.boxes, regions.features)]
    cells = [item.encode(), *(str(n).encode() for n in (*SIZE, len(regions.features))), *encoded]
    return b"\t".join(cells) + b"\n"


def write_tsv(folder: Path, regions: Mapping[str, Regions] = REGIONS) -> Path:
    path = folder / "trainval_36.tsv"
    path.write_bytes(b"".join(tsv_line(item, each) for item, each in regions.items()))
    return path


def write_lxmert_tsv(folder: Path, regions: Mapping[str, Regions] = REGIONS) -> Path:
    """Write ten columns, height before width, in two parts."""
    (folder / "lxmert" / "parts").mkdir(parents=True)
    for part, (item, each) in enumerate(regions.items()):
        cells = tsv_line(item, each).rstrip().split(b"\t")
        nothing = base64.b64encode(b"")
        cells = [cells[0], cells[2], cells[1], *[nothing] * 4, *cells[3:]]
        (folder / "lxmert" / "parts" / f"obj36.tsv.{part}").write_bytes(b"\t".join(cells) + b"\n")
    return folder / "lxmert"


def write_npz(folder: Path, regions: Mapping[str, Regions] = REGIONS) -> Path:
    """Write what the PyTorch port of bottom-up attention does, its pickled ``info`` included."""
    target = folder / "npz" / "val"
    target.mkdir(parents=True)
    for item, each in regions.items():
        count = len(each.features)
        content = {"x": each.features, "bbox": each.boxes, "num_bbox": count, "image_w": SIZE[0], "image_h": SIZE[1]}
        np.savez_compressed(target / f"{item}.npz", **content, info=np.array({"objects": [1]}, dtype=object))
    return target


def write_npy_folder(folder: Path, regions: Mapping[str, Regions] = REGIONS) -> Path:
    (folder / "npy").mkdir()
    for item, each in regions.items():
        np.save(folder / "npy" / f"{item}.npy", each.features)
    return folder / "npy"


def padded(arrays: list[np.ndarray]) -> np.ndarray:
    longest = max(map(len, arrays))
    return np.stack([np.pad(array, ((0, longest - len(array)), (0, 0))) for array in arrays])


def write_npy_array(folder: Path, regions: Mapping[str, Regions] = REGIONS) -> Path:
    np.save(folder / "dev_ims.npy", padded([each.features for each in regions.values()]))
    (folder / "dev_ids.txt").write_text("".join(f"{item}\n" for item in regions))
    return folder / "dev_ims.npy"


def write_hdf5_groups(folder: Path, regions: Mapping[str, Regions] = REGIONS) -> Path:
    import h5py

    with h5py.File(folder / "groups.h5", "w") as file:
        for item, each in regions.items():
            group = file.create_group(f"val/{item}")
            group["features"], group["boxes"] = each.features, each.boxes
            group.attrs["image_w"], group.attrs["image_h"] = SIZE
    return folder / "groups.h5"


def write_hdf5_sets(folder: Path, regions: Mapping[str, Regions] = REGIONS) -> Path:
    import h5py

    with h5py.File(folder / "sets.hdf5", "w") as file:
        for item, each in regions.items():
            file[item] = each.features
    return folder / "sets.hdf5"


def write_hdf5_array(folder: Path, regions: Mapping[str, Regions] = REGIONS) -> Path:
    import h5py

    with h5py.File(folder / "array.h5", "w") as file:
        file.create_dataset("features", data=padded([each.features for each in regions.values()]), chunks=(1, 4, DIM))
        file["boxes"] = padded([each.boxes for each in regions.values()])
        file["ids"] = list(regions)
        file["image_w"], file["image_h"] = np.full((2, len(regions)), [[SIZE[0]], [SIZE[1]]])
    return folder / "array.h5"


Write = Callable[[Path], Path]

FORMATS: dict[str, tuple[Write, bool]] = {
    "tsv": (write_tsv, True),
    "lxmert": (write_lxmert_tsv, True),
    "npz": (write_npz, True),
    "npy folder": (write_npy_folder, False),
    "npy array": (write_npy_array, False),
    "hdf5 groups": (write_hdf5_groups, True),
    "hdf5 sets": (write_hdf5_sets, False),
    "hdf5 array": (write_hdf5_array, True),
}
"""By name: what writes it, and whether it holds boxes."""
