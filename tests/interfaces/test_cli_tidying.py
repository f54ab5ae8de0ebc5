"""prune, orphans and savepoints."""

from pathlib import Path

import pytest

from holdfast import OperatorCheckpoint
from holdfast.interfaces.cli import running
from interfaces.chains import Chain
from interfaces.conftest import Run, writable
from stores.builders import seal


@pytest.fixture
def independent(path: Path) -> Path:
    """Return a store with six checkpoints that share nothing."""
    seal(writable(path), *range(1, 7))
    return path


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a person sit there."""
    monkeypatch.setattr(running, "someone_can_answer", lambda: True)


def ids(path: Path, run: Run) -> list[int]:
    return [c["checkpoint_id"] for c in run("list", path, "--json").json["checkpoints"]]


def test_prune_removes_and_says_what(independent: Path, run: Run) -> None:
    ran = run("prune", independent, "--keep", 2, "--yes")
    assert ran.code == 0
    assert ran.out.startswith("removed 4 checkpoints: 1-4, freed ")
    assert "kept 5-6" in ran.out
    assert ids(independent, run) == [5, 6]


def test_prune_as_json(independent: Path, run: Run) -> None:
    document = run("prune", independent, "--keep", 2, "-y", "--json").json
    assert document["removed"] == [1, 2, 3, 4]
    assert document["remaining"] == [5, 6]
    assert document["freed_bytes"] > 0
    assert document["dry_run"] is False


def test_prune_dry_run_removes_nothing_and_tells_the_truth(independent: Path, run: Run) -> None:
    ran = run("prune", independent, "--keep", 2, "--dry-run")
    assert ran.out == "would remove 4 checkpoints: 1-4\nwould keep 5-6\n"
    planned = run("prune", independent, "--keep", 2, "--dry-run", "--json").json
    assert ids(independent, run) == [1, 2, 3, 4, 5, 6]
    assert run("prune", independent, "--keep", 2, "--yes", "--json").json["removed"] == planned["removed"]


@pytest.mark.usefixtures("terminal")
def test_prune_asks_on_a_terminal(independent: Path, run: Run) -> None:
    ran = run("prune", independent, "--keep", 2, answer="n\n")
    assert ran.code == 1
    assert "remove 4 checkpoints?" in ran.err
    assert "nothing was removed" in ran.err
    assert ids(independent, run) == [1, 2, 3, 4, 5, 6]
    assert run("prune", independent, "--keep", 2, answer="y\n").code == 0
    assert ids(independent, run) == [5, 6]


@pytest.mark.usefixtures("terminal")
def test_prune_keeps_stdout_clean_while_it_asks(independent: Path, run: Run) -> None:
    assert run("prune", independent, "--keep", 2, "--json", answer="y\n").json["removed"] == [1, 2, 3, 4]


@pytest.mark.usefixtures("terminal")
def test_prune_is_stopped_by_the_end_of_input(independent: Path, run: Run) -> None:
    assert run("prune", independent, "--keep", 2, answer="").code == 1
    assert ids(independent, run) == [1, 2, 3, 4, 5, 6]


def test_prune_without_anybody_to_ask_needs_yes(independent: Path, run: Run) -> None:
    ran = run("prune", independent, "--keep", 2)
    assert ran.code == 2
    assert "give --yes" in ran.err
    assert ids(independent, run) == [1, 2, 3, 4, 5, 6]


def test_prune_with_nothing_to_do_does_not_ask(independent: Path, run: Run) -> None:
    ran = run("prune", independent, "--keep", 9)
    assert ran.code == 0
    assert ran.out == "removed nothing\nkept 1-6\n"


def test_prune_spares_savepoints(independent: Path, run: Run) -> None:
    assert run("savepoint", "create", independent, "release-1.0", 2).code == 0
    ran = run("prune", independent, "--keep", 1, "--yes")
    assert "(savepoints: release-1.0)" in ran.out
    assert ids(independent, run) == [2, 5, 6]
    assert run("savepoint", "release", independent, "release-1.0").code == 0
    run("prune", independent, "--keep", 1, "--yes")
    assert ids(independent, run) == [5, 6]


def test_prune_keeps_a_chain_readable(chain: Chain, path: Path, run: Run) -> None:
    run("prune", path, "--keep", 1, "--yes")
    assert run("verify", path).code == 0


def test_orphans_counts_what_went(independent: Path, run: Run) -> None:
    store = writable(independent)
    store.save_with_state(
        seal(store, 7).model_copy(
            update={"checkpoint_id": 8, "operator_states": {"x": OperatorCheckpoint.external(0, 1)}}
        ),
        [b"x"],
    )
    (independent / "checkpoints/checkpoint_000007/manifest.json").unlink()
    (independent / "checkpoints/.staging/dead").mkdir()
    preview = run("orphans", independent, "--dry-run")
    assert "would remove checkpoint 7 (no manifest)" in preview.out
    assert run("orphans", independent, "--dry-run", "--json").json["found"] == ["checkpoint 7 (no manifest)"]
    assert 7 in ids(independent, run)
    ran = run("orphans", independent)
    assert ran.out.startswith("removed 2 leftovers, freed ")
    assert 7 not in ids(independent, run)
    assert run("orphans", independent, "--json").json["removed"] == 0


def test_orphans_finds_retained_sidecars_that_nobody_needs(chain: Chain, path: Path, run: Run) -> None:
    retained = path / "checkpoints/retained/state-000003-dead.bin"
    retained.write_bytes(b"left behind")
    assert run("orphans", path, "--dry-run", "--json").json["found"] == ["state-000003-dead.bin"]
    assert run("orphans", path, "--json").json["removed"] == 1
    assert not retained.exists()


def test_orphans_says_why_a_damaged_manifest_blocks_it(chain: Chain, path: Path, run: Run) -> None:
    (path / "checkpoints/checkpoint_000003/manifest.json").write_text("{}")
    for arguments in ((), ("--dry-run",)):
        ran = run("orphans", path, *arguments)
        assert ran.code == 0
        assert "note: the manifest of checkpoint 3 cannot be read" in ran.out


def test_orphans_on_every_kind_of_store(url: str, run: Run) -> None:
    store = writable(url)
    store.save_state_data(1, [b"orphan"])
    seal(store, 2)
    found = run("orphans", url, "--dry-run", "--json").json
    assert len(found["found"]) == 1
    assert run("orphans", url, "--json").json["removed"] == 1


def test_savepoint_life(chain: Chain, path: Path, run: Run) -> None:
    created = run("savepoint", "create", path, "v1")
    assert created.out == "created savepoint v1: checkpoint 5, epoch 4; pruning will keep it\n"
    assert run("savepoint", "create", path, "v1", 5).code == 0, "naming it again is fine"
    listed = run("savepoint", "list", path)
    assert "v1" in listed.out
    assert [c["name"] for c in run("savepoint", "list", path, "--json").json["checkpoints"]] == ["v1"]
    released = run("savepoint", "release", path, "v1", "--json").json
    assert (released["action"], released["checkpoint_id"]) == ("released", 5)
    assert run("savepoint", "list", path).out == f"no savepoints in {path}\n"


def test_savepoint_as_json(chain: Chain, path: Path, run: Run) -> None:
    document = run("savepoint", "create", path, "v1", 3, "--json").json
    assert (document["action"], document["name"], document["checkpoint_id"]) == ("created", "v1", 3)


def test_savepoint_names_are_unique(chain: Chain, path: Path, run: Run) -> None:
    run("savepoint", "create", path, "v1", 3)
    again = run("savepoint", "create", path, "v1", 4)
    assert again.code == 2
    assert "savepoint 'v1' exists: it is checkpoint 3" in again.err
    second = run("savepoint", "create", path, "v2", 3)
    assert second.code == 2
    assert "already is savepoint 'v1'" in second.err


def test_a_damaged_checkpoint_cannot_be_a_savepoint(chain: Chain, path: Path, run: Run) -> None:
    state = path / "checkpoints/checkpoint_000005/state.bin"
    state.write_bytes(state.read_bytes()[:-1] + b"?")
    ran = run("savepoint", "create", path, "v1")
    assert ran.code == 1
    assert "checkpoint 5 cannot be a savepoint" in ran.err
    assert run("savepoint", "create", path, "v1", "--no-verify").code == 0
    state.unlink()
    assert run("savepoint", "create", path, "v2", 5, "--no-verify").code in (1, 2)
    assert run("savepoint", "create", path, "v0", 1).code == 1, "the first fence has nothing to restore"


def test_savepoints_on_every_kind_of_store(url: str, run: Run) -> None:
    Chain(writable(url)).seal(1)
    assert run("savepoint", "create", url, "v1").code == 0
    assert run("show", url, "v1", "--json").json["checkpoint_id"] == 1
    assert run("savepoint", "release", url, "v1").code == 0
