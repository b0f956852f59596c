"""Several feature sets of one data set: a folder of stores may replace a store everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from openvse.encoders import ImageEncoder, TextEncoder, TokenStatesEncoder
from openvse.errors import StoreError
from openvse.features.layout import MANIFEST, Manifest, read_manifest, same_maker
from openvse.features.store import FeatureStore


def open_store(path: Path | None, encoder: ImageEncoder | TokenStatesEncoder) -> FeatureStore | None:
    """Open the store that an encoder can read, also from a folder of stores; None if no path is given.

    Raises:
        StoreError: see ``open_fitting``.
    """
    if path is None:
        return None
    return open_fitting(path, fingerprint=encoder.fingerprint, dim=encoder.feature_dim)


def open_token_states(path: Path | None, encoder: TextEncoder) -> FeatureStore | None:
    """Open the store of token states that a text encoder can read, also from a folder of stores.

    Returns:
        The store; None if no path is given, or if the encoder cannot use stored states, such as one whose text model
        was fine-tuned.

    Raises:
        StoreError: see ``open_fitting``.
    """
    if not isinstance(encoder, TokenStatesEncoder) or encoder.why_not_stored() is not None:
        return None
    return open_store(path, encoder)


def open_fitting(path: Path, *, fingerprint: str | None, dim: int) -> FeatureStore:
    """Open a store, or the one in a folder of stores that fits.

    Args:
        path: a store, or a folder that holds stores, for instance ``features`` with ``features/grid`` and
            ``features/regions``.
        fingerprint: the encoder that must have made the store; None takes any, and in a folder the one of width
            ``dim``.
        dim: C, the width of the features that the model expects.

    Raises:
        StoreError: the store is missing, damaged or made by another encoder, or none or several of the folder fit.
    """
    stores = {each.parent: read_manifest(each.parent) for each in sorted(path.glob(f"*/{MANIFEST}"))}
    if not stores or (path / MANIFEST).exists():
        return FeatureStore.open(path, fingerprint)
    fitting = {
        folder: manifest
        for folder, manifest in stores.items()
        if (manifest.dim == dim if fingerprint is None else same_maker(manifest.encoder, fingerprint))
    }
    if len(fitting) == 1:
        return FeatureStore.open(next(iter(fitting)), fingerprint)
    wanted = f"width {dim}" if fingerprint is None else f"encoder {fingerprint!r}"
    if not fitting:
        raise StoreError(
            f"no feature store in {path} is of {wanted}; there are {_listed(stores.items())}: extract or import the "
            f"features that the model reads, or give another folder"
        )
    remedy = "name one of them" + (", or set image.encoder.made_by" if fingerprint is None else "")
    raise StoreError(
        f"{len(fitting)} feature stores in {path} are of {wanted}: {_listed(fitting.items())}; {remedy}"
    )


def _listed(stores: Iterable[tuple[Path, Manifest]]) -> str:
    return ", ".join(
        f"{folder.name} (made by {manifest.encoder!r}, width {manifest.dim})" for folder, manifest in stores
    )
