"""Where an engine's own data are, in one word: the URL of a server with a collection or a table, or a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from openvse.errors import EngineError
from openvse.stores.engine_choice import PLACE, EngineChoice, EngineName, public_url

MEMORY = "qdrant://:memory:"
"""The client's own mode of Qdrant, which lasts as long as the process; for tests."""

_SHOWN = 5
_QDRANT = {"http": "http", "https": "https", "qdrant": "http", "qdrants": "https"}
_POSTGRES = ("postgresql", "postgres")
_PORT = 6333


@dataclass(frozen=True)
class EngineAddress:
    """Where an engine's own data are.

    Attributes:
        choice: the engine, and its collection, table or folder; without secrets.
        url: of the server, with its secrets; "" for a folder.
        folder: what holds the engine's folder.
    """

    choice: EngineChoice
    url: str = ""
    folder: Path = Path()

    @property
    def name(self) -> str:
        """How messages call it."""
        return (
            f"{self.choice.url.rstrip('/')}/{self.choice.place}"
            if self.url
            else str(self.folder / self.choice.place)
        )


def is_address(word: str) -> bool:
    """Return whether a word is a URL, or the folder of an engine, and no folder of an index."""
    return "://" in word or Path(word, "shard", "segments").is_dir()


def read_address(word: str) -> EngineAddress:
    """Return the engine that a word names.

    Args:
        word: ``qdrant://HOST[:PORT][/COLLECTION]`` (or ``qdrants``, ``http``, ``https``),
            ``postgresql://[USER@]HOST/DATABASE[?table=TABLE]``, or the folder of a shard of Qdrant Edge. Without a
            collection or table, the only one that openvse has made there is taken.

    Raises:
        EngineError: it is no such URL, the server cannot be reached, or holds none or several.
    """
    if "://" not in word:
        folder = Path(word).resolve()
        return EngineAddress(EngineChoice("qdrant_edge", "", folder.name), folder=folder.parent)
    name, url, place = _parts(word)
    url = EngineChoice(name, public_url(url), place).address(None) if public_url(url) == url else url
    if place and not PLACE.fullmatch(place):
        raise EngineError(f"{place} is none of openvse's collections or tables, which are called openvse_...")
    return EngineAddress(EngineChoice(name, public_url(url), place or _only(name, url)), url)


def _parts(word: str) -> tuple[EngineName, str, str]:
    """Return engine, URL and place ("" where it is left out)."""
    if word.startswith(MEMORY):
        return "qdrant", ":memory:", word.removeprefix(MEMORY).strip("/")
    try:
        parts = urlsplit(word)
        port = parts.port
    except ValueError as error:
        raise EngineError(f"{public_url_of(word)} is no URL ({error}): check its host and port") from error
    if parts.scheme in _POSTGRES:
        given = parse_qsl(parts.query, keep_blank_values=True)
        place = next((value for key, value in given if key == "table"), "")
        rest = urlencode([each for each in given if each[0] != "table"], safe="/:,")
        slashes = f"{parts.scheme}://{parts.netloc}{parts.path}"  # postgresql:///database has no host
        return "pgvector", f"{slashes}?{rest}" if rest else slashes, place
    if parts.scheme not in _QDRANT or not parts.hostname:
        raise EngineError(
            f"{public_url_of(word)} names no engine: give qdrant://HOST:6333, postgresql://USER@HOST/DATABASE, or the "
            f"folder of an index"
        )
    path, _, last = parts.path.rstrip("/").rpartition("/")
    before, place = (
        (path, last) if PLACE.fullmatch(last) or parts.scheme.startswith("q") else (parts.path, "")
    )
    netloc = parts.netloc if port or not parts.scheme.startswith("q") else f"{parts.netloc}:{_PORT}"
    return "qdrant", urlunsplit((_QDRANT[parts.scheme], netloc, before, parts.query, "")), place


def public_url_of(word: str) -> str:
    """Return a word that may be a URL as messages show it."""
    try:
        return public_url(word)
    except ValueError:
        return word.partition("://")[0] + "://..."


def _only(name: EngineName, url: str) -> str:
    """Return the only place of openvse on a server."""
    if name == "qdrant":
        from openvse.stores.qdrant import places
    else:
        from openvse.stores.pgvector import places
    found = places(url)
    if len(found) == 1:
        return found[0]
    what, where = ("collection", "/NAME") if name == "qdrant" else ("table", "?table=NAME")
    if not found:
        raise EngineError(
            f"{public_url(url)} has no {what} of openvse: fill one with 'openvse index MODEL FOLDER --engine {name}'"
        )
    more = ", ..." if len(found) > _SHOWN else ""
    raise EngineError(
        f"{public_url(url)} has {len(found)} {what}s of openvse ({', '.join(found[:_SHOWN])}{more}): name one with "
        f"{where} at the end of the URL; index.json says which one an index has"
    )
