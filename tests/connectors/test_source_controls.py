"""What every source control does alike: it can be asked whether a start can go on, and that changes nothing."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors import mariadb_server, postgres_server
from holdfast.core.sources import SourceContext, SourceControl, SourceSpec
from holdfast.engine.read_only import ReadOnlyMaterials
from holdfast.errors import SourceError, SourceHistoryLost
from holdfast.stores.materials import DirectoryMaterials
from spark.upstreams import UPSTREAMS, Log

LOGS = [(kind, place) for kind, place in UPSTREAMS if issubclass(kind, Log)]
BEGINNINGS = ["what is there", "from now on"]
Ask = Callable[[SourceControl], object]


@pytest.fixture(scope="module")
def postgres() -> Iterator[postgres_server.Server]:
    with postgres_server.running() as server:
        yield server


@pytest.fixture(scope="module")
def maria() -> Iterator[mariadb_server.Server]:
    with mariadb_server.running() as server:
        yield server


@pytest.fixture(params=LOGS, ids=lambda chosen: chosen[0].name)
def upstream(request: pytest.FixtureRequest) -> Log:
    kind, place = request.param
    found = kind(request.getfixturevalue({"kafka_in_spark": "kafka"}.get(place, place)))
    found.add(1, 2, 3)
    assert isinstance(found, Log)
    return found


class Starts:
    """The starts of one pipeline, each with a control of its own."""

    def __init__(self, upstream: Log, folder: Path, settings: dict[str, Any]) -> None:
        self._upstream, self._folder, self._settings = upstream, folder / "materials", settings
        self._made: list[SourceControl] = []

    def acting(self, **settings: Any) -> SourceControl:
        return self._start(self._upstream.spec(4, **self._settings, **settings), only_asks=False)

    def asking(self, spec: SourceSpec | None = None, **settings: Any) -> SourceControl:
        return self._start(spec or self._upstream.spec(4, **self._settings, **settings), only_asks=True)

    def _start(self, spec: SourceSpec, *, only_asks: bool) -> SourceControl:
        assert spec.control is not None
        self._made.append(spec.control)
        materials = DirectoryMaterials(str(self._folder))
        context = SourceContext("input", "numbers", ReadOnlyMaterials(materials) if only_asks else materials)
        spec.control.bind(context)
        return spec.control

    def state(self) -> object:
        """Return what is upstream and what is kept beside the checkpoints."""
        kept = {path: path.read_bytes() for path in self._folder.rglob("*") if path.is_file()}
        return kept, self._folder.exists(), self._upstream.state()

    def close(self) -> None:
        for control in self._made:
            control.close()


@pytest.fixture(params=BEGINNINGS)
def starts(upstream: Log, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Starts]:
    found = Starts(upstream, tmp_path, dict(upstream.from_now_on) if request.param == BEGINNINGS[1] else {})
    yield found
    found.close()


def refused(ask: Ask, control: SourceControl) -> SourceError:
    with pytest.raises(SourceError) as caught:
        ask(control)
    return caught.value


def test_a_source_that_can_begin_is_asked_without_beginning(starts: Starts) -> None:
    """Goal: a start that is refused elsewhere leaves no slot and no snapshot. Method: compare, then begin."""
    before = starts.state()
    starts.asking().can_read(None)
    assert starts.state() == before
    begun = starts.acting().begin()
    after = starts.state()
    starts.asking().can_read(None)  # A start that died before it noted where it began.
    starts.asking().can_read(begun)
    assert starts.state() == after
    starts.acting().check(begun)
    assert starts.acting().start_options(begun)


def test_a_source_that_cannot_begin_says_so_when_it_is_asked(upstream: Log, starts: Starts) -> None:
    before = starts.state()
    asked = refused(lambda control: control.can_read(None), starts.asking(upstream.nowhere()))
    assert starts.state() == before
    acted = refused(lambda control: control.begin(), starts.asking(upstream.nowhere()))
    assert (type(asked), str(asked)) == (type(acted), str(acted))
    assert "nowhere" in str(asked)


def test_history_that_is_gone_is_told_as_a_check_tells_it(upstream: Log, starts: Starts) -> None:
    """Goal: the question answers for the act. Method: lose what comes next; ask, compare, then check."""
    begun = starts.acting().begin()
    upstream.add(4, 5)
    starts.asking().can_read(begun)
    upstream.forget()
    upstream.add(6)
    before = starts.state()
    asked = refused(lambda control: control.can_read(begun), starts.asking())
    assert starts.state() == before
    acted = refused(lambda control: control.check(begun), starts.acting())
    assert (type(asked), type(acted)) == (SourceHistoryLost, SourceHistoryLost)
    assert without_the_end(asked) == without_the_end(acted)
    starts.asking().can_read(starts.acting().head())


def without_the_end(error: SourceError) -> str:
    """Return what is said, apart from where a server's log ends: that moves on by itself."""
    return re.sub(r" to [\w.-]+:\d+.*", "", str(error))


def test_a_person_who_goes_on_without_is_not_refused(upstream: Log, starts: Starts) -> None:
    """Goal: also then nothing changes yet: no new slot, no word that the rest was given up."""
    begun = starts.acting().begin()
    upstream.add(4, 5)
    upstream.forget()
    before = starts.state()
    starts.asking(on_history_lost="continue").can_read(begun)
    assert starts.state() == before
    starts.acting(on_history_lost="continue").check(begun)
