"""list, show, diff: for people and as JSON."""

import json
from pathlib import Path
from uuid import UUID

import pytest

from holdfast import CheckpointManifest, OperatorCheckpoint, PSpineBatches, SinkCommitStatus
from holdfast.core.manifest import checksum_of
from holdfast.engine.fencing import take_over
from interfaces.chains import START_MS, TIMELINE, Chain
from interfaces.conftest import Run, writable


def manifest_of(path: Path, id: int) -> Path:
    return path / "checkpoints" / f"checkpoint_{id:06d}" / "manifest.json"


def cells(out: str, id: int) -> list[str]:
    """Return the cells of the row of one checkpoint."""
    row = next(line for line in out.splitlines() if line.split()[:1] == [str(id)])
    return row.split()


def test_list_is_a_table_with_one_line_per_checkpoint(chain: Chain, path: Path, run: Run) -> None:
    ran = run("list", path)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].split() == ["ID", "EPOCH", "AGE", "KIND", "NAME", "SIZE", "SINKS", "CONDITION"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4", "5"]
    assert cells(ran.out, 1)[-1] == "start"
    assert cells(ran.out, 5)[-3:] == ["1/2", "committed", "valid"]
    assert all(line == line.rstrip() for line in lines)


def test_list_as_json(chain: Chain, path: Path, run: Run) -> None:
    document = run("list", path, "--json").json
    assert document["total"] == 5
    newest = document["checkpoints"][-1]
    assert newest["checkpoint_id"] == 5
    assert newest["epoch"] == 4
    assert newest["condition"] == "valid"
    assert newest["created_at"] == "2026-01-01T00:04:00.000Z"
    assert newest["sinks"] == {"lake": "Committed", "pg": "Pending"}
    assert newest["size"] > 6000


def test_list_shows_and_marks_damage(chain: Chain, path: Path, run: Run) -> None:
    manifest_of(path, 3).write_text(manifest_of(path, 3).read_text().replace('"epoch": 2', '"epoch": 3', 1))
    manifest_of(path, 4).unlink()
    (path / "checkpoints/checkpoint_000002/state.bin").unlink()
    conditions = {c["checkpoint_id"]: c["condition"] for c in run("list", path, "--json").json["checkpoints"]}
    assert conditions == {1: "start", 2: "broken", 3: "corrupt", 4: "orphan", 5: "broken"}
    out = run("list", path).out
    assert "corrupt: manifest checksum mismatch\n" in out
    assert "orphan: it has no manifest" in out
    assert "broken: sidecar state-000002.bin is missing" in out


def test_list_names_who_abandoned_a_checkpoint(chain: Chain, path: Path, run: Run) -> None:
    (path / "checkpoints/checkpoint_000005/state.bin").write_bytes(b"gone")
    take_over(chain.store)
    out = run("list", path).out
    assert "(abandoned by 6)" in next(line for line in out.splitlines() if line.startswith(" 5 "))
    assert run("show", path, 5, "--json").json["abandoned_by"] == 6


def test_list_marks_manifests_of_others_and_of_the_future(chain: Chain, path: Path, run: Run) -> None:
    other, future = (json.loads(manifest_of(path, id).read_text()) for id in (4, 5))
    manifest_of(path, 4).write_text(json.dumps(other | {"manifest_checksum": None}))
    future["version"] = 9
    manifest_of(path, 5).write_text(json.dumps(future | {"manifest_checksum": checksum_of(future)}))
    conditions = [c["condition"] for c in run("list", path, "--json").json["checkpoints"]]
    assert conditions[-2:] == ["foreign", "unsupported"]


def test_list_can_be_cut_to_the_newest(chain: Chain, path: Path, run: Run) -> None:
    document = run("list", path, "--last", 2, "--json").json
    assert [c["checkpoint_id"] for c in document["checkpoints"]] == [4, 5]
    assert document["total"] == 5
    assert len(run("list", path, "--last", 99, "--json").json["checkpoints"]) == 5


def test_list_of_an_empty_store_says_so(path: Path, run: Run) -> None:
    writable(path)
    assert run("list", path).out == f"no checkpoints in {path}\n"
    assert run("list", path, "--json").json["checkpoints"] == []


def test_list_works_on_every_kind_of_store(url: str, run: Run) -> None:
    Chain(writable(url)).seal(1)
    assert [c["checkpoint_id"] for c in run("list", url, "--json").json["checkpoints"]] == [1]
    assert "valid" in run("list", url).out


def test_show_reads_like_a_report(chain: Chain, path: Path, run: Run) -> None:
    """Goal: everything the issue names is on the screen. Method: compare whole lines, but for the age."""
    chain.store.set_identifier(5, "before-upgrade")
    out = run("show", path).out
    age, *rest = (line for line in out.splitlines() if line)
    assert age == f"checkpoint 5 of {path}"
    assert rest[0].split()[0] == "age"
    assert "sealed 2026-01-01T00:04:00.000Z" in rest[0]
    assert [" ".join(line.split()) for line in rest[1:]] == [
        "condition valid (manifest true, sidecars there; 'holdfast verify' reads every byte)",
        "epoch 4",
        "id 5",
        "uuid 01890a5d-ac96-7000-8000-000000000005",
        "kind checkpoint",
        "savepoint before-upgrade",
        f"timeline {TIMELINE}",
        "generation 1",
        "parent checkpoint 4",
        "watermark 2026-01-01T00:00:04.000Z (1767225604000)",
        "records 40",
        "fingerprint 12345",
        "vnodes 4",
        "sources",
        "NAME OFFSET NEXT WATERMARK LAG",
        "orders partition-0 400 2026-01-01T00:00:04.000Z (1767225604000) 1,230 records",
        "orders partition-1 28 2026-01-01T00:00:04.000Z (1767225604000) 1,230 records",
        "users file part-4.csv - -",
        "sinks",
        "NAME STATUS EPOCH TOKEN",
        "lake Committed 4 -",
        "pg Pending 3 yes",
        "operators",
        "NAME PLACE FILES SIZE NEW HERE FROM EARLIER",
        "agg external 4 23.4 KiB 5.9 KiB 17.6 KiB",
        "dedup inline 1 100 B 100 B 0 B",
        "holdfast.progress external - 206 B 206 B 0 B",
        "all state 5 23.5 KiB 6.0 KiB 17.6 KiB",
        "depends on",
        "SIDECAR WHOSE SIZE USED",
        "state-000002.bin earlier 6.2 KiB 5.9 KiB",
        "state-000003.bin earlier 6.3 KiB 5.9 KiB",
        "state-000004.bin earlier 6.4 KiB 5.9 KiB",
        "state-000005.bin own 6.5 KiB 5.9 KiB",
    ]


def test_show_as_json(chain: Chain, path: Path, run: Run) -> None:
    document = run("show", path, "latest", "--json").json
    assert document["checkpoint_id"] == 5
    assert document["timeline"] == str(TIMELINE)
    assert document["timestamp_ms"] == START_MS + 240_000
    assert document["sources"][0]["offsets"] == {"partition-0": "400", "partition-1": "28"}
    assert document["sinks"][1] == {"name": "pg", "status": "Pending", "message": None, "epoch": 3, "has_token": True}
    assert document["operators"][0] == {
        "name": "agg",
        "placement": "external",
        "files": 4,
        "bytes": 24000,
        "new_bytes": 6000,
        "referenced_bytes": 18000,
    }
    assert [use["name"] for use in document["depends_on"]] == [f"state-{id:06d}.bin" for id in range(2, 6)]
    assert document["warnings"] == []


@pytest.mark.parametrize("reference", ["3", "003", "nightly"])
def test_show_finds_by_id_and_by_name(chain: Chain, path: Path, run: Run, reference: str) -> None:
    chain.store.set_identifier(3, "nightly")
    assert run("show", path, reference, "--json").json["checkpoint_id"] == 3


def test_show_of_a_fence_tells_what_recovery_decided(chain: Chain, path: Path, run: Run) -> None:
    (path / "checkpoints/checkpoint_000005/state.bin").write_bytes(b"gone")
    take_over(chain.store)
    out = run("show", path, 6).out
    assert "chose 4" in out
    assert "skipped 5: " in out
    assert "all state" in out
    operators = run("show", path, 6, "--json").json["operators"]
    assert operators[0]["new_bytes"] == 0, "a fence brings no bytes of its own"


def test_show_of_a_checkpoint_with_a_missing_sidecar_still_reports(chain: Chain, path: Path, run: Run) -> None:
    (path / "checkpoints/checkpoint_000005/state.bin").unlink()
    ran = run("show", path, 5)
    assert ran.code == 0
    assert "broken: sidecar state-000005.bin is missing" in ran.out
    assert "partition-0" in ran.out


def test_show_files_lists_every_state_file(chain: Chain, path: Path, run: Run) -> None:
    out = run("show", path, 3, "--files").out
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [
        ["agg", "0/1.delta", "6000", "state-000002.bin"],
        ["agg", "0/2.delta", "6000", "state-000003.bin"],
        ["dedup", "0/current", "100", "inline"],
    ]


def test_show_files_as_json_is_in_the_form_other_tools_read(chain: Chain, path: Path, run: Run) -> None:
    ran = run("show", path, 3, "--files", "--json")
    assert ran.json == {"files": ["agg/0/1.delta", "agg/0/2.delta", "dedup/0/current"]}
    assert PSpineBatches.model_validate_json(ran.out).files[0] == "agg/0/1.delta"


def test_show_manifest_prints_it_as_it_stands(chain: Chain, path: Path, run: Run) -> None:
    text = manifest_of(path, 5).read_text()
    assert run("show", path, 5, "--manifest").out == text
    assert run("show", path, 5, "--manifest", "--json").json == json.loads(text)


def test_show_manifest_works_on_a_damaged_one(chain: Chain, path: Path, run: Run) -> None:
    manifest_of(path, 5).write_bytes(b'{"version": 1,\n \xff\x1b[31m')
    assert run("show", path, 5).code == 1
    assert run("show", path, 5, "--manifest").out == '{"version": 1,\n \\xff\\x1b[31m\n'
    assert "damaged_manifest" in run("show", path, 5, "--manifest", "--json").json


def test_foreign_text_cannot_paint_the_terminal_or_break_lines(path: Path, run: Run) -> None:
    store = writable(path)
    nasty = "a\n[red]\x1b[31m"
    store.save(
        CheckpointManifest.new(1, 1).model_copy(
            update={"sink_names": [nasty], "sink_commit_statuses": {nasty: SinkCommitStatus.failed(nasty)}}
        )
    )
    out = run("show", path).out
    assert "\x1b" not in out
    assert "a\\n[red]\\x1b[31m  Failed" in out


def test_show_of_plain_operators_and_odd_times(path: Path, run: Run) -> None:
    store = writable(path)
    manifest = CheckpointManifest.new(1, 1).model_copy(
        update={
            "timestamp_ms": 2**64 - 1,
            "watermark": -(2**63),
            "operator_states": {"a": OperatorCheckpoint.inline(b"12345"), "b": OperatorCheckpoint.external(0, 4)},
        }
    )
    store.save_with_state(manifest, [b"1234"])
    out = run("show", path).out
    assert "in the future (sealed 18446744073709551615)" in out
    assert "watermark  -9223372036854775808" in out
    assert run("show", path, "--files").out.startswith("checkpoint 1 has no state files")
    sizes = {o["name"]: (o["placement"], o["bytes"]) for o in run("show", path, "--json").json["operators"]}
    assert sizes == {"a": ("inline", 5), "b": ("external", 4)}


def test_diff_shows_what_moved(chain: Chain, path: Path, run: Run) -> None:
    out = run("diff", path, 3, 5).out
    lines = [" ".join(line.split()) for line in out.splitlines() if line]
    assert lines == [
        f"checkpoint 3 -> 5 of {path}",
        "+2 epochs, 2m later",
        "sources",
        "orders +214 in all",
        "partition-0 200 -> 400 +200",
        "partition-1 14 -> 28 +14",
        "users",
        "file part-2.csv -> part-4.csv",
        "watermarks",
        "all 2026-01-01T00:00:02.000Z (1767225602000) -> 2026-01-01T00:00:04.000Z (1767225604000) +2000 ms",
        "orders 2026-01-01T00:00:02.000Z (1767225602000) -> 2026-01-01T00:00:04.000Z (1767225604000) +2000 ms",
        "sinks",
        "lake epoch 2, Committed -> epoch 4, Committed",
        "pg epoch 1, Pending -> epoch 3, Pending",
        "operators",
        "agg 11.7 KiB -> 23.4 KiB grown by 11.7 KiB",
        "bytes added to the store",
        "6.6 KiB -> 6.8 KiB",
        "11.7 KiB of state files are the same in both",
    ]


def test_diff_as_json_names_changes_of_identity(chain: Chain, path: Path, run: Run) -> None:
    other = UUID(int=7)
    chain.seal(6, epoch=5, timeline=other, fingerprint=2**63, source_names=["orders"], vnode_count=8)
    document = run("diff", path, 5, 6, "--json").json
    assert (document["before"], document["after"], document["epochs"]) == (5, 6, 1)
    changed = {change["name"]: (change["before"], change["after"]) for change in document["identity"]}
    assert changed == {
        "timeline": (str(TIMELINE), str(other)),
        "fingerprint": (12345, 2**63),
        "source_names": ("orders, users", "orders"),
        "vnode_count": (4, 8),
    }
    assert document["sources"][0]["moved"] == 107
    assert document["watermark"]["moved"] == 1000
    assert document["shared_bytes"] == 24000
    assert "fingerprint" in run("diff", path, 5, 6).out


def test_diff_says_how_the_pipeline_was_changed(path: Path, run: Run) -> None:
    chain = Chain(writable(path))
    chain.seal(1, identity={"sinks": {"pg": {"table": "a"}}, "stateful": ["agg"]})
    chain.seal(2, identity={"sinks": {"pg": {"table": "b"}}, "stateful": ["agg"]})
    assert "sink 'pg' changed: table was a, is b" in run("diff", path, 1, 2).out
    assert run("diff", path, 1, 2, "--json").json["definition"] == ["sink 'pg' changed: table was a, is b"]
    assert run("show", path, "--json").json["identity"]["stateful"] == ["agg"]


def test_diff_backwards_and_with_sources_that_come_and_go(path: Path, run: Run) -> None:
    chain = Chain(writable(path))
    chain.seal(1)
    chain.seal(2, source_offsets={})
    out = run("diff", path, 2, 1).out
    assert "-1 epochs, 1m earlier" in out
    assert "orders               added" in out
    assert "agg  11.7 KiB -> 5.9 KiB  shrunk by 5.9 KiB" in out
