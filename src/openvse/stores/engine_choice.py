"""Which engine an index has, and where: what its manifest says of it, and what it must not say."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import asdict, dataclass
from typing import Literal, get_args
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from openvse.errors import EngineError

EngineName = Literal["exact", "int8", "qdrant_edge", "qdrant", "pgvector"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
WITH_URL = ("qdrant", "pgvector")
URL_VARIABLE = "OPENVSE_ENGINE_URL"

_SCHEMES = {"qdrant": ("http", "https"), "pgvector": ("postgresql", "postgres")}
_SECRET = re.compile("pass|key|secret|token|pwd", re.IGNORECASE)
_FILES = ("passfile", "sslkey")
PLACE = re.compile(r"openvse_[0-9a-f]{8,}")
"""The names of the collections, tables and folders that openvse makes."""


@dataclass(frozen=True)
class EngineChoice:
    """An engine and where its data are; it holds no secret.

    Attributes:
        name: of the engine.
        url: of the server, without password or key; "" for the engines in the index' folder.
        place: the name of the collection, table or folder that holds this index.
    """

    name: EngineName = "exact"
    url: str = ""
    place: str = ""

    @classmethod
    def new(cls, name: str, url: str | None = None) -> EngineChoice:
        """Choose an engine for an index, with a place of its own.

        Args:
            name: one of ``ENGINES``.
            url: of the server, for those that have one; its secrets are left out. None takes ``OPENVSE_ENGINE_URL``.

        Raises:
            EngineError: there is no such engine, or it needs another URL.
        """
        checked = next((each for each in ENGINES if each == name), None)
        if checked is None:
            raise EngineError(f"there is no engine {name}: give one of {', '.join(ENGINES)}")
        if checked == "exact":
            return cls()
        if checked in WITH_URL:
            url = url or os.environ.get(URL_VARIABLE, "")
            check_url(checked, url)
        elif url:
            raise EngineError(
                f"the engine {name} is in the folder of the index and has no URL: leave the URL out"
            )
        return cls(checked, public_url(url or ""), f"openvse_{secrets.token_hex(6)}")

    @classmethod
    def of(cls, noted: dict[str, str] | None) -> EngineChoice:
        """Return the choice that a manifest notes.

        Raises:
            EngineError: this openvse does not have the engine, or the note is damaged.
        """
        if noted is None:
            return cls()
        name = next((each for each in ENGINES if each == noted.get("name")), None)
        place = noted.get("place", "")
        if name is None or not PLACE.fullmatch(place):
            raise EngineError(
                f"the index names an engine that this openvse does not have ({noted.get('name')}): update openvse, or "
                f"search with --engine exact"
            )
        return cls(name, noted.get("url", ""), place)

    def noted(self) -> dict[str, str] | None:
        """Return what a manifest says of it; None for the exact engine."""
        return None if self.name == "exact" else {key: str(value) for key, value in asdict(self).items()}

    def address(self, url: str | None = None) -> str:
        """Return the URL to connect to, with its secrets if somebody gives them.

        Args:
            url: as it was given just now; None takes ``OPENVSE_ENGINE_URL`` if that is the same server.
        """
        if url:
            check_url(self.name, url)
            return url
        variable = os.environ.get(URL_VARIABLE, "")
        return variable if variable and public_url(variable) == self.url else self.url


def check_url(name: str, url: str) -> None:
    """Raise EngineError unless a URL is one of an engine's server; the message never holds the URL."""
    schemes = _SCHEMES[name]
    if name == "qdrant" and url == ":memory:":
        return
    try:
        given = urlsplit(url).scheme
    except ValueError:
        given = ""
    if given not in schemes:
        example = {"qdrant": "http://localhost:6333", "pgvector": "postgresql://user@localhost/database"}[
            name
        ]
        raise EngineError(
            f"the engine {name} needs the URL of its server, such as {example}: give it with --engine-url, or in the "
            f"environment variable {URL_VARIABLE}"
        )


def public_url(url: str) -> str:
    """Return a URL without its password and without parameters that may be secret."""
    if not url or url == ":memory:":
        return url
    parts = urlsplit(url)
    user, _, place = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    netloc = f"{name}@{place}" if name else place
    kept = [(key, value) for key, value in _parameters(parts) if key in _FILES or not _SECRET.search(key)]
    # postgresql:///database has no host, which urlunsplit would write with fewer slashes.
    rest = urlunsplit(("", "", parts.path, urlencode(kept, safe="/:,"), ""))
    return f"{parts.scheme}://{netloc}{rest}"


def secrets_in(url: str) -> list[str]:
    """Return the password, and the values of parameters that may be secret."""
    if not url or url == ":memory:":
        return []
    parts = urlsplit(url)
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    found = [password, unquote(password)]
    found += [value for key, value in _parameters(parts) if key not in _FILES and _SECRET.search(key)]
    return [value for value in dict.fromkeys(found) if value]


def without_secrets(text: str, url: str) -> str:
    """Return a message of a library in one line, without what is secret in a URL."""
    for secret in secrets_in(url):
        text = text.replace(secret, "***")
    return " ".join(text.split())[:300]


def _parameters(parts: SplitResult) -> list[tuple[str, str]]:
    return parse_qsl(parts.query, keep_blank_values=True)
