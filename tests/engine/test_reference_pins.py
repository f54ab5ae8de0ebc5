"""Which version of a reference table an epoch is joined with, and which copies stay in the store."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointManifest, open_store
from holdfast.core.contracts import Owner
from holdfast.core.entries import ConnectorCheckpoint
from holdfast.core.sources import Materials
from holdfast.core.tables import TABLES_PART, TableForm, TableVersion, pins_to_part
from holdfast.engine.coordinator import RecordedEpoch
from holdfast.engine.tables import ReferenceTables, TableImage, TableUse
from holdfast.errors import SourceError, SourceHistoryLost, SourceUnavailable
from holdfast.stores.materials import open_materials
from holdfast.testing import ManualClock
from stores.places import BUCKET, S3_OPTIONS

TIMELINE = uuid.UUID(int=7)
Positions = dict[str, ConnectorCheckpoint]


class Content:
    """A table whose version is its content."""

    connector, copied = "content", True
    form = TableForm("csv")

    def __init__(self, text: str = "old") -> None:
        self.text = text
        self.name = "first"
        self.failure: Exception | None = None
        self.reads = 0

    def identity(self) -> dict[str, object]:
        return {"name": self.name}

    def newest(self) -> TableVersion | None:
        return None

    def fetch(self, version: TableVersion | None, directory: str) -> TableVersion:
        if self.failure is not None:
            raise self.failure
        self.reads += 1
        Path(directory, "part.csv").write_text(self.text)
        Path(directory, "index.json").write_text("A name that copies use for themselves.")
        return TableVersion()


class Numbered(Content):
    """A table that keeps numbered versions, until they are taken from it."""

    connector, copied = "numbered", False

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.versions = dict(enumerate(texts))
        self.table_id = "one"

    def newest(self) -> TableVersion | None:
        if self.failure is not None:
            raise self.failure
        return TableVersion({"version": str(max(self.versions))}, {"table_id": self.table_id})

    def fetch(self, version: TableVersion | None, directory: str) -> TableVersion:
        assert version is not None
        number = int(version.offsets["version"])
        if number not in self.versions:
            raise SourceHistoryLost(f"version {number} was vacuumed")
        self.text = self.versions[number]
        super().fetch(None, directory)
        return TableVersion({"version": str(number)}, {"table_id": self.table_id})


class Life:
    """One run of a pipeline with one table, `t`, on a store in a directory."""

    def __init__(
        self,
        base: Path,
        spec: Any,
        clock: ManualClock,
        refresh: float | None = 600.0,
        materials: Materials | None = None,
    ) -> None:
        self.base = base
        self.tables = ReferenceTables(
            {"t": TableUse(spec, refresh)},
            materials or open_materials(str(base / "materials")),
            str(base / f"scratch-{uuid.uuid4()}"),
            clock,
        )

    def start(
        self, recorded: Positions | None = None, generation: int = 1, chosen: Positions | None = None
    ) -> "Life":
        recorded = recorded or {}
        self.tables.look(recorded)
        self.tables.taken_over(Owner("p", TIMELINE, generation), recorded if chosen is None else chosen)
        return self

    def epoch(self, number: int = 1, recorded: Positions | None = None) -> tuple[str, Positions]:
        """Return what an epoch is joined with, and what it leaves in the manifest."""
        parts = {} if recorded is None else {TABLES_PART: pins_to_part(recorded)}
        record = None if recorded is None else RecordedEpoch(number, parts, "a test")
        image = self.tables.for_epoch(number, record)["t"]
        return _text(image), {"t": image.pin.to_checkpoint(number)}

    @property
    def copies(self) -> list[str]:
        found = (self.base / "materials").glob("*/tables/t/*/index.json")
        return sorted(path.parent.name for path in found)


def _text(image: TableImage) -> str:
    return Path(image.folder, "part.csv").read_text()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def life(tmp_path: Path, clock: ManualClock) -> Callable[..., Life]:
    return lambda spec, **options: Life(tmp_path, spec, clock, **options)


# --- refreshing


def test_a_version_stays_until_the_interval_has_passed(life: Callable[..., Life], clock: ManualClock) -> None:
    spec = Content()
    here = life(spec).start()
    spec.text = "new"
    clock.advance(599)
    assert here.epoch()[0] == "old"
    clock.advance(1)
    text, positions = here.epoch()
    assert text == "new"
    assert positions["t"].metadata["taken_ms"] == str(clock.now_ms())


def test_an_interval_goes_on_in_the_next_run(life: Callable[..., Life], clock: ManualClock) -> None:
    spec = Content()
    _, recorded = life(spec).start().epoch()
    spec.text = "new"
    clock.advance(599)
    here = life(spec).start(recorded, generation=2)
    assert here.epoch()[0] == "old"
    assert spec.reads == 1
    clock.advance(1)
    assert here.epoch()[0] == "new"


def test_without_an_interval_a_table_is_looked_at_once_in_every_run(
    life: Callable[..., Life], clock: ManualClock
) -> None:
    spec = Content()
    here = life(spec, refresh=None).start()
    spec.text = "new"
    clock.advance(1_000_000)
    text, recorded = here.epoch()
    assert text == "old"
    assert life(spec, refresh=None).start(recorded, generation=2).epoch()[0] == "new"


def test_a_table_that_did_not_change_keeps_its_version_and_its_copy(
    life: Callable[..., Life], clock: ManualClock
) -> None:
    spec = Content()
    here = life(spec).start()
    before, after = here.epoch()[1], None
    folder = here.tables.for_epoch(1, None)["t"].folder
    clock.advance(600)
    after = here.epoch(2)[1]
    assert spec.reads == 2
    assert after["t"].metadata["copy"] == before["t"].metadata["copy"]
    assert after["t"].metadata["taken_ms"] != before["t"].metadata["taken_ms"]
    assert here.tables.for_epoch(2, None)["t"].folder == folder, "whoever reads it need not begin anew"


def test_a_table_that_does_not_answer_keeps_the_version_in_use_and_is_left_alone_for_a_minute(
    life: Callable[..., Life], clock: ManualClock
) -> None:
    spec = Content()
    here = life(spec).start()
    spec.failure = SourceUnavailable("no answer")
    clock.advance(600)
    assert here.epoch()[0] == "old"
    spec.failure, spec.text = None, "new"
    clock.advance(59)
    assert here.epoch()[0] == "old"
    clock.advance(1)
    assert here.epoch()[0] == "new"


def test_a_run_can_start_while_the_table_does_not_answer(life: Callable[..., Life], clock: ManualClock) -> None:
    spec = Content()
    _, recorded = life(spec).start().epoch()
    spec.failure = SourceUnavailable("no answer")
    clock.advance(600)
    assert life(spec).start(recorded, generation=2).epoch()[0] == "old"


def test_a_table_that_was_never_read_must_answer(life: Callable[..., Life]) -> None:
    spec = Content()
    spec.failure = SourceUnavailable("no answer")
    with pytest.raises(SourceUnavailable, match="table 't': no answer"):
        life(spec).start()


def test_what_will_not_pass_stops_the_pipeline(life: Callable[..., Life], clock: ManualClock) -> None:
    spec = Content()
    here = life(spec).start()
    spec.failure = SourceError("no such column")
    clock.advance(600)
    with pytest.raises(SourceError, match="table 't': no such column"):
        here.epoch()


def test_another_definition_is_looked_at_at_once(life: Callable[..., Life]) -> None:
    spec = Content()
    _, recorded = life(spec).start().epoch()
    spec.name, spec.text = "second", "of another table"
    assert life(spec).start(recorded, generation=2).epoch()[0] == "of another table"


# --- replaying


@pytest.mark.parametrize("make", [lambda: Content(), lambda: Numbered("old")], ids=["copied", "kept by the table"])
def test_a_replay_joins_the_recorded_version_and_the_next_epoch_the_new_one(
    make: Callable[[], Any], life: Callable[..., Life], clock: ManualClock
) -> None:
    spec = make()
    _, recorded = life(spec).start().epoch(7)
    spec.text = "new"
    if isinstance(spec, Numbered):
        spec.versions[1] = "new"
    clock.advance(600)
    here = life(spec).start(recorded, generation=2)
    assert here.epoch(7, recorded)[0] == "old"
    assert here.epoch(7, recorded)[1]["t"].offsets == recorded["t"].offsets
    text, after = here.epoch(8)
    assert text == "new"
    assert after["t"].offsets != recorded["t"].offsets


def test_a_replay_joins_its_own_version_and_not_that_of_the_checkpoint_before(
    life: Callable[..., Life], clock: ManualClock
) -> None:
    spec = Content("first")
    here = life(spec).start()
    _, before = here.epoch(6)
    spec.text = "second"
    clock.advance(600)
    _, recorded = here.epoch(7)
    spec.text = "third"
    clock.advance(600)
    there = life(spec).start(before, generation=2)
    assert there.epoch(7, recorded)[0] == "second"
    assert there.epoch(8)[0] == "third"


def test_what_is_not_recorded_is_what_the_checkpoint_before_was_joined_with(
    life: Callable[..., Life], clock: ManualClock
) -> None:
    spec = Content()
    _, recorded = life(spec).start().epoch(7)
    spec.text = "new"
    clock.advance(600)
    here = life(spec).start(recorded, generation=2)
    assert here.epoch(8, {})[0] == "old"


def test_a_recorded_version_that_the_table_gave_up_stops_the_replay_and_names_the_way_out(
    life: Callable[..., Life], clock: ManualClock
) -> None:
    spec = Numbered("old")
    _, recorded = life(spec).start().epoch(7)
    spec.versions = {1: "new"}
    clock.advance(600)
    asked = life(spec)
    asked.tables.look(recorded)
    before = asked.copies
    with pytest.raises(SourceHistoryLost, match=r"epoch 7 .* table 't' at version 0"):
        asked.tables.ask({}, [RecordedEpoch(7, {TABLES_PART: pins_to_part(recorded)}, "a test")])
    assert asked.copies == before
    here = life(spec).start(recorded, generation=2)
    with pytest.raises(
        SourceHistoryLost, match=r"epoch 7 .* table 't' at version 0, .* version 0 was vacuumed\..*--from"
    ):
        here.epoch(7, recorded)


def test_asking_for_an_old_version_leaves_the_new_one_at_hand(life: Callable[..., Life], clock: ManualClock) -> None:
    """The table itself keeps no versions: what was just read of it could not be read again."""
    spec = Content("old")
    _, recorded = life(spec).start().epoch(1)
    spec.text = "new"
    clock.advance(600)
    here = life(spec)
    here.tables.look(recorded)
    spec.text = "newer"
    here.tables.ask({}, [RecordedEpoch(1, {TABLES_PART: pins_to_part(recorded)}, "a test")])
    here.tables.taken_over(Owner("p", TIMELINE, 2), recorded)
    assert here.epoch(2)[0] == "new"


def test_an_epoch_that_was_never_decided_takes_a_newer_version_for_one_that_is_gone(
    life: Callable[..., Life],
) -> None:
    spec = Numbered("old")
    _, recorded = life(spec).start().epoch(7)
    spec.versions = {1: "new"}
    here = life(spec).start(recorded, generation=2)
    assert here.epoch(8)[0] == "new"


def test_a_table_that_was_replaced_by_another_has_no_version_of_the_first(life: Callable[..., Life]) -> None:
    spec = Numbered("old")
    _, recorded = life(spec).start().epoch(7)
    spec.table_id = "another"
    here = life(spec).start(recorded, generation=2)
    with pytest.raises(SourceHistoryLost, match="another table in its place"):
        here.epoch(7, recorded)


def test_a_recorded_version_of_another_kind_of_table_is_gone(life: Callable[..., Life]) -> None:
    _, recorded = life(Numbered("old")).start().epoch(7)
    here = life(Content()).start(recorded, generation=2)
    with pytest.raises(SourceHistoryLost, match="was a numbered table and is a content table now"):
        here.epoch(7, recorded)


def test_versions_can_be_copied_although_the_table_keeps_them(life: Callable[..., Life]) -> None:
    spec = Numbered("old")
    _, uncopied = life(spec).start().epoch(7)
    assert "copy" not in uncopied["t"].metadata
    spec.copied = True
    _, recorded = life(spec).start(uncopied, generation=2).epoch(8)
    assert recorded["t"].offsets == {"version": "0"}
    spec.versions = {1: "new"}
    assert life(spec).start(recorded, generation=3).epoch(8, recorded)[0] == "old"


# --- copies


def test_a_copy_is_read_again_byte_for_byte(life: Callable[..., Life], tmp_path: Path) -> None:
    spec = Content()
    _, recorded = life(spec).start().epoch(7)
    [part] = (tmp_path / "materials").rglob("part.csv")
    part.write_text("0ld")
    spec.text = "new"
    with pytest.raises(SourceHistoryLost, match=r"is damaged: part\.csv"):
        life(spec).start(recorded, generation=2).epoch(7, recorded)


@pytest.mark.parametrize(
    ("name", "reason"), [("*/tables/t/*/index.json", "not in the store"), ("**/part.csv", "lacks the file")]
)
def test_a_copy_that_is_not_whole_is_gone(name: str, reason: str, life: Callable[..., Life], tmp_path: Path) -> None:
    spec = Content()
    _, recorded = life(spec).start().epoch(7)
    [path] = (tmp_path / "materials").glob(name)
    path.unlink()
    spec.text = "new"
    here = life(spec).start(recorded, generation=2)
    with pytest.raises(SourceHistoryLost, match=reason):
        here.epoch(7, recorded)


def test_a_lost_copy_does_not_matter_while_the_table_still_has_that_content(
    life: Callable[..., Life], tmp_path: Path
) -> None:
    spec = Content()
    _, recorded = life(spec).start().epoch(7)
    [path] = (tmp_path / "materials").rglob("part.csv")
    path.unlink()
    assert life(spec).start(recorded, generation=2).epoch(7, recorded)[0] == "old"


def test_an_index_that_was_edited_is_noticed(life: Callable[..., Life], tmp_path: Path) -> None:
    spec = Content()
    _, recorded = life(spec).start().epoch(7)
    [path] = (tmp_path / "materials").glob("*/tables/t/*/index.json")
    path.write_text(path.read_text().replace('"size":3', '"size":4'))
    spec.text = "new"
    with pytest.raises(SourceHistoryLost, match="the index does not have its digest"):
        life(spec).start(recorded, generation=2).epoch(7, recorded)


def test_a_copy_on_object_storage_is_brought_here(
    s3_endpoint: str, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a start on another machine replays with the recorded version. Method: a bucket, and nothing else left."""
    for key, value in {**S3_OPTIONS, "endpoint": s3_endpoint, "allow_http": "true"}.items():
        monkeypatch.setenv(f"AWS_{key.upper()}", value)
    materials = open_materials(f"s3://{BUCKET}/{uuid.uuid4()}/materials")
    spec = Content()
    _, recorded = Life(tmp_path / "one", spec, clock, materials=materials).start().epoch(7)
    spec.text = "new"
    clock.advance(600)
    there = Life(tmp_path / "other", spec, clock, materials=materials).start(recorded, generation=2)
    assert there.epoch(7, recorded)[0] == "old"
    assert there.epoch(8)[0] == "new"
    store = open_store("memory://")
    _seal(store, 1, there.epoch(8)[1])
    assert there.tables.remove_unneeded(store) == 1
    assert there.epoch(9)[0] == "new"


def test_nothing_is_written_into_a_store_that_was_not_taken_over(life: Callable[..., Life], tmp_path: Path) -> None:
    life(Content()).tables.look({})
    assert not (tmp_path / "materials").exists()


def test_the_scratch_folder_goes_with_the_run(life: Callable[..., Life], clock: ManualClock, tmp_path: Path) -> None:
    spec = Content()
    here = life(spec).start()
    for number in range(3):
        spec.text = str(number)
        clock.advance(600)
        here.epoch()
    [scratch] = tmp_path.glob("scratch-*")
    assert len(os.listdir(scratch)) == 1, "one image of a table at a time"
    here.tables.close()
    assert not scratch.exists()


# --- what is not needed any more


def _seal(store: Any, id: int, positions: Positions) -> None:
    store.save(CheckpointManifest.new(id, id).model_copy(update={"table_offsets": positions}))


def test_copies_stay_as_long_as_a_checkpoint_names_them(life: Callable[..., Life], clock: ManualClock) -> None:
    """Goal: prune takes copies along, and no other. Method: three versions, fewer and fewer of them named."""
    spec, store = Content(), open_store("memory://")
    here = life(spec).start()
    for id in (1, 2, 3):
        spec.text = str(id)
        clock.advance(600)
        _seal(store, id, here.epoch(id)[1])
    assert len(here.copies) == 4, "the one that was taken at the start is in no checkpoint"
    assert here.tables.remove_unneeded(store) == 1
    store.prune(1)
    kept = len(store.list_ids())
    here.tables.remove_unneeded(store)
    assert len(here.copies) == kept < 3
    assert here.epoch(4)[0] == "3"


def test_a_copy_that_no_checkpoint_names_yet_stays_while_it_is_in_use(
    life: Callable[..., Life], clock: ManualClock
) -> None:
    spec, store = Content(), open_store("memory://")
    here = life(spec).start()
    _seal(store, 1, here.epoch(1)[1])
    spec.text = "new"
    clock.advance(600)
    _, unsealed = here.epoch(2)
    here.tables.remove_unneeded(store)
    assert unsealed["t"].metadata["copy"].rpartition("/")[2] in here.copies


def test_nothing_goes_while_a_manifest_is_damaged(life: Callable[..., Life], tmp_path: Path) -> None:
    spec, store = Content(), open_store(tmp_path / "store")
    here = life(spec).start()
    _seal(store, 1, here.epoch(1)[1])
    _seal(store, 2, {})
    path = tmp_path / "store" / "checkpoints" / "checkpoint_000001" / "manifest.json"
    path.write_text(path.read_text().replace('"epoch": 1', '"epoch": 3'))
    other = Content("another")
    there = life(other).start(generation=2)
    assert there.tables.remove_unneeded(store) == 0
    assert len(there.copies) == 2


def test_a_writer_that_was_replaced_leaves_the_copies_of_its_successor_alone(life: Callable[..., Life]) -> None:
    """The successor has not sealed an epoch yet, so no checkpoint names what it is about to use."""
    spec, store = Content(), open_store("memory://")
    replaced = life(spec).start()
    _seal(store, 1, replaced.epoch(1)[1])
    spec.text = "new"
    successor = life(spec, refresh=None).start(generation=2)
    _, unsealed = successor.epoch(2)
    replaced.tables.remove_unneeded(store)
    assert unsealed["t"].metadata["copy"].rpartition("/")[2] in successor.copies


def test_a_start_goes_on_only_with_copies_that_the_chosen_checkpoint_names(life: Callable[..., Life]) -> None:
    """The newest manifest was passed over by recovery: whoever prunes it may remove its copies as well."""
    spec = Content()
    _, passed_over = life(spec, refresh=None).start().epoch(2)
    _, going_on = life(spec, refresh=None).start(passed_over, generation=2, chosen={}).epoch(2)
    assert passed_over["t"].metadata["copy"].rpartition("/")[2].startswith("1-")
    assert going_on["t"].metadata["copy"].rpartition("/")[2].startswith("2-")
    assert going_on["t"].offsets == passed_over["t"].offsets
