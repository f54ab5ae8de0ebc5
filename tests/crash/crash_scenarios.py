"""What a store is asked to do while it crashes. The same scenarios run on a disk and in a bucket."""

from collections.abc import Callable
from dataclasses import dataclass

from crash_lab import AuditedStore, BucketWorld, DiskWorld, Ledger, World, Writer, begin_phase, files_of

from holdfast.core.sidecar import Mover
from holdfast.testing import Interceptor


@dataclass(frozen=True)
class Scenario:
    """`setup` runs on a calm machine, `act` is where the crash comes. `small` ones get every product in full."""

    name: str
    setup: Callable[[Writer], None]
    act: Callable[[Writer], None]
    retain: int | None = None
    small: bool = False

    def prepared(self, world: World) -> tuple[World, Ledger]:
        """Return a settled world with the setup done."""
        begin_phase(f"{self.name}/setup")
        ledger = Ledger()
        self.setup(Writer(AuditedStore(world, ledger)))
        world.settle()
        return world, ledger

    def run(
        self, world: World, ledger: Ledger, interceptor: Interceptor | None = None, *, patience: int = 0
    ) -> Writer:
        """Do the act; what is raised on the way is the caller's."""
        begin_phase(f"{self.name}/act")
        writer = Writer(AuditedStore(world, ledger, interceptor, retain=self.retain), patience=patience)
        writer.adopt()
        self.act(writer)
        return writer


def _nothing(writer: Writer) -> None:
    pass


def _opened(writer: Writer) -> None:
    writer.open()


def _one(writer: Writer) -> None:
    writer.open()
    writer.save_state()
    writer.commit()


def _chain(count: int) -> Callable[[Writer], None]:
    def setup(writer: Writer) -> None:
        writer.open()
        for _ in range(count):
            writer.save_chain(files_of(writer.epoch + 1))
            writer.commit()

    return setup


def _with_leftovers(writer: Writer) -> None:
    """Checkpoints, and beside them what dead writers leave: a staged sidecar, a lost race, a lone sidecar."""
    writer.open()
    writer.save_state()
    medium = writer.store._medium
    writer.store.save_state_data(writer.last_id + 1, [b"nobody came back for this"])
    writer.last_id += 1
    for data in (b"dead", b"dead too"):
        medium.stage(writer.last_id + 1, [data], len(data))
    medium.stage(writer.last_id + 1, None, 0)
    writer.save_chain(files_of(2))
    writer.commit()


def _first_save(writer: Writer) -> None:
    writer.open()
    writer.save_state()


def _save(writer: Writer) -> None:
    writer.save_inline()


def _save_with_state(writer: Writer) -> None:
    writer.save_state(size=100)


def _two_steps(writer: Writer) -> None:
    writer.save_in_two_steps()


def _update(writer: Writer) -> None:
    writer.commit()
    writer.name(writer.last_id, "before-the-upgrade")
    writer.name(writer.last_id, None)
    writer.name(writer.last_id, "again")


def _savepoint(writer: Writer) -> None:
    first = writer.last_id - 3
    writer.name(first, "keep-me")
    writer.prune(1)
    writer.save_chain(files_of(writer.epoch + 1))
    writer.prune(1)
    writer.name(first, None)
    writer.prune(1)


def _prune(writer: Writer) -> None:
    writer.prune(2)


def _retain(writer: Writer) -> None:
    for _ in range(2):
        writer.save_chain(files_of(writer.epoch + 1))


def _orphans(writer: Writer) -> None:
    writer.cleanup()


def _incremental(writer: Writer) -> None:
    for _ in range(3):
        writer.save_chain(files_of(writer.epoch + 1))
        writer.commit()


def _compaction(writer: Writer) -> None:
    mover = Mover(chain_length=2)
    for _ in range(3):
        writer.save_chain(files_of(writer.epoch + 1), mover)
        writer.prune(1)


def _fence(writer: Writer) -> None:
    writer.open()
    writer.take_over()
    writer.save_chain(files_of(writer.epoch + 1))


def _fresh(writer: Writer) -> None:
    writer.open()
    writer.take_over(fresh=True)
    writer.save_state()
    writer.save_state()
    writer.prune(1)


SCENARIOS = (
    Scenario("first save", _nothing, _first_save),
    Scenario("first fence", _nothing, _fence),
    Scenario("save", _one, _save),
    Scenario("save_with_state", _one, _save_with_state, small=True),
    Scenario("two steps", _one, _two_steps),
    Scenario("update", _one, _update),
    Scenario("savepoint", _chain(6), _savepoint),
    Scenario("prune", _chain(9), _prune),
    Scenario("retain", _chain(4), _retain, retain=2),
    Scenario("orphan clean-up", _with_leftovers, _orphans),
    Scenario("incremental chain", _one, _incremental),
    Scenario("compaction", _chain(5), _compaction),
    Scenario("fence", _chain(3), _fence),
    Scenario("fresh", _chain(2), _fresh),
)


def new_world(kind: str) -> World:
    """Return an empty machine or bucket."""
    return DiskWorld() if kind == "disk" else BucketWorld()
