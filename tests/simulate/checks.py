"""What must be true of a world, told from what happened in it. Nothing here asks the code under test.

Each checker has a name, and can be left out by it.
"""

from collections.abc import Iterable

from holdfast.testing.recording_sink import Row
from simulate.targets import Target
from simulate.worlds import RULES, SimulatedProcess, SimulatedWorld

ROWS = "rows"
"""No sink differs from the undisturbed run of what was decided."""
REFUSALS = "refusals"
"""A start that is refused changed nothing."""
ADVICE = "advice"
"""A start goes on, or says what to do, and doing that helps."""
VALID = "valid"
"""What is called valid starts."""
FENCED = "fenced"
"""Who was replaced shows nothing any more."""
CRASHED = "internal"
"""No error but our own leaves the code under test."""
CHECKERS = (ROWS, REFUSALS, ADVICE, VALID, FENCED, CRASHED)


class Broken(AssertionError):
    """A promise was broken."""

    def __init__(self, checker: str, what: str) -> None:
        self.checker = checker
        super().__init__(f"{checker}: {what}")


class Judge:
    """Judges a world, by the checkers that are on."""

    def __init__(self, without: Iterable[str] = ()) -> None:
        self._checkers = set(CHECKERS) - set(without)

    def demand(self, checker: str, holds: bool, what: str) -> None:
        if not holds and checker in self._checkers:
            raise Broken(checker, what)

    def wants(self, checker: str) -> bool:
        return checker in self._checkers

    def at_rest(self, world: SimulatedWorld) -> None:
        """Look at every target, whoever runs: right rows, in order, once, and no hole before the last one."""
        for name in RULES:
            self._well_formed(world, world.target(name))

    def _well_formed(self, world: SimulatedWorld, target: Target) -> None:
        expected = undisturbed(world, target.name)
        for timeline in dict.fromkeys(shown.timeline for shown in target.held.shown):
            rows = [row for shown in target.held.shown if shown.timeline == timeline for row in shown.rows]
            ids = [row["id"] for row in rows]
            self.demand(ROWS, ids == sorted(set(ids)), f"{target.name} shows {ids}")
            wrong = [row for row in rows if row != expected.get(row["id"])]
            self.demand(ROWS, not wrong, f"{target.name} shows {wrong}, expected others")
        record = target.held.record
        if record is not None and record.range_digest is not None and not record.base:
            end = world.spans[record.range_digest].stop
            self._complete(world, target, end, f"its ledger is at epoch {record.epoch}")

    def _complete(self, world: SimulatedWorld, target: Target, end: int, why: str) -> None:
        expected = {id for id in undisturbed(world, target.name) if id <= end}
        shown = {row["id"] for row in target.ours()}
        excused = {number + 1 for number in world.excused[target.name]}
        self.demand(
            ROWS, not expected - shown - excused, f"{target.name} lacks {sorted(expected - shown - excused)}: {why}"
        )
        self.demand(ROWS, not shown - expected, f"{target.name} shows {sorted(shown - expected)} too early: {why}")

    def alive(self, world: SimulatedWorld, process: SimulatedProcess) -> None:
        """Look at the targets of a process that just started, or sealed an epoch: they stand where it stands."""
        for name in process.sinks:
            why = f"process {process.number} stands at epoch {process.epoch}, record {process.position}"
            self._complete(world, world.target(name), process.position, why)

    def went_on(self, process: SimulatedProcess) -> None:
        """Look at where a start goes on that nobody told to go back: nothing that was decided is done again."""
        if process.options.from_id is not None or process.options.fresh:
            return
        if process.simulated.has_copies:
            return  # The other copy may have gone back, and the ledgers tell.
        if any(other is not process for other in process.site.words):
            return  # What a person said may be sealed already: then what follows from it is the next start's as well.
        decided = process.promised()
        self.demand(
            ROWS,
            process.position >= decided,
            f"process {process.number} goes on from record {process.position}, {decided} was decided",
        )


def undisturbed(world: SimulatedWorld, name: str) -> dict[int, Row]:
    """Return every row that a sink would show if nothing had ever happened, by its record."""
    rows: dict[int, Row] = {}
    for number, record in enumerate(world.source.records, 1):
        row = RULES[name](record, number)
        if row is not None:
            rows[number] = row
    return rows
