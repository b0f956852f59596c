"""Points in a table of PostgreSQL with the extension pgvector, through ``psycopg``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np
import psycopg
from jaxtyping import Float, Int
from pgvector import HalfVector, Vector
from pgvector.psycopg import register_vector
from psycopg import sql
from psycopg.types.json import Jsonb

from openvse.errors import EngineError
from openvse.files import parse_json
from openvse.stores.base import CatalogueStore, ItemFacts, Within, told_as
from openvse.stores.choice import PLACE, EngineAddress, public_url, without_secrets
from openvse_engines.filters import Clause, clauses_of

_WAIT_S = 10
_INDEXED_DIMS = {"vector": 2000, "halfvec": 4000}  # widths up to which pgvector makes a graph
_MOST_DIMS = 16_000
_ROOM_FOR_GRAPH = """
SELECT set_config(name, '512MB', false) FROM pg_settings
WHERE name = 'maintenance_work_mem' AND setting::bigint < 524288
"""  # in kilobytes, where a server with more keeps it
_BOUNDS = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}


class PgvectorStore(CatalogueStore):
    """A table of points with a graph (HNSW) for the inner product.

    Embeddings of more than 2,000 numbers are kept in half precision, because pgvector's graph has no wider ones, and
    embeddings of more than 4,000 numbers without a graph.

    The password may be in the URL, in ``PGPASSWORD`` or in PostgreSQL's own password file. See ``VectorStore`` for the
    arguments.
    """

    def __init__(self, address: EngineAddress, num_embeddings: int, dim: int, *, create: bool = False) -> None:
        url, table = address.server, address.name
        if dim > _MOST_DIMS:
            raise EngineError(f"pgvector holds embeddings of up to {_MOST_DIMS:,} numbers, not {dim:,}: use another")
        self._errors, self._num_embeddings = partial(_errors_of, url), num_embeddings
        is_half = _INDEXED_DIMS["vector"] < dim <= _INDEXED_DIMS["halfvec"]
        self._type, self._has_graph = "halfvec" if is_half else "vector", dim <= _INDEXED_DIMS["halfvec"]
        self._name, self._table = table, sql.Identifier(table)
        with self._errors():
            self._connection = _connected(url)
            exists = self._one("SELECT to_regclass(%s) IS NOT NULL", [table])
            if create:
                self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                kind = f"{self._type}({dim})"
                columns = f"(item bigint NOT NULL, payload jsonb NOT NULL, embedding {kind} NOT NULL)"
                self._run(f"CREATE TABLE IF NOT EXISTS {{}} {columns}")
                items = sql.Identifier(f"{self._name}_items")
                self._run("CREATE INDEX IF NOT EXISTS {1} ON {0} (item)", (), items)
        if not exists and not create:
            self._connection.close()
            raise EngineError(f"the database {public_url(url)} has no table {table}: run 'openvse index' again")
        with self._errors():
            register_vector(self._connection)
            version = str(self._one("SELECT extversion FROM pg_extension WHERE extname = 'vector'"))
            self._iterates = tuple(int(part) for part in version.split(".")[:2]) >= (0, 8)

    @classmethod
    def split(cls, word: str) -> tuple[str, str]:
        """Return the URL of the database, and the table that a parameter ``table`` names."""
        parts = urlsplit(word)
        given = parse_qsl(parts.query, keep_blank_values=True)
        place = next((value for key, value in given if key == "table"), "")
        rest = urlencode([each for each in given if each[0] != "table"], safe="/:,")
        url = f"{parts.scheme}://{parts.netloc}{parts.path}"  # postgresql:///database has no host
        return (f"{url}?{rest}" if rest else url), place

    @classmethod
    def places(cls, url: str) -> list[str]:
        with _errors_of(url), closing(_connected(url)) as connection:
            rows = connection.execute(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND pg_table_is_visible(oid)"
            ).fetchall()
        return sorted(str(name) for (name,) in rows if PLACE.fullmatch(str(name)))

    def put(self, keys: Int[np.ndarray, "n"], vectors: Float[np.ndarray, "n K D"], facts: Sequence[ItemFacts]) -> None:
        """Add items, in one transaction. Known keys are replaced."""
        wrapped = HalfVector if self._type == "halfvec" else Vector
        columns = sql.SQL("COPY {} (item, payload, embedding) FROM STDIN (FORMAT BINARY)")
        with self._errors(), self._connection.transaction(), self._connection.cursor() as cursor:
            self.remove(keys)
            with cursor.copy(columns.format(self._table)) as copy:
                copy.set_types(["int8", "jsonb", self._type])
                for key, sets, fact in zip(keys.tolist(), vectors.astype(np.float32), facts, strict=True):
                    payload = Jsonb(fact.payload())
                    for one in sets:
                        copy.write_row((key, payload, wrapped(one)))

    def remove(self, keys: Int[np.ndarray, "n"]) -> None:
        self._run("DELETE FROM {} WHERE item = ANY(%s)", [keys.tolist()])

    def nearest(self, queries: Float[np.ndarray, "M D"], count: int, within: Within) -> list[Int[np.ndarray, "_"]]:
        where, values = _where(within)
        asked = "SELECT item FROM {} {} ORDER BY embedding <#> %s LIMIT %s"
        wrapped = HalfVector if self._type == "halfvec" else Vector
        keys = []
        with self._errors(), self._connection.transaction():
            self._connection.execute(f"SET LOCAL hnsw.ef_search = {min(1000, max(100, count))}")
            if self._iterates:  # continue where the conditions leave too few
                self._connection.execute("SET LOCAL hnsw.iterative_scan = relaxed_order")
            for one in queries.astype(np.float32):
                rows = self._run(asked, [*values, wrapped(one), count], where)
                keys.append(np.array([row[0] for row in rows], np.int64))
        return keys

    def num_points(self) -> int:
        return self.count(Within())

    def finish(self) -> None:
        """Make the graph if there is none yet. Later points are added to it as they come.

        It is made many times as fast where it fits into ``maintenance_work_mem``, which is raised to 512 MB or more.
        """
        if not self._has_graph:
            return
        self._run(_ROOM_FOR_GRAPH)
        made = f"CREATE INDEX IF NOT EXISTS {{1}} ON {{0}} USING hnsw (embedding {self._type}_ip_ops)"
        self._run(made, (), sql.Identifier(f"{self._name}_graph"))
        self._run("ANALYZE {}")

    def drop(self) -> None:
        self._run("DROP TABLE IF EXISTS {}")

    def write_note(self, note: dict[str, Any]) -> None:
        """Keep the note as the comment of the table."""
        self._run("COMMENT ON TABLE {} IS {}", (), sql.Literal(json.dumps(note)))

    def note(self) -> dict[str, Any] | None:
        """Return the note, or None where there is none, or the comment is somebody else's."""
        text = self._one("SELECT obj_description(to_regclass(%s), 'pg_class')", [self._name])
        try:
            note = parse_json(str(text))
        except ValueError:
            return None
        return note if isinstance(note, dict) else None

    def facts(self, keys: Int[np.ndarray, "n"]) -> dict[int, ItemFacts]:
        return dict(self._facts("WHERE item = ANY(%s)", [keys.tolist()]))

    def vectors(self, keys: Int[np.ndarray, "n"]) -> dict[int, Float[np.ndarray, "K D"]]:
        # Several embeddings of an item have only the order of their insertion, on which no score depends.
        rows = self._run("SELECT item, embedding FROM {} WHERE item = ANY(%s) ORDER BY item", [keys.tolist()])
        vectors: dict[int, list[Float[np.ndarray, "D"]]] = {}
        for key, vector in rows:
            plain = vector.to_numpy() if hasattr(vector, "to_numpy") else vector
            vectors.setdefault(key, []).append(np.asarray(plain, np.float32))
        return {key: np.stack(each) for key, each in vectors.items() if len(each) == self._num_embeddings}

    def some(self, count: int) -> list[ItemFacts]:
        return list(dict(self._facts("LIMIT %s", [count * self._num_embeddings])).values())

    def count(self, within: Within) -> int:
        where, values = _where(within)
        with self._errors():
            return int(str(self._one("SELECT count(*) FROM {} {}", values, where)))

    def key_of(self, item_id: str) -> int | None:
        """Return the key of an item. The server reads the table, because paths have no index."""
        row = self._one("SELECT item FROM {} WHERE payload ->> 'path' = %s LIMIT 1", [item_id])
        return None if row is None else int(str(row))

    def _facts(self, rest: str, values: Sequence[object]) -> list[tuple[int, ItemFacts]]:
        rows = self._run(f"SELECT item, payload FROM {{}} {rest}", values)
        return [(int(key), ItemFacts.of_payload(payload)) for key, payload in rows]

    def close(self) -> None:
        self._connection.close()

    def _run(self, text: str, values: Sequence[object] = (), *parts: sql.Composable) -> list[tuple[Any, ...]]:
        """Execute a statement, whose first part is the table, and return its rows. Values are bound, never pasted."""
        with self._errors():
            done = self._connection.execute(sql.SQL(text).format(self._table, *parts), values or None)
            return done.fetchall() if done.description else []

    def _one(self, text: str, values: Sequence[object] = (), *parts: sql.Composable) -> object:
        rows = self._run(text, values, *parts)
        return rows[0][0] if rows else None


def _errors_of(url: str) -> AbstractContextManager[None]:
    return told_as(
        lambda said: (
            f"the database {public_url(url)} cannot be used ({without_secrets(said, url):.400}): check that it runs, "
            f"has the extension pgvector, and knows the user and the password, or search with --engine exact"
        )
    )


def _connected(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, connect_timeout=_WAIT_S)


def _where(within: Within) -> tuple[sql.Composable, list[object]]:
    """Return the conditions that PostgreSQL can check, and their values."""
    if not (tests := [_test(clause) for clause in clauses_of(within.where)]):
        return sql.SQL(""), []
    text = sql.SQL("WHERE ") + sql.SQL(" AND ").join(test for test, _ in tests)
    return text, [value for _, values in tests for value in values]


def _test(clause: Clause) -> tuple[sql.Composable, list[object]]:
    """Return a clause in SQL, and its values. ``@>`` finds a value in a list, too."""
    match clause:
        case {"should": list(either)}:
            tests = [_test(each) for each in either]
            joined = sql.SQL(" OR ").join(test for test, _ in tests)
            return sql.SQL("({})").format(joined), [value for _, values in tests for value in values]
        case {"key": str(key), "match": {"value": value}}:
            return sql.SQL("payload #> %s @> %s"), [_path(key), Jsonb(value)]
        case {"key": str(key), "range": dict(bounds)}:
            fits = " && ".join(f"@ {_BOUNDS[name]} ${name}" for name in bounds)
            test = sql.SQL("jsonb_path_exists(payload #> %s, %s::jsonpath, %s, true)")
            return test, [_path(key), f"$[*] ? ({fits})", Jsonb(bounds)]
    raise AssertionError(clause)


def _path(key: str) -> list[str]:
    """Return the names that lead to a value of a payload, such as of ``meta."year"``."""
    name, _, inner = key.partition(".")
    return [name, inner.strip('"')] if inner else [name]
