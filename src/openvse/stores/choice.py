"""The engine of an index: its entry in the manifest, its URL, and the secrets in the URL."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from openvse.errors import EngineError
from openvse.stores import STORES, store_kind

URL_VARIABLE = "OPENVSE_ENGINE_URL"
PREFIX = "openvse_"
PLACE = re.compile(PREFIX + r"[0-9a-f]{8,}")
"""The names of the collections, tables and folders that openvse makes."""

_SECRET = re.compile("pass|key|secret|token|pwd", re.IGNORECASE)
_FILES = ("passfile", "sslkey")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,20}://", re.IGNORECASE)


@dataclass(frozen=True)
class EngineAddress:
    """The engine of an index: the exact one, or a store with the place of its data.

    Attributes:
        engine: ``exact``, or the registered name of the store.
        name: the name of the collection, table or folder that holds the index.
        url: the URL of the server, without its secrets. "" where the data are in a folder.
        folder: the parent of the data's folder, which is the index's folder.
        given: the URL in the user's words, with its secrets. "" where an index alone names the server.
    """

    engine: str = "exact"
    name: str = ""
    url: str = ""
    folder: Path = field(default=Path(), compare=False)
    given: str = field(default="", compare=False, repr=False)

    @property
    def path(self) -> Path:
        """The folder of the data, for a store that has one."""
        return self.folder / self.name

    @property
    def server(self) -> str:
        """The URL with its secrets. EngineError where only an index names the server, as anybody may have made it."""
        if not self.given:
            raise EngineError(
                f"the index names the server {self.url}, which openvse asks only if you name it, too: if you know it, "
                f"give --engine {self.url} or set {URL_VARIABLE} to it. Otherwise search with --engine exact"
            )
        return self.given

    def __str__(self) -> str:
        """Return its name in messages."""
        return f"{self.url.rstrip('/')}/{self.name}" if self.url else str(self.path)

    @classmethod
    def new(cls, folder: Path, engine: str, url: str | None = None) -> EngineAddress:
        """Return a place of its own for an index. Without a URL, on the server of ``OPENVSE_ENGINE_URL``."""
        if engine == "exact":
            return cls()
        given = ""
        if store_kind(engine).schemes:
            given = url or os.environ.get(URL_VARIABLE, "")
            check_url(engine, given)
        return cls(engine, f"{PREFIX}{secrets.token_hex(6)}", public_url(given), folder, given)

    @classmethod
    def of(cls, folder: Path, noted: Mapping[str, str] | None, url: str | None = None) -> EngineAddress:
        """Return a manifest's engine. Without a URL, ``OPENVSE_ENGINE_URL`` is used if it names the same server.

        EngineError is raised if the note is damaged, or the engine is unknown.
        """
        if noted is None:
            return cls()
        engine, name, public = (noted.get(key, "") for key in ("name", "place", "url"))
        if engine not in STORES or not PLACE.fullmatch(name):
            raise EngineError(
                f"the index names an engine that this openvse does not have ({engine}): update openvse, load the "
                f"plug-in that registers it, or search with --engine exact"
            )
        variable = os.environ.get(URL_VARIABLE, "")
        if url:
            check_url(engine, url)
        elif variable and shown_url(variable) == public:
            url = variable
        return cls(engine, name, public_url(url) if url else shown_url(public) if public else "", folder, url or "")

    def noted(self) -> dict[str, str] | None:
        """Return its entry for a manifest, or None for the exact engine."""
        if self.engine == "exact":
            return None
        return {"name": self.engine, "url": self.url, "place": self.name}


def split_engine(engine: str | None) -> tuple[str | None, str | None]:
    """Return the name of an engine and the URL of its server, of a name or a URL."""
    return (named_by(engine), engine) if engine and "://" in engine else (engine, None)


def named_by(url: str) -> str:
    """Return the name of the store of a URL's scheme. Raise EngineError where there is none."""
    scheme = url.partition("://")[0]
    for name in STORES:
        if scheme in (store_kind(name).schemes or {}):
            return name
    examples = [kind.example for name in STORES if (kind := store_kind(name)).example]
    raise EngineError(f"{shown_url(url)} names no engine: give {', '.join(examples)}, or the folder of an index")


def check_url(name: str, url: str) -> None:
    """Raise EngineError unless a URL belongs to an engine's server. The message never holds the URL."""
    kind = store_kind(name)
    if not is_clean(url) or urlsplit(url).scheme not in (kind.schemes or {}):
        raise EngineError(
            f"the engine {name} needs the URL of its server, such as {kind.example}: give it in place of the name with "
            f"--engine, or in the environment variable {URL_VARIABLE}"
        )


def public_url(url: str) -> str:
    """Return a URL without its password and without parameters that may be secret."""
    if not url:
        return url
    parts = urlsplit(url)
    user, _, place = parts.netloc.rpartition("@")
    # The user of a database is no secret. For a server with keys, this part of the URL is one.
    name = user.partition(":")[0] if parts.scheme.startswith("postgres") else ""
    netloc = f"{name}@{place}" if name else place
    shown = [(key, value) for key, value in _parameters(parts) if key in _FILES or not _SECRET.search(key)]
    # postgresql:///database has no host, which urlunsplit would write with fewer slashes.
    rest = urlunsplit(("", "", parts.path, urlencode(shown, safe="/:,"), ""))
    return f"{parts.scheme}://{netloc}{rest}"


def is_clean(url: str) -> bool:
    """Return whether a URL has a host, a port and a path that nothing else, such as a password, can be part of."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - it is read to see whether it is a number
    except ValueError:
        return False
    return not parts.fragment and not {"@", " "} & {*parts.path, *parts.query}


def shown_url(word: str) -> str:
    """Return a word that may be a URL in a form for messages, an unclean one by its scheme alone."""
    scheme = _SCHEME.match(word)
    return public_url(word) if scheme and is_clean(word) else f"{scheme[0] if scheme else ''}..."


def is_here(url: str) -> bool:
    """Return whether a URL is on this machine."""
    parts = urlsplit(url)
    others = {"host", "hostaddr", "service"} & {key for key, _ in _parameters(parts)}
    return not others and parts.hostname in (None, "localhost", "127.0.0.1", "::1")


def secrets_in(url: str) -> list[str]:
    """Return the password, and the values of parameters that may be secret."""
    if not url:
        return []
    parts = urlsplit(url)
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    values = [password, unquote(password)]
    values += [value for key, value in _parameters(parts) if key not in _FILES and _SECRET.search(key)]
    return [value for value in dict.fromkeys(values) if value]


def without_secrets(text: str, url: str) -> str:
    """Return a message of a library in one line, without the secrets in a URL."""
    for secret in secrets_in(url):
        text = text.replace(secret, "***")
    return " ".join(text.split())[:300]


def _parameters(parts: SplitResult) -> list[tuple[str, str]]:
    return parse_qsl(parts.query, keep_blank_values=True)
