"""A process that runs for months does not become larger with every epoch: with a bucket beside its store."""

from pathlib import Path

from engine.growth import grown, sizes
from holdfast.engine.sync.push import newest_settled
from holdfast.engine.sync.retention import BucketRetention
from sync.machines import Fleet, running

FEW, MANY = 30, 70


def test_nothing_that_a_process_holds_grows_with_its_epochs(tmp_path: Path) -> None:
    """Goal: whatever is remembered is let go. Method: epochs, pushes, prunes; measure all containers twice."""
    fleet = Fleet(tmp_path, 2 * MANY + 2)
    machine = fleet.machine(standby=True, push_interval="1 minute", retention_min_count=3)
    link = machine.link()
    retention = BucketRetention(fleet.bucket(), machine.settings, link.catalogue, fleet.world.clock)
    with running(machine) as process:

        def run(epochs: int) -> dict[str, int]:
            for number in range(epochs):
                assert process.next_epoch()
                link.local.materials.put(f"{process.started.owner.timeline}/tables/{number}", b"rows")
                newest = newest_settled(process.store)
                assert newest is not None
                with process.store.held(newest.checkpoint_id):
                    link.pusher.push(newest)
                process.store.prune(3)
                retention.prune()
                fleet.world.clock.advance(60)
            machine.requests.labels.clear()
            process.life.events.clear()
            return sizes(process.writer, process.coordinator, process.store, process.sync, process.witness, link)

        before = run(FEW)
        assert grown(before, run(MANY - FEW), by=(MANY - FEW) // 2) == {}
