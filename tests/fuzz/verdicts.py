"""Runs a case on plain Spark and on Holdfast, and says how they differ.

A case ends in one of these: equal; refused by both; failed in both, with the same rows until then; or a finding,
which has a kind by which two of one cause are known.
"""

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import SparkSession

from fuzz.described import Case, Life, Sink
from fuzz.disturbances import DAMAGE
from fuzz.driven import Stage
from fuzz.judge import (
    Refusal,
    Values,
    as_json,
    as_sqlite,
    bad_refusal,
    difference,
    disagreement,
    newest_by_key,
    without,
)
from fuzz.plain import Undisturbed, undisturbed, write_input
from fuzz.shrinking import used

DISK_BYTES = 64 << 20
FREE_COLUMNS = ("r", "u", "t")
SEE_EVERYTHING = {
    "columns", "project", "union", "window", "session", "total", "distinct", "dedup", "dedup within", "udf",
    "state in pandas", "state with timers", "free", "rename", "nested",
}  # fmt: skip
"""Operators before which Spark filters nothing: a filter in front of a watermark hides rows from it."""
KNOWN_REFUSALS = {
    "has two columns named": "docs/pipelines.md: no sink could tell them apart",
    "needs a sink with a key": "docs/pipelines.md: update needs keyed sinks",
    "output mode 'update' replaces rows": "docs/pipelines.md: update needs keyed sinks",
}
"""What a first start may refuse although Spark would run it: what it says -> where that is documented."""


@dataclass
class Verdict:
    """What came of a case; `kind` is empty unless something is wrong."""

    outcome: str
    kind: str = ""
    said: str = ""
    done: Counter[str] = field(default_factory=Counter)

    @property
    def broken(self) -> bool:
        """Whether it is a finding."""
        return bool(self.kind)


class Found(Exception):
    """A difference."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(said)
        self.kind, self.said = kind, said


def judged(case: Case, spark: SparkSession) -> Verdict:
    """Let a case happen in a folder of its own, and judge it."""
    with _place(small=any(life.end == "full disk" for life in case.lives)) as base:
        stage = Stage(case, spark, base)
        try:
            outcome = _Trial(case, stage, spark).run()
        except Found as found:
            return Verdict("found", found.kind, found.said, stage.done)
        return Verdict(outcome, done=stage.done)


@contextlib.contextmanager
def _place(*, small: bool) -> Iterator[Path]:
    """Lend a folder, on a small disk if one is wanted and can be had."""
    base = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(base)]
    mounted = (
        small and shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
    )
    try:
        yield base
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(base)], check=False)
        shutil.rmtree(base, ignore_errors=True)


class _Trial:
    def __init__(self, case: Case, stage: Stage, spark: SparkSession) -> None:
        self._case, self._stage, self._spark = case, stage, spark
        self._came_at: dict[str, int] = {}
        """Sink -> how many epochs there were before it."""
        self._plain: Undisturbed

    def run(self) -> str:
        write_input(self._case, self._stage.base)
        self._plain = undisturbed(self._case, self._stage.base, self._spark)
        lives: list[Life | None] = [*self._case.lives, None]
        for number, life in enumerate(lives):
            if (outcome := self._live(number, life)) is not None:
                return outcome
        if self._plain.failed is not None:
            raise Found("went on where Spark fails", self._plain.failed[:500])
        self._compare()
        self._compare_alone()
        return "equal"

    def _live(self, number: int, life: Life | None) -> str | None:
        """Let a life happen, and what is done after it; return the outcome if the case ends with it."""
        for sink in self._case.sinks:
            if sink.since == number:
                self._came_at[sink.name] = self._stage.newest_epoch()
        refusal = self._stage.live(number, life)
        if refusal is None and self._plain.refused is not None:
            raise Found("accepted what Spark refuses", self._plain.refused[:500])
        if refusal is not None and (outcome := self._refused(number, life, refusal)) is not None:
            return outcome
        if life is not None and life.then:
            self._between(number + 1, life)
        return None

    def _refused(self, number: int, life: Life | None, refusal: Refusal) -> str | None:
        if self._plain.failed is not None and refusal.started:
            self._compare()
            self._stage.done[f"failed in both: {_reason(self._plain.failed)}"] += 1
            return "failed in both"
        if refusal.started:
            raise Found(f"failed: {kind_of(refusal)}", f"{refusal.error}: {refusal.said[:1500]}")
        bad = bad_refusal(refusal)
        if bad is not None:
            raise Found(f"bad refusal: {kind_of(refusal)}", bad)
        if number == 0:
            if self._plain.refused is not None:
                return "refused by both"
            if self._plain.failed is not None:
                return "refused what fails in Spark"
            if any(refusal.said.startswith(known) or known in refusal.said for known in KNOWN_REFUSALS):
                return "refused as documented"
            raise Found(f"refused what Spark accepts: {kind_of(refusal)}", f"{refusal.error}: {refusal.said[:800]}")
        if life is not None and "from" in dict(life.start):
            self._stage.done["--from was refused"] += 1
            return None
        raise Found(f"does not go on: {kind_of(refusal)}", f"life {number}: {refusal.error}: {refusal.said[:1500]}")

    def _between(self, number: int, life: Life) -> None:
        """Do what happens between two lives. Damage that nobody can go on from is mended, once that was said."""
        put_back = [self._stage.happen(what, how) for what, how in life.then]
        damage = [found for found in put_back if found is not None]
        if not damage:
            return
        refusal = self._stage.live(number, Life("crash", 0, "after recovery.ask"))
        if refusal is None:
            return
        self._stage.done["damage was refused"] += 1
        bad = bad_refusal(refusal)
        if bad is not None:
            raise Found(f"bad refusal: {kind_of(refusal)}", bad)
        for path, data in reversed(damage):
            if path.parent.exists():
                path.write_bytes(data)

    # what sinks show

    def _compare(self) -> None:
        for sink in self._case.sinks:
            shown = without(self._stage.shown(sink), self._free(sink))
            said = difference(self._expected(sink, self._came_at.get(sink.name, 0)), shown)
            if said is not None and sink.since and self._damaged:
                earlier = range(self._came_at[sink.name])
                said = said if all(difference(self._expected(sink, at), shown) for at in earlier) else None
            if said is not None:
                what = "repeated" if "repeated" in said else "lost" if "lost" in said else "unexpected"
                raise Found(f"rows: {what}", f"{sink.name} ({sink.kind}): {said}")
        if self._damaged:
            return
        for output in self._case.outputs:
            alike = [sink for sink in self._case.sinks if sink.takes == output and sink.since == 0]
            said = disagreement({s.name: self._common(s) for s in alike if not s.kind.endswith("by key")})
            if said is not None:
                raise Found("sinks do not agree", said)

    def _compare_alone(self) -> None:
        """Find rows that depend on which other outputs there are, where each alone sees as much of event time."""
        case = self._case
        if len(case.outputs) == 1 or len(case.sources) > 1 or not SEE_EVERYTHING.issuperset(case.operators()):
            return
        for output in case.outputs:
            sink = Sink("alone", "recording", output)
            place = f"plain-{output}"
            alone = undisturbed(used(replace(case, sinks=(sink,))), self._stage.base, self._spark, place)
            rows = without(alone.of(output), self._free(sink)) if alone.failed is None else []
            said = difference(rows, self._expected(sink, 0))
            if said is not None:
                raise Found("rows depend on the other outputs", f"{output}: {said}{alone.failed or ''}"[:1000])
        self._stage.done["each output compared with itself alone"] += 1

    @property
    def _damaged(self) -> bool:
        return any(what in DAMAGE for life in self._case.lives for what, _ in life.then)

    def _expected(self, sink: Sink, came_at: int) -> list[Values]:
        rows = self._plain.of(sink.takes, after=came_at)
        columns = self._plain.columns[sink.takes]
        if sink.kind.endswith("by key"):
            rows = newest_by_key(rows, [columns.index("k")])
        if sink.kind.startswith("sqlite"):
            rows = [tuple(map(as_sqlite, row)) for row in rows]
        if sink.kind == "json files":
            rows = [tuple(map(as_json, row)) for row in rows]
        return without(rows, self._free(sink))

    def _common(self, sink: Sink) -> list[Values]:
        """Return what a sink shows in the form that all kinds of sinks have in common."""
        return [tuple(as_sqlite(as_json(value)) for value in row) for row in self._stage.shown(sink)]

    def _free(self, sink: Sink) -> list[int]:
        """Return the places of columns that no second run gives again."""
        view = next((view for view in self._case.views if view.name.lower() == sink.takes.lower()), None)
        if view is None or view.operator != "free":
            return []
        return [place for place, name in enumerate(self._plain.columns[sink.takes]) if name in FREE_COLUMNS]


def _reason(failed: str) -> str:
    """Return the innermost error of what Spark says of a query that ended."""
    errors: list[str] = re.findall(r"\w+(?:Error|Exception): [^\n]{0,80}", failed.partition("=== Streaming")[0])
    return errors[-1] if errors else failed[:100]


def kind_of(refusal: Refusal) -> str:
    """Return what two errors of one cause have in common."""
    said = re.sub(r"'[^']*'|`[^`]*`|\"[^\"]*\"", "<name>", refusal.said)
    said = re.sub(r"/\S+|[0-9a-f]{8}-[0-9a-f-]{27}", "<place>", said)
    return f"{refusal.error}: {re.sub(r'[0-9]+', '<n>', said)[:100]}"
