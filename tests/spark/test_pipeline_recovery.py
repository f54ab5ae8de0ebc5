"""What can happen to a store, a disk or a sink between two runs, and that nothing is lost or doubled by it."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import open_store
from holdfast.engine.events import EpochCommitted, StepFinished, StepStarted
from holdfast.engine.startup import StartOptions
from holdfast.errors import (
    ApprovalNeeded,
    CorruptCheckpoint,
    Fenced,
    ForeignTimeline,
    NoValidCheckpoint,
    PipelineError,
    SinkBehind,
)
from marks import long
from spark.conftest import Lab, flip

Undisturbed = Callable[[str, int], dict[str, Any]]
Labs = Callable[[str], Lab]


def test_a_deleted_working_directory_costs_nothing(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 3)
    here.run((2, StepFinished, "seal", None))
    shutil.rmtree(here.base / "work")
    here.add(3, 5)
    assert here.run()
    assert here.contents() == undisturbed("windows", 5)


def test_a_store_can_be_moved(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 3)
    assert here.run()
    shutil.rmtree(here.base / "work")
    (here.base / "store").rename(here.base / "elsewhere")
    here.add(3, 5)
    assert here.run(options={"store": here.base / "elsewhere"})
    assert here.contents() == undisturbed("windows", 5)


def _damage(lab: Lab, what: str) -> None:
    newest = lab.checkpoints[-1]
    if "manifest" in what:
        flip(newest / "manifest.json", 300)
    if "progress" in what:
        flip(newest / "state.bin", 100)
    if "state" in what:
        flip(newest / "state.bin", (newest / "state.bin").stat().st_size - 3)
    if "work" in what:
        shutil.rmtree(lab.base / "work")


@pytest.mark.parametrize("kind", ["windows", *long("fan_out")])
@pytest.mark.parametrize(
    "what",
    [
        "manifest",
        "state work",
        *long("progress", "state", "manifest work", "progress work", "manifest progress work"),
    ],
)
def test_a_newest_checkpoint_damaged_after_its_sinks_committed(
    kind: str, what: str, lab: Labs, undisturbed: Undisturbed
) -> None:
    here = lab(kind)
    here.add(0, 3)
    assert here.run()
    damaged = int(here.checkpoints[-1].name.removeprefix("checkpoint_"))
    _damage(here, what)
    here.add(3, 5)
    assert here.run()
    assert damaged in [entry["checkpoint_id"] for entry in here.last_report["skipped"]]
    assert here.contents() == undisturbed(kind, 5)


def test_two_epochs_damaged_are_replayed_one_by_one(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 4)
    assert here.run()
    for checkpoint in here.checkpoints[-2:]:
        flip(checkpoint / "state.bin", (checkpoint / "state.bin").stat().st_size - 3)
    here.add(4, 6)
    assert here.run()
    assert len(here.last_report["replays"]) == 2
    assert here.contents() == undisturbed("windows", 6)


def test_when_every_checkpoint_is_damaged_it_refuses_and_names_the_way_out(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 2)
    assert here.run()
    for checkpoint in here.checkpoints:
        flip(checkpoint / "manifest.json", 300)
    with pytest.raises(NoValidCheckpoint, match="--fresh"):
        here.run()


def test_one_edited_digit_of_an_offset_is_caught(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 3)
    assert here.run()
    manifest = here.checkpoints[-1] / "manifest.json"
    text = manifest.read_text()
    assert '"log_offset": "2"' in text
    manifest.write_text(text.replace('"log_offset": "2"', '"log_offset": "1"'))
    here.add(3, 4)
    assert here.run()
    assert "checksum mismatch" in here.last_report["skipped"][0]["reason"]
    assert here.contents() == undisturbed("windows", 4)


@pytest.mark.parametrize("step", ["recovery.fence", *long("recovery.claim", "recovery.settle", "recovery.restore")])
def test_a_recovery_that_dies_half_way_is_repeated(step: str, lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 3)
    here.run((2, StepFinished, "seal", None))
    assert not here.run((0, StepFinished, step, None))
    assert not here.run((0, StepStarted, step, None))
    assert here.run()
    assert here.contents() == undisturbed("windows", 3)


@pytest.mark.parametrize("step", ["seal", "commit", *long("begin", "prepare", "capture", "record")])
def test_a_second_writer_takes_over_and_the_first_is_told(step: str, lab: Labs, undisturbed: Undisturbed) -> None:
    """The second one takes over while the first stands before a step; the first must not double or lose a row."""
    here = lab("windows")
    here.add(0, 3)

    class SecondWriter:
        ran = False

        def on_event(self, event: Any) -> None:
            if isinstance(event, StepStarted) and event.epoch == 2 and event.step == step and not self.ran:
                self.ran = True
                second = here.pipeline(work_dir=here.base / "work2").runner(StartOptions())
                second.prepare()
                second.close()

    with pytest.raises(Fenced):
        here.pipeline().run(once=True, observers=[SecondWriter()])
    assert here.run()
    assert here.contents() == undisturbed("windows", 3)


def test_a_writer_that_was_replaced_keeps_its_directory_and_is_told_who_won(
    lab: Labs, undisturbed: Undisturbed
) -> None:
    """Whoever takes over removes what earlier generations left, but nothing that a living process uses."""
    here = lab("windows")
    here.add(0, 3)

    class SecondWriter:
        ran, left = False, [""]

        def on_event(self, event: Any) -> None:
            if isinstance(event, EpochCommitted) and event.epoch == 2 and not self.ran:
                self.ran = True
                second = here.pipeline().runner(StartOptions())
                second.prepare()
                second.close()
                self.left = sorted(path.name for path in here.work.iterdir() if path.is_dir())

    replacing = SecondWriter()
    with pytest.raises(Fenced, match="another writer"):
        here.pipeline().run(once=True, observers=[replacing])
    assert replacing.left == ["1", "2"]
    assert here.run()
    assert sorted(path.name for path in here.work.iterdir() if path.is_dir()) == ["3"]
    assert here.contents() == undisturbed("windows", 3)


def test_a_target_restored_from_an_old_backup_is_refused_and_the_gap_named(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 2)
    assert here.run()
    shutil.copy(here.base / "app.db", here.base / "backup.db")
    here.add(2, 5)
    assert here.run()
    shutil.copy(here.base / "backup.db", here.base / "app.db")
    with pytest.raises(SinkBehind, match=r"sink 'db' stands at epoch \d+.*missing"):
        here.run()


def test_a_fresh_store_against_an_old_target_is_refused(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 2)
    assert here.run()
    shutil.rmtree(here.base / "store")
    shutil.rmtree(here.base / "work")
    with pytest.raises(ForeignTimeline):
        here.run()


def test_a_working_directory_of_a_store_that_is_gone_is_not_in_the_way(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 3)
    assert here.run()
    shutil.rmtree(here.base / "store")
    assert (here.work / "1").exists()
    assert here.run(sinks="rewind")
    assert here.contents() == undisturbed("windows", 3)


def test_a_fresh_start_can_rewind_the_old_targets(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 3)
    assert here.run()
    assert here.run(fresh=True, sinks="rewind")
    assert here.contents() == undisturbed("windows", 3)


def test_going_back_to_a_checkpoint_rewinds_the_sinks(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 4)
    assert here.run()
    early = next(m for m in open_store(here.base / "store", read_only=True).manifests() if m.epoch == 2)
    assert here.run(from_id=early.checkpoint_id)
    assert here.contents() == undisturbed("windows", 4)


def test_going_back_to_what_is_not_there_is_refused(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 1)
    assert here.run()
    flip(here.checkpoints[-1] / "state.bin", 100)
    with pytest.raises(CorruptCheckpoint):
        here.run(from_id=int(here.checkpoints[-1].name.removeprefix("checkpoint_")))


def test_a_sink_can_be_removed_and_added_again(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 2)
    assert here.run()
    without = here.pipeline()
    del without._definition.sinks["lake"]
    here.add(2, 3)
    without.run(once=True)
    here.add(3, 5)
    assert here.run()
    assert here.last_report["sinks"]["lake"].startswith("joins again")
    expected = undisturbed("windows", 5)
    found = here.contents()
    assert found["db"] == expected["db"]
    assert found["raw"] == expected["raw"]
    assert set(found["lake"]) < set(expected["lake"])
    assert len(found["lake"]) == len(set(found["lake"]))


def test_a_new_sink_starts_with_the_next_epoch(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 2)
    without = here.pipeline()
    del without._definition.sinks["lake"]
    without.run(once=True)
    here.add(2, 4)
    assert here.run()
    assert here.last_report["sinks"]["lake"] == "new"
    assert here.contents()["db"] == undisturbed("windows", 4)["db"]


def test_a_changed_aggregate_needs_approval(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 1)
    assert here.run()
    changed = here.pipeline()
    definition = changed._definition
    definition.views.clear()
    definition.add_view(
        "revenue", "SELECT window(ts, '1 minute') w, customer, max(amount) total FROM orders GROUP BY ALL"
    )
    with pytest.raises(ApprovalNeeded, match=r"(?s)sum\(amount\).*max\(amount\).*holdfast approve"):
        changed.run(once=True)


def test_another_number_of_state_partitions_is_refused_before_spark_is_asked(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 1)
    assert here.run()
    with pytest.raises(PipelineError, match="state partitions: was 2, is 3"):
        here.run(options={"state_partitions": 3})


def test_the_manifest_is_complete_and_true(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 3)
    assert here.run()
    manifest = open_store(here.base / "store", vnode_count=2, read_only=True).load_latest()
    assert manifest is not None
    assert manifest.validate(2) == []
    assert manifest.source_offsets["orders"].offsets == {"log_offset": "2"}
    assert manifest.source_names == ["orders"]
    assert manifest.sink_names == ["db", "lake", "raw"]
    assert {str(status) for status in manifest.sink_commit_statuses.values()} == {"Committed"}
    assert manifest.processed_records == 180
    newest_order = 1704067200000 + 179 * 4000
    assert manifest.watermark == newest_order - 60_000
    assert "state/0" in manifest.operator_states
    assert manifest.pipeline_hash == manifest.fingerprint
    assert manifest.steps == manifest.epoch
    assert manifest.timeline is not None
    assert manifest.generation == 1
    assert manifest.parent is not None


def test_an_epoch_is_sealed_before_any_sink_shows_it(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 2)
    order: list[str] = []

    class Watch:
        def on_event(self, event: Any) -> None:
            if isinstance(event, StepFinished) and event.epoch == 2:
                order.append(event.step if event.sink is None else f"{event.step}:{event.sink}")
            if isinstance(event, EpochCommitted) and event.epoch == 2:
                order.append("committed")

    here.pipeline().run(once=True, observers=[Watch()])
    assert all(order.index(step) < order.index("seal") for step in order if step.startswith(("prepare", "capture")))
    assert all(order.index("seal") < order.index(step) for step in order if step.startswith("commit:"))
    assert {"record", "committed"} <= set(order[order.index("commit") :])
