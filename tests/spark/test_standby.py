"""Goal: a machine dies or is cut off, another one with an empty disk goes on, and all sinks are exactly right.

Real pipelines in real processes, each with a disk of its own; the bucket is on moto's S3 server. One of them reaches
it through a proxy that can be cut.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.stores.urls import open_store
from spark.orders import contents, write_orders
from stores.places import BUCKET, S3_OPTIONS
from sync.fault_proxy import FaultProxy

PATIENCE = 300.0
Undisturbed = Callable[[str, int], dict[str, Any]]


class Machine:
    """A process on a disk of its own."""

    def __init__(self, world: "World", disk: str, role: str, endpoint: str, **settings: Any) -> None:
        tests = Path(__file__).parent.parent
        options = {**S3_OPTIONS, "endpoint": endpoint, "allow_http": "true", "max_retries": "1", "retry_timeout": "5"}
        said = {
            "kind": world.kind,
            "bucket": world.url,
            "standby": True,
            "push_interval": "1 second",
            "pull_interval": "1 second",
            "storage_options": options,
            **settings,
        }
        command = [sys.executable, "-m", "spark.standby_machine", str(world.base), str(world.base / disk), role]
        self._process = subprocess.Popen(
            [*command, json.dumps(said)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tests)},
        )
        self.lines: list[str] = []
        self._new: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for line in said:
                self._new.put(line.rstrip())
        self._new.put(None)

    def until(self, condition: Callable[[list[str]], object]) -> None:
        """Wait until what was said so far fulfils a condition."""
        deadline = SYSTEM_CLOCK.monotonic() + PATIENCE
        while not condition(self.lines):
            line = self._new.get(timeout=max(0.1, deadline - SYSTEM_CLOCK.monotonic()))
            assert line is not None, f"it ended too early: {self.lines}"
            self.lines.append(line)

    def activate(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("activate\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE)
        self._listener.join(PATIENCE)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def ended(self) -> str:
        """Wait for the end and return the last line."""
        self._process.wait(PATIENCE)
        while (line := self._new.get(timeout=PATIENCE)) is not None:
            self.lines.append(line)
        return self.lines[-1]


class World:
    """What the machines share."""

    def __init__(self, base: Path, kind: str, endpoint: str, proxy: FaultProxy) -> None:
        self.base, self.kind, self.endpoint, self.proxy = base, kind, endpoint, proxy
        self.url = f"s3://{BUCKET}/standby/{uuid.uuid4().hex}"
        self.machines: list[Machine] = []

    def machine(self, disk: str, role: str, endpoint: str | None = None) -> Machine:
        self.machines.append(Machine(self, disk, role, endpoint or self.endpoint))
        return self.machines[-1]

    def written(self) -> Any:
        """Return what bucket and targets hold."""
        options = {**S3_OPTIONS, "endpoint": self.endpoint, "allow_http": "true"}
        bucket = open_store(self.url, read_only=True, options=options)
        manifests = {id: bucket.manifest_bytes(id) for id in bucket.list_ids()}
        return manifests, bucket.sidecars(), contents(self.base)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, s3_endpoint: str) -> Iterator[World]:
    with FaultProxy(s3_endpoint).running() as proxy:
        world = World(tmp_path, getattr(request, "param", "windows"), s3_endpoint, proxy)
        yield world
        for machine in world.machines:
            machine.kill()


def reached(lines: list[str], epoch: int) -> bool:
    committed = (int(line.split()[1]) for line in lines if line.startswith("EpochCommitted"))
    return max(committed, default=0) >= epoch


def pushed(lines: list[str]) -> bool:
    return any(line.startswith("SyncPushed") for line in lines)


def label(base: Path, text: str) -> None:
    rows = "".join(f"c{number},{text}\n" for number in range(5))
    (base / "labels.csv").write_text(f"customer,label\n{rows}")


@pytest.mark.parametrize("world", ["referenced"], indirect=True)
def test_another_machine_goes_on_after_a_kill_and_the_first_one_comes_back_as_a_zombie(
    world: World, undisturbed: Undisturbed
) -> None:
    """The reference table has changed meanwhile: what is replayed finds its version in the bucket."""
    label(world.base, "v1")
    write_orders(world.base, 0, 2)
    first = world.machine("first", "forever")
    first.until(lambda lines: reached(lines, 2) and pushed(lines))
    write_orders(world.base, 2, 5)
    first.until(lambda lines: reached(lines, 5))
    first.kill()
    label(world.base, "v2")

    second = world.machine("second", "standby")
    second.until(lambda lines: any(line.startswith("SyncPulled") for line in lines))
    second.activate()
    write_orders(world.base, 5, 8)
    assert second.ended() == "finished", second.lines
    found, expected = contents(world.base), undisturbed("windows", 8)
    assert [row[:-1] for row in found["lake"]] == expected["lake"]
    assert found["raw"] == expected["raw"]
    assert [row[0] for row in found["db"]] == [row[0] for row in expected["raw"]]

    before = world.written()
    assert world.machine("first", "once").ended().startswith("Fenced: "), world.machines[-1].lines
    assert "this pipeline was taken over" in world.machines[-1].lines[-1]
    assert world.written() == before


@pytest.mark.long
def test_a_machine_that_is_cut_off_stops_before_its_sinks_commit_and_another_goes_on(
    world: World, undisturbed: Undisturbed
) -> None:
    write_orders(world.base, 0, 3)
    first = world.machine("first", "forever", world.proxy.endpoint)
    # The fourth has no rows: it shows what the watermark of the third has closed.
    first.until(lambda lines: reached(lines, 4) and pushed(lines))
    world.proxy.always("refuse")
    shown = contents(world.base)
    write_orders(world.base, 3, 5)
    assert "its sinks do not commit, and the pipeline stops" in first.ended(), first.lines
    assert contents(world.base) == shown
    assert world.machine("first", "once", world.proxy.endpoint).ended().startswith("TransientStoreError: ")
    assert contents(world.base) == shown

    second = world.machine("second", "standby")
    second.until(lambda lines: any(line.startswith("SyncPulled") for line in lines))
    second.activate()
    assert second.ended() == "finished", second.lines
    assert contents(world.base) == undisturbed("windows", 5)

    world.proxy.always(None)
    before = world.written()
    assert world.machine("first", "once", world.proxy.endpoint).ended().startswith("Fenced: ")
    assert world.written() == before
