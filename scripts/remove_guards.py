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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORES = ("tests/stores", "tests/engine")
LOCKS = ("tests/stores/test_locks.py",)
SINK_LOCKS = ("tests/connectors/test_sink_locks.py",)
CRASH = ("tests/crash",)
CORE = ("tests/core",)
ENGINE = ("tests/engine",)
SINKS = ("tests/connectors/test_contract_behaviors.py",)
TRAPS = "tests/spark/test_traps.py"
RECOVERY = "tests/spark/test_pipeline_recovery.py"
TABLES = "tests/spark/test_reference_tables.py"
DELTA = ("tests/connectors/test_delta_source.py", "tests/connectors/test_delta_rows.py")
DELTA_SINK = ("tests/connectors/test_delta_sink.py", "-k", "not spark and not large and not object_storage")
FILES = ("tests/connectors/test_files_sink.py", "-k", "not spark")
CONSOLE = ("tests/connectors/test_console_sinks.py", "-k", "not large")
DELTA_LOST = ("tests/connectors/test_delta_history_lost.py",)
PINS = ("tests/engine/test_reference_pins.py",)
MYSQL = ("tests/connectors/test_mysql_cdc.py",)
MYSQL_PARTS = ("tests/connectors/test_mysql_cdc_parts.py",)
MYSQL_FAILS = ("tests/connectors/test_mysql_cdc_failures.py",)
PG_CDC = "tests/connectors/test_postgres_cdc.py"
PG_CDC_IMAGES = "tests/connectors/test_postgres_cdc_images.py"
PG_CDC_MESSAGES = "tests/connectors/test_postgres_cdc_messages.py"
PG_CDC_VALUES = "tests/connectors/test_postgres_cdc_values.py"
PG_CDC_FAILS = "tests/connectors/test_postgres_cdc_failures.py"
KAFKA = ("tests/connectors/test_kafka_sink.py", "-k", "not spark")
KAFKA_FAILS = ("tests/connectors/test_kafka_failures.py",)
KAFKA_CONTRACT = (*SINKS, "-k", "kafka")
SPOOL = ("tests/connectors/test_spool.py",)
SYNC = "tests/sync/test_sync_"
TAKE_OVER = (f"{SYNC}takeover.py",)
PUSH = (f"{SYNC}push.py",)
PULL = (f"{SYNC}pull.py",)
HEALING = ("tests/engine/test_healing.py",)
OPERATORS = "tests/spark/test_operators.py::test_crashes_damage_and_a_lost_working_directory_change_nothing"
WORK_PLACES = ("tests/engine/test_work_places.py",)
HISTORY = ("tests/engine/test_history_observer.py",)
CONTROLS = ("tests/connectors/test_source_controls.py",)
SOURCE_FILES = ("tests/spark/test_source_files.py", "-k", "not other_file_systems")
POLLED = ("tests/interfaces/test_http_checkpoint_api.py", "-k", "storage_that_hangs")


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
        "lock: the wait for it ends",
        "stores/locks.py",
        "            if rest <= 0:\n                return False\n",
        "",
        LOCKS,
    ),
    Guard(
        "lock: a forked child does not keep it when its parent dies",
        "stores/locks.py",
        "    for file in _open:\n        file.leave_to_parent()\n",
        "",
        LOCKS,
    ),
    Guard(
        "lock: a forked child does not give it away",
        "stores/locks.py",
        "        descriptor, self._descriptor = self._descriptor, -1\n        with contextlib.suppress(OSError):\n",
        "        descriptor = self._descriptor\n        with contextlib.suppress(OSError):\n",
        LOCKS,
    ),
    Guard(
        "lock: no room for a note keeps nobody out",
        "stores/locks.py",
        "        with contextlib.suppress(OSError):\n            os.ftruncate",
        "        if True:\n            os.ftruncate",
        LOCKS,
    ),
    Guard(
        "lock: the files sink waits for it",
        "connectors/files.py",
        'return locks.locked(os.path.join(self._hidden, "lock"))',
        "return contextlib.nullcontext()",
        SINK_LOCKS,
    ),
    Guard(
        "lock: the ledger of a spool waits for it",
        "connectors/spool_ledger.py",
        'return locks.locked(os.path.join(self._folder, "lock"))',
        "return contextlib.nullcontext()",
        SINK_LOCKS,
    ),
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
        "        every_sidecar = frozenset[str]() if plan.sidecars_may_go else frozenset(self._medium.sidecars())\n",
        "        every_sidecar = frozenset[str]()\n",
    ),
    Guard(
        "no sidecar goes as an orphan while a manifest is unreadable",
        "stores/survey.py",
        "return self._unknown > 0 or",
        "return",
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
        "    return tuple(sorted(unread))",
        "    return ()",
        CORE,
    ),
    Guard(
        "copies of one checkpoint are no two",
        "core/planning.py",
        "        if not rest & seen:\n",
        "        if True:\n",
        ("tests/core/test_planning_needs.py",),
    ),
    Guard(
        "what has to be replayed is not pruned",
        "core/planning.py",
        "stays(c) or c.checkpoint_id in owed]\n    removed",
        "stays(c)]\n    removed",
        ("tests/core/test_planning_needs.py",),
    ),
    Guard(
        "what is left of a checkpoint to replay is no orphan",
        "stores/survey.py",
        "self._owed[id] > 0 or ",
        "",
        ("tests/stores/test_retention_guards.py", "-k", "not s3"),
    ),
    Guard(
        "a start holds what it goes on from",
        "stores/store.py",
        "            self._hold_base(manifest)\n",
        "",
        ("tests/crash/test_starts_beside_prune.py",),
    ),
    Guard(
        "a prune honours what a start holds",
        "stores/survey.py",
        "held = found.held_until > self._newest or ",
        "held = ",
        ("tests/crash/test_starts_beside_prune.py",),
    ),
    Guard(
        "a prune reads the pointer before the ids",
        "stores/survey.py",
        "self._newest = max([self._newest, pointed, *ids[-1:]])",
        "self._newest = max([self._newest, self._medium.read_pointer() or 0, *ids[-1:]])",
        ("tests/crash/test_starts_beside_prune.py",),
    ),
    Guard(
        "a prune looks for newer checkpoints before each removal",
        "stores/retention.py",
        "            if survey.went_on():\n                return False\n",
        "",
        ("tests/stores/test_retention_guards.py", "-k", "not s3"),
    ),
    Guard(
        "a checkpoint that changed keeps its sidecars",
        "stores/retention.py",
        "                survey.read_again(id)\n                return False\n",
        "                survey.forget(id)\n                continue\n",
        ("tests/stores/test_retention_guards.py", "-k", "not s3"),
    ),
    Guard(
        "a removed checkpoint leaves the sidecars that others need",
        "stores/retention.py",
        "every_sidecar | survey.needed_by_others(id))\n            except",
        "every_sidecar)\n            except",
        ("tests/stores/test_retention_guards.py", "-k", "not s3"),
    ),
    Guard(
        "what an abandoned checkpoint abandons does not count in retention",
        "stores/survey.py",
        "            if id in given_up:\n                continue",
        "            if False:\n                continue",
        ("tests/stores/test_retention_guards.py", "-k", "not s3"),
    ),
    Guard(
        "a manifest that storage did not give out is not damaged",
        "stores/survey.py",
        "CheckpointFacts(checkpoint_id, Condition.UNREADABLE), version)",
        "CheckpointFacts(checkpoint_id, Condition.CORRUPT), version)",
        ("tests/stores/test_retention_guards.py", "-k", "not s3"),
    ),
    Guard(
        "fsync of files beside the checkpoints",
        "stores/materials.py",
        "                durable.sync_file(temporary)\n",
        "",
        ("tests/stores/test_materials.py", "-k", "not s3"),
    ),
    Guard(
        "fsync of the names of files beside the checkpoints",
        "stores/materials.py",
        "            durable.sync_file(os.path.dirname(path))\n",
        "",
        ("tests/stores/test_materials.py", "-k", "not s3"),
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
        "files sink: the name of a committed epoch is flushed",
        "connectors/files.py",
        "        os.rename(folder, self._epoch_folder(number))\n        durable.sync_file(self._path)\n",
        "        os.rename(folder, self._epoch_folder(number))\n",
        FILES,
    ),
    Guard(
        "files sink: the name of a commit record is flushed",
        "connectors/files.py",
        "        durable.sync_file(folder)\n        number",
        "        number",
        FILES,
    ),
    Guard(
        "files sink: a folder that was taken back is flushed away",
        "connectors/files.py",
        'f"{_REMOVED}{above}-{new_token()}"))\n            durable.sync_file(self._path)\n',
        'f"{_REMOVED}{above}-{new_token()}"))\n',
        FILES,
    ),
    Guard(
        "files sink: staged rows are shown in the format they were prepared in",
        "connectors/files.py",
        "_format_of(Form.of(token, self._form))",
        "self._format",
        FILES,
    ),
    Guard(
        "files sink: a rewind that removes nothing leaves the document's epoch",
        "connectors/files.py",
        "(self._folder.floor() or record).rewound(to_epoch, None)",
        "record.rewound(to_epoch, None)",
        FILES,
    ),
    Guard(
        "files sink: a place that cannot be used is told before the claim",
        "connectors/files.py",
        "            self._folder.refuse_unwritable()\n",
        "",
        FILES,
    ),
    Guard(
        "console: it counts by the text it prepared",
        "connectors/console.py",
        "Form.of(token, Form(self._schema, {_SHOWN: self._shown})).settings[_SHOWN]",
        "self._shown",
        CONSOLE,
    ),
    Guard(
        "console and memory: the process has its name",
        "connectors/console.py",
        "replace(record, generation=owner.generation, nonce=owner.nonce)",
        "replace(record, generation=owner.generation)",
        CONSOLE,
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
        "a working directory belongs to one store",
        "engine/work_places.py",
        "[pipeline, *where]",
        "[pipeline]",
        WORK_PLACES,
    ),
    Guard(
        "a working directory belongs to one pipeline",
        "engine/work_places.py",
        "[pipeline, *where]",
        "[*where]",
        WORK_PLACES,
    ),
    Guard(
        "a working directory in use is not removed",
        "engine/work_places.py",
        "        if not self.take_if_free():\n            return False\n",
        "        self.take_if_free()\n",
        WORK_PLACES,
    ),
    Guard(
        "a forked child does not keep a working directory",
        "engine/work_places.py",
        "os.register_at_fork(after_in_child=_in_a_child)\n",
        "",
        WORK_PLACES,
    ),
    Guard(
        "a lock file that was removed is no lock",
        "engine/work_places.py",
        "if not _is_at(self.path + LOCK, descriptor):",
        "if False:",
        WORK_PLACES,
    ),
    Guard(
        "a range of an older version counts only if it is of our query",
        "spark/restoring.py",
        "if ours is not None and file.read() == ours:",
        "if True:",
        ("tests/spark/test_side_by_side.py::test_a_range_of_before_is_found_where_all_pipelines_were",),
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
        "an epoch that reads much more than those before it stays with Spark",
        "spark/forecast.py",
        "    return now.amount / max(before.amount, 1)\n",
        "    return 1.0\n",
        ("tests/spark/test_forecast.py", "-k", "flood"),
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
        "        self._add_closing_batch()\n        self._restoring.remove_old(start)",
        "        self._restoring.remove_old(start)",
        (f"{TRAPS}::test_the_batch_that_closes_windows_comes_after_a_crash_too",),
    ),
    Guard(
        "a checkpoint in doubt is settled before the next seal",
        "engine/checkpoints.py",
        "            waiting.result()\n        self._resolve_doubt()\n",
        "            waiting.result()\n",
        ("tests/engine/test_checkpoint_in_doubt.py",),
    ),
    Guard(
        "healing seals no copy that is damaged as well",
        "engine/checkpoints.py",
        "if hashlib.sha256(data).hexdigest() != file.sha256:",
        "if False:",
        HEALING,
    ),
    Guard(
        "bytes that were found damaged are cited no more",
        "engine/checkpoints.py",
        "{*chosen, *damaged}",
        "chosen",
        HEALING,
    ),
    Guard(
        "a sidecar whose checksum is wrong vouches for none of its files",
        "stores/verification.py",
        "            if not wrong:\n",
        "            if True:\n",
        HEALING,
    ),
    Guard(
        "the verdict knows what verification found",
        "interfaces/store_look.py",
        "if found := self.found_damaged().get(id):",
        "if False:",
        ("tests/interfaces/test_verdict.py",),
    ),
    Guard(
        "a request is satisfied only by a snapshot that began after it",
        "engine/requests.py",
        "self._answer(self._cut, checkpoint_id, error)",
        "self._answer(self._issued, checkpoint_id, error)",
        ("tests/engine/test_checkpoint_requests.py",),
    ),
    Guard(
        "no replayed epoch serves a request",
        "engine/requests.py",
        'case StepStarted(step="capture", sink=None) if self._turn is not None:',
        'case StepStarted(step="capture", sink=None):',
        ("tests/engine/test_checkpoint_requests.py",),
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
        "files of a range that are gone stop its replay",
        "spark/source_files.py",
        "if not there]",
        "if False]",
        SOURCE_FILES,
    ),
    Guard(
        "files that were read before the range may be gone",
        "spark/source_files.py",
        "first.get(source, -1) < entry",
        "-1 < entry",
        SOURCE_FILES,
    ),
    Guard(
        "files that were read after the range may be gone",
        "spark/source_files.py",
        ' <= last.get(source, entry["batchId"]):',
        ":",
        SOURCE_FILES,
    ),
    Guard(
        "lines of other inputs exempt no file",
        "spark/source_files.py",
        "    if len(lines) != len(inputs):\n        return {}\n",
        "    inputs = inputs[: len(lines)]\n",
        SOURCE_FILES,
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
        "storage that is silent about a checkpoint lets nothing go upstream",
        "engine/upstream.py",
        "        except CheckpointStoreError:\n            return None\n",
        "        except CheckpointStoreError:\n            continue\n",
        ("tests/engine/test_upstream.py",),
    ),
    Guard(
        "a checkpoint of a later version holds its source back",
        "engine/upstream.py",
        "            return None  # Whoever wrote it can read it, and go on from it.",
        "            continue",
        ("tests/engine/test_upstream.py",),
    ),
    Guard(
        "whoever was replaced acknowledges nothing",
        "engine/upstream.py",
        "not _is_ours(store, ids[-1], newest)",
        "False",
        ("tests/engine/test_upstream.py",),
    ),
    Guard(
        "whose the newest checkpoint is, is not guessed",
        "engine/upstream.py",
        "    except CheckpointStoreError:\n        return False\n",
        "    except CheckpointStoreError:\n        return True\n",
        ("tests/engine/test_upstream.py",),
    ),
    Guard(
        "what was passed over does not stand for the fence",
        "engine/upstream.py",
        "        if id in newest.abandons:\n",
        "        if False:\n",
        ("tests/engine/test_upstream.py",),
    ),
    Guard(
        "a source is asked before the store is taken over",
        "engine/upstream.py",
        "            control.can_read(known.get(name) or self._noted(name))\n",
        "            control.can_read(known.get(name))\n",
        ("tests/engine/test_upstream.py",),
    ),
    Guard(
        "a source that is only asked cannot write",
        "engine/upstream.py",
        "ReadOnlyMaterials(materials)",
        "materials",
        ("tests/engine/test_upstream.py",),
    ),
    Guard(
        "materials that can only be read have parts that can only be read",
        "engine/read_only.py",
        "return ReadOnlyMaterials(self._materials.below(prefix))",
        "return self._materials.below(prefix)  # type: ignore[return-value]",
        ("tests/engine/test_upstream.py",),
    ),
    Guard(
        "a beginning is decided once",
        "engine/upstream.py",
        "        self._contexts[name].materials.put(_BEGINNING, json.dumps(offsets).encode())\n",
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
    Guard(
        "a replay joins the version of a table that its epoch had",
        "engine/tables.py",
        'pins = {**self._before, **pins_in_part(recorded.parts.get(TABLES_PART, b"{}"))}',
        "pins = dict(self._before)",
        PINS,
    ),
    Guard(
        "a version of a table is told from another table's",
        "engine/tables.py",
        "if image.pin.version != pin.version:",
        "if False:",
        PINS,
    ),
    Guard(
        "a copy of a table is compared with its digests",
        "engine/table_copies.py",
        "if os.stat(found).st_size != file.size or _sha256(found) != file.sha256:",
        "if False:",
        PINS,
    ),
    Guard(
        "the index of a table's copy is compared with its digest",
        "engine/table_copies.py",
        'if hashlib.sha256(data).hexdigest() != copy.rpartition("-")[2]:',
        "if False:",
        PINS,
    ),
    Guard(
        "copies of tables that a successor made are spared",
        "engine/table_copies.py",
        ' and int(match["generation"]) <= self._owner.generation',
        "",
        PINS,
    ),
    Guard(
        "only copies of tables that the chosen checkpoint names are gone on with",
        "engine/tables.py",
        "elif before is None or before.copy != pin.copy:",
        "elif False:",
        PINS,
    ),
    Guard(
        "the copy of a table that is in use stays",
        "engine/tables.py",
        "needed = {pin.copy for pin in self._pins.values() if pin.copy is not None}",
        "needed: set[str] = set()",
        PINS,
    ),
    Guard(
        "copies of tables stay while a manifest is damaged",
        "engine/tables.py",
        "                except CorruptCheckpoint:\n                    return 0\n",
        "                except CorruptCheckpoint:\n                    continue\n",
        PINS,
    ),
    Guard(
        "the manifest says with which tables, when the progress chunk is damaged",
        "engine/records.py",
        "dict(progress.parts) if progress else _table_pins(manifest)",
        "dict(progress.parts) if progress else {}",
        (f"{TABLES}::test_a_damaged_checkpoint_is_replayed_with_its_own_version_and_not_with_its_neighbours",),
    ),
    Guard(
        "a sink gets no columns of a table that it did not agree to",
        "spark/selects.py",
        "if _columns(selected.schema) != _columns(schema):",
        "if False:",
        (f"{TABLES}::test_other_columns_stop_the_pipeline_before_a_sink_sees_them",),
    ),
    Guard(
        "a table's files that change while they are copied are copied again",
        "connectors/tables/files.py",
        "unchanged = self._files() == before",
        "unchanged = True",
        ("tests/connectors/test_table_kinds.py",),
    ),
    Guard(
        "a Delta table's files have an order that never changes",
        "connectors/delta/commits.py",
        "tuple(sorted((_file(action) for action in actions), key=lambda file: file.path))",
        "tuple(_file(action) for action in actions)",
        DELTA,
    ),
    Guard(
        "files of a Delta table that hold old rows anew are not read",
        "connectors/delta/commits.py",
        '_files(action for action in adds if action["dataChange"])',
        "_files(adds)",
        DELTA,
    ),
    Guard(
        "a Delta version that removes rows stops a reader of added rows",
        "connectors/delta/changes.py",
        'if commit.removed and self._on_rewrite == "stop":',
        "if False:",
        DELTA,
    ),
    Guard(
        "rows that were rewritten without a record are no changes",
        "connectors/delta/changes.py",
        "if commit.added and commit.removed and not self._records_changes(commit.version):",
        "if False:",
        DELTA,
    ),
    Guard(
        "rows with a deletion vector are refused",
        "connectors/delta/changes.py",
        "    if file.has_deletion_vector:",
        "    if False:",
        DELTA,
    ),
    Guard(
        "a version of changes is not divided",
        "connectors/delta/feed.py",
        "whole=not (self._mode.divisible or position.snapshot)",
        "whole=False",
        DELTA,
    ),
    Guard(
        "a Delta table that was put back is noticed",
        "connectors/delta/feed.py",
        "            if not self.log.reaches(version - 1):",
        "            if False:",
        DELTA_LOST,
    ),
    Guard(
        "Delta source: a beginning that is only asked for is not noted",
        "connectors/delta/source.py",
        "            self._first(Feed(self._settings))\n",
        "            self.begin()\n",
        (*CONTROLS, "-k", "delta"),
    ),
    Guard(
        "a Delta table that was replaced is noticed",
        "connectors/delta/source.py",
        'if noted is not None and json.loads(noted)["id"] != feed.shape.id:',
        "if False:",
        DELTA_LOST,
    ),
    Guard(
        "vacuumed files are found at a start",
        "connectors/delta/source.py",
        "        if gone:",
        "        if False:",
        DELTA_LOST,
    ),
    Guard(
        "a range of a Delta table that is not there is refused",
        "connectors/delta/feed.py",
        " or (last and end.file > len(files)):",
        ":",
        DELTA_LOST,
    ),
    Guard(
        "MySQL: whoever only asks takes no snapshot",
        "connectors/mysql_cdc/control.py",
        "            self._can_begin()\n",
        "            self.begin()\n",
        (*CONTROLS, "-k", "mysql_cdc"),
    ),
    Guard(
        "MySQL: an unfinished transaction never happened",
        "connectors/mysql_cdc/transactions.py",
        "                    self._open = None\n                    yield Abandoned()\n",
        "                    self._end()\n",
        MYSQL_PARTS,
    ),
    Guard(
        "MySQL: an unknown event is not passed over",
        "connectors/mysql_cdc/transactions.py",
        "if event.code not in events.WITHOUT_ROWS and not event.flags & _IGNORABLE:",
        "if False:",
        MYSQL_PARTS,
    ),
    Guard(
        "MySQL: rows that may be rolled back are refused",
        "connectors/mysql_cdc/transactions.py",
        "        if self._undecided:",
        "        if False:",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: a table that was replaced is noticed",
        "connectors/mysql_cdc/transactions.py",
        "            case Effect.REPLACED:",
        "            case Effect.REPLACED if False:",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: a statement in the log is refused",
        "connectors/mysql_cdc/transactions.py",
        "            case Effect.WRITTEN:",
        "            case Effect.WRITTEN if False:",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: rows logged in part are refused",
        "connectors/mysql_cdc/rows.py",
        'if any(int.from_bytes(present, "little") & layout.every != layout.every for present in body.present):',
        "if False:",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: a renamed column is not read as NULL",
        "connectors/mysql_cdc/rows.py",
        "        if unknown and missing:",
        "        if False:",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: checksums are verified",
        "connectors/mysql_cdc/binlog.py",
        "        if self._checksums and not _is_checksummed(data):",
        "        if False:",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: a log that was reset is noticed",
        "connectors/mysql_cdc/places.py",
        "            return self._gtids_at(position.place) == position.gtids",
        "            return True",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: a place in another server's log is not taken for one in this",
        "connectors/mysql_cdc/places.py",
        "        if position.server_id == self._session.facts.server_id:\n            if place.offset",
        "        if True:\n            if place.offset",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: a log that lost its end is noticed",
        "connectors/mysql_cdc/stream.py",
        "        self._refuse_short_log(end)",
        "        self._position = end",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: rows of a transaction that is read again come once",
        "connectors/mysql_cdc/stream.py",
        "            except SourceUnavailable:\n                self._batches.abandon_transaction()\n",
        "            except SourceUnavailable:\n",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: an epoch ends with a transaction",
        "connectors/mysql_cdc/transactions.py",
        "            if self._open is None:\n                yield Boundary",
        "            if True:\n                yield Boundary",
        MYSQL,
    ),
    Guard(
        "MySQL: places tell the order within one log",
        "connectors/mysql_cdc/position.py",
        "        if self.server_id != other.server_id and self.gtids",
        "        if self.gtids",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: cascading foreign keys are refused",
        "connectors/mysql_cdc/columns.py",
        '    if settings.on_cascade == "stop":',
        "    if False:",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: system-versioned tables are refused",
        "connectors/mysql_cdc/columns.py",
        "    if str(kind).upper() == _VERSIONED:",
        "    if False:",
        MYSQL_FAILS,
    ),
    Guard(
        "MySQL: what a statement hides is not passed over",
        "connectors/mysql_cdc/statements.py",
        "    if _HIDES_WRITES.match(statement.text):",
        "    if False:",
        MYSQL_PARTS,
    ),
    Guard(
        "MySQL: answers are not cut short",
        "connectors/mysql_cdc/session.py",
        '"init_command": WHOLE_ANSWERS, ',
        "",
        (*MYSQL, *MYSQL_FAILS),
    ),
    Guard(
        "MySQL: a renamed column of the snapshot is not read as NULL",
        "connectors/mysql_cdc/snapshot.py",
        "    if missing and gone:",
        "    if False:",
        (*MYSQL, *MYSQL_FAILS),
    ),
    Guard(
        "Delta sink: the table is looked at again before rows are shown",
        "connectors/delta/sink.py",
        '        with unanswered("reading the table"):\n            self._check_table(table, form)\n        version',
        "        version",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: a claim is refused for columns before it is made",
        "connectors/delta/sink.py",
        "        self._check_table(table, self._form)\n        _, decided",
        "        _, decided",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: a claim is refused for rows that cannot be removed before it is made",
        "connectors/delta/sink.py",
        "                if undoing is None or not undoing.is_possible(table):\n",
        "                if False:\n",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: a place that cannot be used is told before the claim",
        "connectors/delta/sink.py",
        "                refuse_unwritable(self._folder.root)\n",
        "                pass\n",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: a rewind that undoes nothing does not depend on the log",
        "connectors/delta/sink.py",
        "        if to_epoch >= record.epoch:\n",
        "        if False:\n",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: a rewind is noted",
        "connectors/delta/sink.py",
        "Entry(self._ledger.rewound(moved), ",
        "Entry(self._ledger.moved(moved), ",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: rows are shown as they were prepared",
        "connectors/delta/sink.py",
        "self._mode if form == self._form else mode_of(form, self._folder, self._name)",
        "self._mode",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: the table is compared with the columns of the token",
        "connectors/delta/sink.py",
        "self._check_table(table, form)\n        version",
        "self._check_table(table, self._form)\n        version",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: staged rows are read with the columns of the token",
        "connectors/delta/sink.py",
        "Form.of(token, self._form).schema",
        "self._form.schema",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: a removal says which partition and how large",
        "connectors/delta/undoing.py",
        "RemoveAction(path, True, stamp, *active[path])",
        "RemoveAction(path, True, stamp)",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: epochs are taken back as they were shown",
        "connectors/delta/undoing.py",
        "MERGE in {mode or today for mode in since.modes}",
        "MERGE == today",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: a version whose files are gone cannot be restored",
        "connectors/delta/undoing.py",
        "        return all(self._folder.size(path) is not None for path in needed)\n",
        "        return True\n",
        DELTA_SINK,
    ),
    Guard(
        "Delta sink: a merge is not restored over other writers' rows, and that is told before",
        "connectors/delta/undoing.py",
        "        if not self._since.alone:\n            return False\n        try:\n            options",
        "        try:\n            options",
        DELTA_SINK,
    ),
    Guard(
        "Delta: a folder that deltalake takes for another is refused",
        "connectors/delta/folder.py",
        '    if unquote(root) != root or "\\\\" in root:',
        "    if False:",
        ("tests/connectors/test_delta_sink.py", "tests/connectors/test_delta_source.py"),
    ),
    Guard(
        "a table's values that do not fit are not NULL",
        "connectors/tables/files.py",
        "        given |= {key: value for",
        "        _ = {key: value for",
        (TABLES,),
    ),
    Guard(
        "PostgreSQL as a table: infinite times are refused",
        "connectors/tables/postgres.py",
        '    if range_["min"] is not None and (',
        "    if False and (",
        ("tests/connectors/test_table_servers.py",),
    ),
    Guard(
        "MySQL: the snapshot is a consistent view",
        "connectors/mysql_cdc/snapshot.py",
        '    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")\n    cursor.execute("SHOW',
        '    cursor.execute("SHOW',
        MYSQL,
    ),
    Guard(
        "MySQL: a snapshot counts when all of it is there",
        "connectors/mysql_cdc/snapshot.py",
        "        if chunks <= names:",
        "        if True:",
        MYSQL,
    ),
    Guard(
        "Kafka sink: a newer producer takes the place of older ones",
        "connectors/kafka/ledger.py",
        '"transactional.id": key.transactional_id,',
        '"transactional.id": f"{key.transactional_id}{id(self)}",',
        (*KAFKA_FAILS, "-k", "zombie"),
    ),
    Guard(
        "Kafka sink: a new topic is used when its leader knows of it",
        "connectors/kafka/sink_topics.py",
        "while not self._can_be_used(topic):",
        "while not self.partitions(topic):",
        (*KAFKA_FAILS, "-k", "leader_knows"),
    ),
    Guard(
        "Kafka sink: markers behind open transactions are waited for",
        "connectors/kafka/marker.py",
        "IsolationLevel.READ_UNCOMMITTED",
        "IsolationLevel.READ_COMMITTED",
        (*KAFKA_FAILS, "-k", "still_open"),
    ),
    Guard(
        "Kafka sink: a commit without an answer is found out",
        "connectors/kafka/ledger.py",
        "            raise UnknownOutcome(str(failure)) from None\n",
        "            raise failure from None\n",
        (*KAFKA_FAILS, "-k", "stays_away"),
    ),
    Guard(
        "Kafka sink: a refusal is looked at twice",
        "connectors/kafka/ledger.py",
        "                if refusal is not None:\n                    raise\n",
        "                raise\n",
        (*KAFKA_FAILS, "-k", "sent_and_removed"),
    ),
    Guard(
        "Kafka sink: a message that did not arrive is noticed",
        "connectors/kafka/ledger.py",
        "        if self._failed is not None:\n            raise conf",
        "        if False:\n            raise conf",
        (*KAFKA_FAILS, "-k", "refuses_after_all"),
    ),
    Guard(
        "Kafka sink: a client that met another leader is replaced",
        "connectors/kafka/clients.py",
        "                self._admin = None\n",
        "                pass\n",
        (*KAFKA_FAILS, "-k", "restart_between"),
    ),
    Guard(
        "Kafka sink: adopting ends other sinks",
        "connectors/kafka/sink.py",
        "            for key in ended:\n                self._end(key)\n",
        "",
        (*KAFKA_FAILS, "-k", "adopting"),
    ),
    Guard(
        "Kafka sink: all rows that were sealed are sent",
        "connectors/kafka/sink.py",
        "            expect_rows(sent, token.rows)\n",
        "",
        KAFKA_CONTRACT,
    ),
    Guard(
        "Kafka sink: a queue that is full of bytes is waited for",
        "connectors/kafka/ledger.py",
        "                except BufferError:\n",
        "                except ZeroDivisionError:\n",
        (*KAFKA_FAILS, "-k", "fill"),
    ),
    Guard(
        "Kafka source: a beginning that is only asked for is not noted",
        "connectors/kafka/control.py",
        "            self._beginning()\n",
        "            self.begin()\n",
        (*CONTROLS, "-k", "kafka"),
    ),
    Guard(
        "Kafka source: whoever only asks does not forget which topic it was",
        "connectors/kafka/control.py",
        "            self._refuse_lost(offsets)\n",
        "            self.check(offsets)\n",
        ("tests/connectors/test_kafka_source.py", "-k", "only_asks"),
    ),
    Guard(
        "Kafka source: a topic that a pattern found is known when it is created again",
        "connectors/kafka/control.py",
        "        if topics.keys() - known.keys():\n",
        "        if False:\n",
        ("tests/connectors/test_kafka_source.py",),
    ),
    Guard(
        "Kafka source: the end is asked for before the time",
        "connectors/kafka/topics.py",
        "{partition: end[partition] if",
        "{partition: self.end([partition])[partition] if",
        ("tests/connectors/test_kafka_source.py",),
    ),
    Guard(
        "JSON: Spark tells keys of maps as small epochs do",
        "connectors/kafka/messages.py",
        "spark_functions.struct(*tellable_columns(frame, self._told))",
        "spark_functions.struct(*self._told)",
        ("tests/connectors/test_kafka_sink.py",),
    ),
    Guard(
        "rows of which Spark says that they are never NULL",
        "spark/rows.py",
        "    return {key: True if key in _NULLABLE else value for key, value in type_.items()}",
        "    return type_",
        ("tests/spark/test_running.py",),
    ),
    Guard(
        "spool: rows wait where the checkpoints are",
        "connectors/spool.py",
        "        if self._copies is not None:\n            for file in files:\n",
        "        if self._copies is not None:\n            for file in []:\n",
        SPOOL,
    ),
    Guard(
        "spool: a copy is compared before it is shown",
        "connectors/spool.py",
        "            check_staged(folder, files, deeply=True)\n",
        "",
        SPOOL,
    ),
    Guard(
        "spool: copies of dead attempts are removed",
        "connectors/spool.py",
        '                if _names(name.partition("/")[0], goes):\n',
        "                if False:\n",
        SPOOL,
    ),
    Guard(
        "spool: a token that leads elsewhere is refused",
        "connectors/spool.py",
        '    if name in ("", ".", "..") or os.path.basename(name) != name:',
        "    if False:",
        SPOOL,
    ),
    Guard(
        "spool: a ledger goes where the checkpoints are",
        "connectors/spool_ledger.py",
        "        self._folder, self._elsewhere = os.path.abspath(context.spool), context.spool_copies\n",
        "        self._folder, self._elsewhere = os.path.abspath(context.spool), None\n",
        SPOOL,
    ),
    Guard(
        "Kafka sink: a marker topic that forgets is refused",
        "connectors/kafka/sink_topics.py",
        "        if policy != _COMPACT:\n",
        "        if False:\n",
        KAFKA,
    ),
    Guard(
        "Kafka sink: markers have one order",
        "connectors/kafka/sink_topics.py",
        "        if partitions != _MARKER_PARTITIONS:\n",
        "        if False:\n",
        KAFKA,
    ),
    Guard(
        "Kafka sink: a message that is too large is found before the epoch is decided",
        "connectors/kafka/messages.py",
        "            if largest > limits.largest:\n",
        "            if False:\n",
        KAFKA,
    ),
    Guard(
        "Kafka sink: a partition that does not exist is found before the epoch is decided",
        "connectors/kafka/messages.py",
        "not 0 <= partition < partitions:",
        "False:",
        KAFKA,
    ),
    Guard(
        "Kafka sink: a topic that is gone is not replaced",
        "connectors/kafka/sink.py",
        "            self._refuse_lost_topic()\n",
        "",
        KAFKA,
    ),
    Guard(
        "PostgreSQL CDC: a value that was not sent is named",
        "connectors/postgres_cdc/images.py",
        "    return column.kinds == _UNCHANGED\n",
        "    return np.zeros(len(column.kinds), bool)\n",
        (f"{PG_CDC_VALUES}::test_large_values_that_were_not_sent_are_named",),
    ),
    Guard(
        "PostgreSQL CDC: an old key says nothing of other columns",
        "connectors/postgres_cdc/images.py",
        "& (before.kinds == _TEXT)",
        "",
        (f"{PG_CDC_VALUES}::test_large_values_that_were_not_sent_are_named",),
    ),
    Guard(
        "PostgreSQL CDC: a message is read to its last byte",
        "connectors/postgres_cdc/messages.py",
        "    if end != len(data):\n",
        "    if False:\n",
        (PG_CDC_MESSAGES,),
    ),
    Guard(
        "PostgreSQL CDC: a message with a row is read to its last byte",
        "connectors/postgres_cdc/images.py",
        "        self._refuse_longer(with_rows, np.where(has_after, end, behind))\n",
        "",
        (PG_CDC_IMAGES,),
    ),
    Guard(
        "PostgreSQL CDC: a value that leads beyond its message is refused",
        "connectors/postgres_cdc/images.py",
        '            self._refuse(present & (at > self._ends), "it is cut off")\n',
        "",
        (PG_CDC_IMAGES,),
    ),
    Guard(
        "PostgreSQL CDC: arrays of several levels are refused",
        "connectors/postgres_cdc/values.py",
        "        if found is None or inner",
        "        if found is None:\n            return elements\n        if inner",
        (f"{PG_CDC_VALUES}::test_a_value_that_spark_cannot_hold_is_an_error_with_a_way_out",),
    ),
    Guard(
        "PostgreSQL CDC: what was written after the end is left for later",
        "connectors/postgres_cdc/transactions.py",
        "                if self._waits_for(before):\n                    return\n",
        "",
        (f"{PG_CDC}::test_the_replica_is_the_table_and_every_range_reads_the_same_again",),
    ),
    Guard(
        "PostgreSQL CDC: a transaction that waits is not read by asking again",
        "connectors/postgres_cdc/transactions.py",
        "        if self._waits_for(before):\n            return\n        for data",
        "        for data",
        (f"{PG_CDC}::test_with_available_now_nothing_is_read_that_was_written_later",),
    ),
    Guard(
        "PostgreSQL CDC: an epoch is the same when it is asked for again",
        "connectors/postgres_cdc/stream.py",
        "        if not self._epoch.begin == start.lsn < self._epoch.end:",
        "        if True:",
        (f"{PG_CDC}::test_asked_again_an_epoch_is_still_the_same",),
    ),
    Guard(
        "PostgreSQL CDC: the stream goes on only where it stands",
        "connectors/postgres_cdc/stream.py",
        "not self._epoch.end <= begin <= max(self._epoch.end, self._feed.seen):",
        "False:",
        (f"{PG_CDC}::test_an_epoch_ends_with_the_transaction_that_fills_it",),
    ),
    Guard(
        "PostgreSQL CDC: a file that is not whole is not read",
        "connectors/postgres_cdc/stream.py",
        "        if part.file is not None and part.file.is_here:",
        "        if part.file is not None:",
        (f"{PG_CDC}::test_the_file_of_an_epoch_is_only_a_short_cut",),
    ),
    Guard(
        "PostgreSQL CDC: a position is one that a crash of the server cannot take back",
        "connectors/postgres_cdc/stream.py",
        "        return safe if begin + self._settings.idle_bytes <= safe <= seen else begin\n",
        "        return seen\n",
        (f"{PG_CDC}::test_a_server_busy_with_other_tables_may_let_its_log_go",),
    ),
    Guard(
        "PostgreSQL CDC: rows that were given before the server went away come once",
        "connectors/postgres_cdc/stream.py",
        "            for batch in _without(_attempt(settings, part, columns), given):",
        "            for batch in _attempt(settings, part, columns):",
        (f"{PG_CDC_FAILS}::test_a_server_that_crashes_is_waited_for",),
    ),
    Guard(
        "PostgreSQL CDC: a publication that is gone is not silence",
        "connectors/postgres_cdc/feed.py",
        "        if self._warnings:\n",
        "        if False:\n",
        (f"{PG_CDC_FAILS}::test_a_publication_that_was_dropped_stops_the_reader",),
    ),
    Guard(
        "PostgreSQL CDC: a server that shuts down hears that all was seen",
        "connectors/postgres_cdc/feed.py",
        '        status = _STATUS.pack(b"r", self.seen, self.seen, self.seen, 0, reply)\n',
        '        status = _STATUS.pack(b"r", 0, 0, 0, 0, reply)\n',
        (f"{PG_CDC_FAILS}::test_a_server_that_shuts_down_does_not_wait_for_us",),
    ),
    Guard(
        "PostgreSQL CDC: a slot that stands too far is history lost",
        "connectors/postgres_cdc/slots.py",
        "    if slot.confirmed > max(wanted, parse_lsn(settings.begins_at)):\n",
        "    if False:\n",
        (f"{PG_CDC_FAILS}::test_a_slot_that_somebody_moved_is_history_lost",),
    ),
    Guard(
        "PostgreSQL CDC: a log that was set back is history lost",
        "connectors/postgres_cdc/slots.py",
        "    if head < wanted:\n",
        "    if False:\n",
        (f"{PG_CDC_FAILS}::test_a_server_that_was_set_back_is_history_lost",),
    ),
    Guard(
        "PostgreSQL CDC: a slot without its log is history lost",
        "connectors/postgres_cdc/slots.py",
        "    if slot.lost:\n",
        "    if False:\n",
        (f"{PG_CDC_FAILS}::test_a_slot_whose_log_was_removed_is_history_lost",),
    ),
    Guard(
        "PostgreSQL CDC: the slot never moves back",
        "connectors/postgres_cdc/slots.py",
        "    if lsn > slot.confirmed:\n",
        "    if True:\n",
        (f"{PG_CDC}::test_the_slot_moves_when_it_is_acknowledged_but_not_all_the_time",),
    ),
    Guard(
        "PostgreSQL CDC: whoever only asks publishes nothing",
        "connectors/postgres_cdc/control.py",
        "        can_publish(self._session, self._settings, table)\n",
        "        ensure_publication(self._session, self._settings, table)\n",
        (*CONTROLS, "-k", "postgres_cdc"),
    ),
    Guard(
        "PostgreSQL CDC: whoever only asks makes no slot",
        "connectors/postgres_cdc/control.py",
        "            self._refuse_lost(offsets)\n",
        "            self.check(offsets)\n",
        (f"{PG_CDC_FAILS}::test_whoever_only_asks_makes_no_slot_and_notes_no_table",),
    ),
    Guard(
        "PostgreSQL CDC: a chunk of the snapshot that is gone is found at a start",
        "connectors/postgres_cdc/snapshot.py",
        "snapshot is None or _chunk_name(number) not in names]",
        "snapshot is None]",
        (f"{PG_CDC_FAILS}::test_a_chunk_of_the_snapshot_that_is_gone_is_found_at_the_start",),
    ),
    Guard(
        "PostgreSQL CDC: a slot of another pipeline is left alone",
        "connectors/postgres_cdc/control.py",
        "        if slot is not None and self._context.materials.get(_BEGUN) is None:\n",
        "        if False:\n",
        (f"{PG_CDC_FAILS}::test_a_slot_of_somebody_else_is_left_alone",),
    ),
    Guard(
        "PostgreSQL CDC: the snapshot stays while a checkpoint reads it",
        "connectors/postgres_cdc/control.py",
        "        if position.chunk is None and self._has_materials:\n",
        "        if self._has_materials:\n",
        (f"{PG_CDC}::test_snapshot_epochs_are_chunks_that_can_be_read_again",),
    ),
    Guard(
        "PostgreSQL CDC: a snapshot goes with its slot",
        "connectors/postgres_cdc/control.py",
        "        if snapshot is None or slot is None or slot.lost or slot.confirmed > snapshot.lsn:\n",
        "        if snapshot is None:\n",
        (f"{PG_CDC_FAILS}::test_a_snapshot_without_its_slot_is_taken_again",),
    ),
    Guard(
        "PostgreSQL CDC: a table without an identity is not published",
        "connectors/postgres_cdc/table.py",
        '    if identity != "f" and not (identity in ("d", "i") and has_index):\n',
        "    if False:\n",
        (f"{PG_CDC_FAILS}::test_a_table_whose_changes_would_not_be_told_is_refused",),
    ),
    Guard(
        "PostgreSQL CDC: a table that is not published any more is noticed",
        "connectors/postgres_cdc/table.py",
        "    if entry is None:\n",
        "    if False:\n",
        (f"{PG_CDC_FAILS}::test_a_table_that_was_made_again_is_noticed_while_reading",),
    ),
    Guard(
        "PostgreSQL CDC: a column that is new stops the pipeline",
        "connectors/postgres_cdc/rows.py",
        "        if added:\n",
        "        if False:\n",
        (f"{PG_CDC_FAILS}::test_a_new_column_stops_the_pipeline_and_is_there_after_a_restart",),
    ),
    Guard(
        "PostgreSQL CDC: a column that is gone stops the pipeline",
        "connectors/postgres_cdc/rows.py",
        "        if gone:\n",
        "        if False:\n",
        (f"{PG_CDC_FAILS}::test_a_dropped_column_stops_the_pipeline_until_a_restart",),
    ),
    Guard(
        "PostgreSQL CDC: a column of another type stops the pipeline",
        "connectors/postgres_cdc/rows.py",
        "            if not holds(wanted, was):\n",
        "            if False:\n",
        (f"{PG_CDC_FAILS}::test_a_column_that_was_widened_is_read_on_after_a_restart",),
    ),
    Guard(
        "PostgreSQL CDC: a table that was renamed stops the pipeline",
        "connectors/postgres_cdc/transactions.py",
        "        if ours != ((message.schema, message.name) == (self._table.schema, self._table.name)):\n",
        "        if False:\n",
        (f"{PG_CDC_FAILS}::test_a_table_that_was_renamed_stops_the_pipeline",),
    ),
    Guard(
        "PostgreSQL CDC: a table that was made again is another one",
        "connectors/postgres_cdc/control.py",
        "        self._refuse_other_table(table)\n",
        "",
        (f"{PG_CDC_FAILS}::test_a_table_that_was_made_again_is_another_one_in_a_publication_of_all",),
    ),
    Guard(
        "PostgreSQL CDC: a table that is rewritten before it is copied is not empty",
        "connectors/postgres_cdc/snapshot.py",
        "    if session.run(_REWRITTEN, table.id):\n",
        "    if False:\n",
        (f"{PG_CDC_FAILS}::test_a_table_that_is_rewritten_before_it_is_copied_is_not_empty",),
    ),
    Guard(
        "PostgreSQL CDC: a slot that moves while it is copied is noticed",
        "connectors/postgres_cdc/feed.py",
        "        if parse_lsn(lsn) > max(begin, held.confirmed):",
        "        if False:",
        (f"{PG_CDC_FAILS}::test_a_slot_that_is_moved_while_it_is_copied_is_history_lost",),
    ),
    Guard(
        "PostgreSQL CDC: a renamed column of the snapshot is not read as NULL",
        "connectors/postgres_cdc/stream.py",
        "            patiently(lambda: self._refuse_renamed(snapshot), PATIENCE_SECONDS, self._clock)\n",
        "",
        (f"{PG_CDC_FAILS}::test_a_snapshot_from_before_a_column_was_renamed_is_not_read_with_null",),
    ),
    Guard(
        "clear: only what a fence gives up is removed",
        "stores/retention.py",
        '        if fence.kind != "fence" or fence.epoch != 0:\n',
        "        if False:\n",
        ("tests/engine/test_clearing.py",),
    ),
    Guard(
        "clear: savepoints stay until somebody releases them",
        "engine/clearing.py",
        "    refuse_savepoints(store)\n    removed",
        "    removed",
        ("tests/engine/test_clearing.py",),
    ),
    Guard(
        "clear: only while the pipeline is stopped",
        "interfaces/manager/supervisor.py",
        "if self._standing.phase is not Phase.STOPPED or self._memory.now.desired is not Desired.STOPPED:",
        "if False:",
        ("tests/interfaces/test_supervision.py",),
    ),
    Guard(
        "clear: no start meanwhile",
        "interfaces/manager/supervisor.py",
        "            if remembered.storage is StorageStatus.CLEARING:\n",
        "            if False:\n",
        ("tests/interfaces/test_supervision.py",),
    ),
    Guard(
        "manager: two of them do not run one pipeline",
        "interfaces/manager/memory.py",
        "        return locks.take(os.path.join(folder, _LOCK), patience=0)\n",
        "        return locks.take(os.path.join(folder, str(os.urandom(8))), patience=0)\n",
        ("tests/interfaces/test_manager_parts.py",),
    ),
    Guard(
        "manager: a fenced pipeline is not started again",
        "interfaces/manager/restarting.py",
        "    ExitCode.FENCED,\n",
        "",
        ("tests/interfaces/test_manager_parts.py", "tests/interfaces/test_supervision.py"),
    ),
    Guard(
        "manager: processes end when it is gone",
        "interfaces/manager/tether.py",
        "        os.kill(os.getpid(), signal.SIGTERM)\n",
        "        return\n",
        ("tests/interfaces/test_supervision.py", "-k", "outlive"),
    ),
    Guard(
        "sync: a bucket of another pipeline is refused",
        "engine/sync/owner.py",
        "        if owner is None or owner.timeline == timeline or not self._bucket.list_ids():\n",
        "        if True:\n",
        PUSH,
    ),
    Guard(
        "sync: a later owner is given way to",
        "engine/sync/owner.py",
        "        if ownership.generation > generation:\n            raise self.fenced(ownership.owner)\n",
        "",
        PUSH,
    ),
    Guard(
        "sync: the owner is replaced only as the one that was seen",
        "engine/sync/owner.py",
        "self._document.replace(ownership.seen, owner.to_json_value())",
        "self._document.replace(self._document.read(), owner.to_json_value())",
        TAKE_OVER,
    ),
    Guard(
        "sync: the owner is asked again before the manifest is created",
        "engine/sync/push.py",
        "        check()\n        created = self._seal(manifest)\n",
        "        created = self._seal(manifest)\n",
        PUSH,
    ),
    Guard(
        "sync: the owner is asked again before a sidecar appears",
        "engine/sync/copying.py",
        "            counted(length)\n        before_it_counts()\n",
        "            counted(length)\n",
        PUSH,
    ),
    Guard(
        "sync: what was sent is read back",
        "engine/sync/push.py",
        "        self._verify(manifest, missing)\n",
        "",
        PUSH,
    ),
    Guard(
        "sync: only what all sinks show is copied",
        "engine/sync/push.py",
        "manifest.epoch > 0 and _settled(manifest) and",
        "manifest.epoch > 0 and",
        PUSH,
    ),
    Guard(
        "sync: a manifest comes after what it needs",
        "engine/sync/push.py",
        "        check()\n        missing = self._missing(manifest)\n",
        "        check()\n        self._seal(manifest)\n        missing = self._missing(manifest)\n",
        PUSH,
    ),
    Guard(
        "sync: a pull is verified before its manifest is sealed",
        "engine/sync/pull.py",
        "        damage = local.damage_in(manifest, sizes)\n",
        "        damage: list[str] = []\n",
        PULL,
    ),
    Guard(
        "sync: sidecars come before the manifest",
        "engine/sync/pull.py",
        '        """Sidecars, verified; files beside them; the manifest."""\n',
        "        self._seal(manifest, moved)\n",
        PULL,
    ),
    Guard(
        "sync: a late checkpoint of a writer that was replaced does not count",
        "engine/sync/catalogue.py",
        "        if generation >= highest:\n",
        "        if True:\n",
        PULL,
    ),
    Guard(
        "sync: a file beside the checkpoints is compared",
        "engine/sync/materials.py",
        "            _compare(path, name, entry)\n            local.put_file",
        "            local.put_file",
        (f"{SYNC}materials.py",),
    ),
    Guard(
        "sync: a seal is recorded before its sinks commit",
        "engine/checkpoints.py",
        "        self._witness.record(sealed, progress)\n",
        "",
        TAKE_OVER,
    ),
    Guard(
        "sync: a take-over is announced",
        "engine/fencing.py",
        "            witness.announce(fence)\n",
        "            pass\n",
        TAKE_OVER,
    ),
    Guard(
        "sync: a generation is later than any that was announced",
        "engine/fencing.py",
        "        decision = replace(decision, generation=max(decision.generation, witness.generation()))\n",
        "",
        TAKE_OVER,
    ),
    Guard(
        "sync: what was sealed and not recorded is recorded first",
        "engine/sync/journal.py",
        "        if self._every_seal:\n            self._catch_up()\n",
        "",
        TAKE_OVER,
    ),
    Guard(
        "sync: a seal that came before our fence counts",
        "engine/sync/journal.py",
        "            if self._store.newest_id() >= fence.checkpoint_id:\n",
        "            if False:\n",
        TAKE_OVER,
    ),
    Guard(
        "sync: a machine that was replaced does not come back by itself",
        "engine/sync/standing.py",
        "    if not ours and owned is not None and ownership.generation > owned:\n        return Standing.REPLACED\n",
        "",
        TAKE_OVER,
    ),
    Guard(
        "sync: rows that wait on another machine are computed again",
        "engine/startup.py",
        "not (self._options.moved and sink.guarantee.spools)",
        "True",
        TAKE_OVER,
    ),
    Guard(
        "sync: nothing young leaves the bucket",
        "engine/sync/retention.py",
        "max(self._settings.retention_min_count, len(young))",
        "self._settings.retention_min_count",
        (f"{SYNC}retention.py",),
    ),
    Guard(
        "sync: what was copied last is not pruned here",
        "stores/retention.py",
        "lambda id: self._held[id] > 0",
        "lambda id: False",
        (f"{SYNC}service.py",),
    ),
    Guard(
        "sync: a pulled sidecar is flushed",
        "stores/directory.py",
        "                    file.write(chunk)\n                file.sync()\n                aside",
        "                    file.write(chunk)\n                aside",
        (f"{SYNC}power.py",),
    ),
    Guard(
        "sync: the name of a pulled sidecar is flushed",
        "stores/directory.py",
        "os.path.join(self._retained, name))\n"
        "                self._disk.sync_directory(self._retained)\n            finally",
        "os.path.join(self._retained, name))\n            finally",
        (f"{SYNC}power.py",),
    ),
    Guard(
        "sync: a document is flushed",
        "stores/directory.py",
        "            self._replace(os.path.join(self._base, name), data, flush=True)\n",
        "            self._replace(os.path.join(self._base, name), data, flush=False)\n",
        (f"{SYNC}power.py",),
    ),
    Guard(
        "a query that starts again is asked, not the one before it",
        "spark/batch.py",
        "        self._java_query = None\n        self.tables",
        "        self.tables",
        (f"{RECOVERY}::test_two_epochs_damaged_are_replayed_one_by_one",),
    ),
    Guard(
        "history: what is just being written is shown",
        "engine/history.py",
        "return [*self._in_writing, *self._waiting]",
        "return [*self._waiting]",
        HISTORY,
    ),
    Guard(
        "history: what is written while somebody reads is shown once",
        "stores/history.py",
        "known, some = set(new), list(",
        "known, some = set[bytes](), list(",
        HISTORY,
    ),
    Guard(
        "http: the status is answered while every thread waits",
        "interfaces/http/checkpoint_api.py",
        "async def checkpoint_status(",
        "def checkpoint_status(",
        POLLED,
    ),
    Guard(
        "http: the numbers are answered while every thread waits",
        "interfaces/http/checkpoint_api.py",
        "async def stats(",
        "def stats(",
        POLLED,
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
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for number, (guard, test) in enumerate(zip(chosen, pool.map(noticed_by, chosen), strict=True), 1):
            unnoticed += test is None
            print(f"[{number}/{len(chosen)}] {guard.name}: {test or 'NOTHING NOTICED'}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)  # After an error or an interruption nobody waits for the rest.
    print(f"{len(chosen) - unnoticed} of {len(chosen)} guards are noticed when they are gone")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
