"""Removes one guard at a time in a copy of the code and shows which test notices.

A guard that nothing notices is a guard that may be lost in the next change: then this exits with 1. So does one whose
place in the code has moved: correct it here.

    python scripts/remove_guards.py              all of them
    python scripts/remove_guards.py fsync fence  those whose name contains a word
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORES = ("tests/stores", "tests/engine")
CRASH = ("tests/crash",)
CORE = ("tests/core",)
ENGINE = ("tests/engine",)
SINKS = ("tests/connectors/test_contract_behaviors.py",)
TRAPS = "tests/spark/test_traps.py"
RECOVERY = "tests/spark/test_pipeline_recovery.py"
OPERATORS = "tests/spark/test_operators.py::test_crashes_damage_and_a_lost_working_directory_change_nothing"


@dataclass(frozen=True)
class Guard:
    """One safeguard: where it stands, what the code looks like without it, and the tests that should miss it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = STORES


GUARDS = [
    Guard(
        "fsync of the sidecar",
        "stores/directory.py",
        "                        file.write(chunk)\n                    file.sync()\n",
        "                        file.write(chunk)\n",
    ),
    Guard(
        "fsync of the manifest",
        "stores/directory.py",
        "                file.write(manifest)\n                file.sync()\n",
        "                file.write(manifest)\n",
    ),
    Guard(
        "fsync of the names before the rename",
        "stores/directory.py",
        "self._disk.sync_directory(directory)\n                self._publish(directory, target, alone=staged",
        "self._publish(directory, target, alone=staged",
    ),
    Guard(
        "fsync of the rename",
        "stores/directory.py",
        "alone=staged.sidecar is None)\n                self._disk.sync_directory(self._root)\n",
        "alone=staged.sidecar is None)\n",
    ),
    Guard(
        "create only if absent: other content is fenced",
        "stores/store.py",
        "if existing is None or not _says_the_same(existing, sealed):",
        "if existing is None:",
    ),
    Guard(
        "identical content again is fine",
        "stores/store.py",
        "if existing is None or not _says_the_same(existing, sealed):",
        "if True:",
    ),
    Guard(
        "compare-and-swap of an update",
        "stores/directory.py",
        "if current is None or current.version != version:\n                raise VersionChanged",
        "if False:\n                raise VersionChanged",
    ),
    Guard(
        "merged history is durable before its parts go",
        "stores/history.py",
        "self._write(stream, some, durable=True)",
        "self._write(stream, some, durable=False)",
        ("tests/stores/test_history_crashes.py",),
    ),
    Guard(
        "a segment that is being written is not swept away",
        "stores/directory.py",
        "if not self._disk.is_held(path := os.path.join(directory, name))",
        "if (path := os.path.join(directory, name))",
        ("tests/stores/test_history_crashes.py",),
    ),
    Guard(
        "statuses only move towards Committed",
        "core/planning.py",
        "if sink not in statuses or status.progress >= statuses[sink].progress:",
        "if True:",
        CORE,
    ),
    Guard("the pointer never goes back", "stores/directory.py", "current >= checkpoint_id:", "False:"),
    Guard(
        "an update keeps a concurrent name",
        "core/planning.py",
        "proposed.identifier or current.identifier",
        "proposed.identifier",
        CORE,
    ),
    Guard(
        "prune keeps a fallback with other sidecars",
        "core/planning.py",
        "[*recent, *fallback, *successor]",
        "[*recent, *successor]",
        CORE,
    ),
    Guard(
        "prune keeps named checkpoints", "core/planning.py", "return c.named or unreadable", "return unreadable", CORE
    ),
    Guard(
        "prune leaves ids above the newest valid one",
        "core/planning.py",
        "recent_or_above = not c.valid and c.checkpoint_id > recent[0].checkpoint_id",
        "recent_or_above = False",
        CORE,
    ),
    Guard(
        "no sidecar goes while a manifest is unreadable",
        "stores/retention.py",
        "if not valid or not all(facts.needs_are_known for facts in survey):",
        "if not valid:",
    ),
    Guard(
        "a needed sidecar outlives its checkpoint",
        "stores/directory.py",
        "            if name in keep_sidecars and",
        "            if False and",
    ),
    Guard(
        "what everything will rest on is read back first",
        "core/planning.py",
        "    return tuple(c.checkpoint_id for c in [*independent, newest])",
        "    return ()",
        CORE,
    ),
    Guard(
        "manifest checksum",
        "stores/verification.py",
        "if expected is not None and expected != checksum_of(document):",
        "if False:",
    ),
    Guard("state checksum", "stores/verification.py", "if found != manifest.state_checksum:", "if False:"),
    Guard("missing sidecars are noticed", "stores/verification.py", "        yield from missing\n", ""),
    Guard("short sidecars are noticed", "stores/verification.py", "        yield from self._short(files)\n", ""),
    Guard(
        "abandoned ids are skipped", "stores/verification.py", "        if id in abandoned:\n", "        if False:\n"
    ),
    Guard(
        "a living writer's staging is left alone", "stores/directory.py", "if not self._is_held(path):", "if True:"
    ),
    Guard(
        "the pointer counts when ids are given out",
        "stores/store.py",
        "self._medium.read_pointer() or 0, ",
        "",
    ),
    Guard(
        "a fence raises the generation",
        "engine/fencing.py",
        '"generation": decision.generation + 1',
        '"generation": decision.generation',
    ),
    Guard(
        "a destroyed store is not taken for an empty one",
        "engine/recovery.py",
        "            _refuse_unless_empty(store, report, starting)\n",
        "            pass\n",
    ),
    Guard(
        "a fence abandons what was passed over",
        "engine/recovery.py",
        "abandons=tuple(sorted(passed_over | inherited))",
        "abandons=()",
    ),
    Guard(
        "storage without conditional writes is refused",
        "stores/bucket.py",
        "if self._refuses_create(key) and self._refuses_replace(key):",
        "if True:",
    ),
    Guard(
        "an epoch is sealed before any sink commits it",
        "engine/coordinator.py",
        "            sealed = self._seal(epoch, captured, tokens, recorded)\n",
        "            self._commit(epoch, tokens); sealed = self._seal(epoch, captured, tokens, recorded)\n",
        ENGINE,
    ),
    Guard(
        "the fence is sealed before a sink is touched",
        "engine/fencing.py",
        "return TakeOver(store.save(fence), decision)",
        "return TakeOver(fence, decision)",
        ENGINE,
    ),
    Guard(
        "every sink is asked where it stands",
        "engine/startup.py",
        "            ledgers[name] = self._brought(name, ledger, chosen, tokens.get(name))\n",
        "            pass\n",
        ENGINE,
    ),
    Guard(
        "a gap in a sink is refused",
        "engine/startup.py",
        "        if ledger.epoch != token.previous:\n            raise _gap(name, ledger.epoch, token.previous)\n",
        "",
        ENGINE,
    ),
    Guard(
        "a commit checks the generation",
        "connectors/ledger.py",
        "record.timeline != owner.timeline or record.generation != owner.generation:",
        "record.timeline != owner.timeline:",
        SINKS,
    ),
    Guard(
        "a commit checks that it follows the ledger",
        "connectors/ledger.py",
        "    if record.epoch != token.previous or token.epoch < token.previous:\n",
        "    if False:\n",
        SINKS,
    ),
    Guard(
        "a commit checks the row count",
        "connectors/parquet_files.py",
        "    if found != expected:\n",
        "    if False:\n",
        ("tests/connectors",),
    ),
    Guard(
        "what is staged is counted",
        "engine/coordinator.py",
        "            if prepared.rows != rows[name].count:\n",
        "            if False:\n",
        ENGINE,
    ),
    Guard(
        "only lower attempts are aborted",
        "connectors/staging.py",
        "(self.generation, self.attempt) < (other.generation, other.attempt)",
        "True",
        SINKS,
    ),
    Guard(
        "a replay compares the range",
        "engine/coordinator.py",
        "        if token.range_digest != digest:\n",
        "        if False:\n",
        ENGINE,
    ),
    Guard(
        "a sink skips an epoch only of the same range",
        "engine/coordinator.py",
        "elif position.epoch == epoch and position.range_digest not in (None, digest):",
        "elif False:",
        (*ENGINE, TRAPS),
    ),
    Guard(
        "a replay compares the row count",
        "engine/coordinator.py",
        "        if found != expected[name]:\n",
        "        if False:\n",
        ENGINE,
    ),
    Guard(
        "every start has a fresh working directory",
        "spark/workdir.py",
        "    old, wanted = list(old_directories), list(files)\n",
        "    old, wanted = list(old_directories), list(files)\n"
        "    for path in old:\n        shutil.copytree(path, target, dirs_exist_ok=True)\n",
        (f"{TRAPS}::test_state_of_an_abandoned_future_is_never_loaded",),
    ),
    Guard(
        "a file of the old working directory is hashed before it is linked",
        "spark/workdir.py",
        " and hashlib.sha256(_mapped(source)).hexdigest() == file.sha256",
        "",
        (f"{TRAPS}::test_an_edited_working_directory_changes_nothing",),
    ),
    Guard(
        "a large batch is cached",
        "spark/rows.py",
        "            frame.persist(StorageLevel.MEMORY_AND_DISK)\n",
        "",
        (f"{TRAPS}::test_a_batch_is_computed_once_for_all_its_sinks",),
    ),
    Guard(
        "one epoch for each replay",
        "spark/runner.py",
        "        for record in start.replays:\n            self._replay(record)\n",
        "        for record in start.replays[:-1]:\n"
        "            batch = record.epoch - 1\n"
        '            self._directory.write_offsets(batch, record.parts[f"offsets/{batch}"], {})\n'
        "        for record in start.replays[-1:]:\n            self._replay(record)\n",
        (f"{RECOVERY}::test_two_epochs_damaged_are_replayed_one_by_one",),
    ),
    Guard(
        "the batch that closes windows",
        "spark/runner.py",
        "        self._add_closing_batch()\n        remove_directories",
        "        remove_directories",
        (f"{TRAPS}::test_the_batch_that_closes_windows_comes_after_a_crash_too",),
    ),
    Guard(
        "a query start forgets watermarks per input",
        "spark/runner.py",
        "        self._batches.query_starts()\n",
        "",
        (f"{TRAPS}::test_with_two_watermarks_a_replay_forgets_what_spark_forgets",),
    ),
    Guard(
        "the policy over several watermarks",
        "spark/batch.py",
        "advance(observed_ms, self.directory.offsets(batch).watermark_policy)",
        "advance(observed_ms)",
        (f"{TRAPS}::test_with_two_watermarks_and_one_idle_input_we_seal_what_spark_goes_on_with",),
    ),
    Guard(
        "a stale order is taken off a batch",
        "spark/batch.py",
        "else without_stale_order(self._frame)\n",
        "else self._frame\n",
        (f"{TRAPS}::test_a_batch_that_claims_a_stale_order_is_computed",),
    ),
    Guard(
        "the source log is compacted as Spark expects",
        "spark/workdir.py",
        "    compact_as_expected(target, compact_interval)\n",
        "",
        (f"{TRAPS}::test_a_restart_finds_the_source_log_that_spark_looks_for",),
    ),
    Guard(
        "transformWithState finds its schemas in the new place",
        "spark/workdir.py",
        "data.replace(old_root.encode(), new_root.encode())",
        "data",
        (f"{OPERATORS}[python_state-rocksdb]",),
    ),
    Guard(
        "acknowledge late",
        "engine/upstream.py",
        "oldest = oldest_fall_back(self._store, newest)",
        "oldest = newest",
        ("tests/engine/test_upstream.py",),
    ),
    Guard(
        "a beginning is decided once",
        "engine/upstream.py",
        "        materials.put(_BEGINNING, json.dumps(offsets).encode())\n",
        "",
        ("tests/engine/test_upstream.py",),
    ),
    Guard(
        "sources are checked before they are read",
        "engine/upstream.py",
        "                control.check(known[name])",
        "                pass",
        ("tests/engine/test_upstream.py",),
    ),
]


def without(guard: Guard, place: Path) -> None:
    """Copy the project to `place` and take the guard out."""
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    path = place / "src" / "holdfast" / guard.file
    text = path.read_text()
    if guard.old not in text:
        raise LookupError(f"guard '{guard.name}' is not in {guard.file} any more: correct scripts/remove_guards.py")
    path.write_text(text.replace(guard.old, guard.new, 1))


def noticed_by(guard: Guard) -> str | None:
    """Return the first test that fails without the guard, None when none does."""
    with tempfile.TemporaryDirectory(prefix="holdfast-guard-") as folder:
        place = Path(folder)
        without(guard, place)
        command = [sys.executable, "-m", "pytest", *guard.tests, "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
        environment = {**os.environ, "PYTHONPATH": str(place / "src")}
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
        return failed[0].split(" - ")[0] if failed else None


def main(words: list[str]) -> int:
    """Try the guards whose name contains one of the words, or all."""
    chosen = [guard for guard in GUARDS if not words or any(word in guard.name for word in words)]
    unnoticed = 0
    for number, guard in enumerate(chosen, 1):
        test = noticed_by(guard)
        unnoticed += test is None
        print(f"[{number}/{len(chosen)}] {guard.name}: {test or 'NOTHING NOTICED'}", flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} guards are noticed when they are gone")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
