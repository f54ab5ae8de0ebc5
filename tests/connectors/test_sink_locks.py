"""A sink whose lock another process holds says who that is, and is tried again; it does not wait for ever."""

import os
from pathlib import Path

import pytest

from connectors.targets import BY_NAME, Target, Writer, orders
from holdfast.core.contracts import CommitOutcome, RewindOutcome
from holdfast.errors import RetryableSinkError
from holdfast.stores import locks
from holding import SINCE, held_elsewhere


@pytest.fixture(params=["files-parquet", "foreach-batch"])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.01)
    return BY_NAME[request.param]


def test_what_needs_the_lock_names_its_holder_and_works_when_tried_again(tmp_path: Path, target: Target) -> None:
    writer = Writer(target, tmp_path)
    token = writer.prepare(1, orders(1))
    (lock,) = (str(path) for path in tmp_path.rglob("lock"))
    with held_elsewhere(lock) as pid:
        told = rf"locked by process {pid} on {os.uname().nodename} since {SINCE}, for longer than 0\.01 s"
        with pytest.raises(RetryableSinkError, match=told):
            writer.commit(token)
        with pytest.raises(RetryableSinkError, match=told):
            writer.rewind(0)
        with pytest.raises(RetryableSinkError, match=told):
            Writer(target, tmp_path, 2)
        assert target.read(tmp_path) == []
        assert writer.sink.ledger() == writer.opened
    assert writer.commit(token) is CommitOutcome.DONE
    assert writer.rewind(1) is RewindOutcome.DONE
    assert Writer(target, tmp_path, 2).epoch == 1
    assert target.read(tmp_path) == orders(1)
