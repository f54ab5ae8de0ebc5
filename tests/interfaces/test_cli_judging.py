"""verify and recover --dry-run: verdicts, reasons, exit codes."""

import shutil
from pathlib import Path

import pytest

from holdfast.engine.fencing import take_over
from holdfast.interfaces.opening import open_service
from interfaces.chains import TIMELINE, Chain
from interfaces.conftest import Run, writable


def damage(path: Path, id: int, position: int = 3000) -> None:
    """Flip one bit in the state of a checkpoint."""
    file = path / "checkpoints" / f"checkpoint_{id:06d}" / "state.bin"
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def test_verify_of_a_sound_store(chain: Chain, path: Path, run: Run) -> None:
    ran = run("verify", path)
    assert ran.code == 0
    assert ran.out.splitlines()[:2] == ["checkpoint 1: start", "checkpoint 2: valid"]
    assert ran.out.splitlines()[-1].startswith("verdict: sound: 5 checkpoints, ")
    assert run("verify", path, "--all").out.splitlines()[:-1] == ran.out.splitlines()[:-1]


def test_verify_as_json(chain: Chain, path: Path, run: Run) -> None:
    document = run("verify", path, "--json").json
    assert document["sound"] is True
    assert [v["outcome"] for v in document["verdicts"]] == ["start", "valid", "valid", "valid", "valid"]
    assert document["bytes_read"] > 4 * 6000


def test_verify_finds_one_flipped_bit_in_everything_that_needs_it(chain: Chain, path: Path, run: Run) -> None:
    damage(path, 3)
    ran = run("verify", path)
    assert ran.code == 1
    assert ran.out.splitlines()[-1].startswith("verdict: damaged: 3 of 5 checkpoints (3-5), ")
    assert "damage: state.bin checksum mismatch" in ran.out or "checksum mismatch" in ran.out
    document = run("verify", path, "--json").json
    assert document["damaged"] == [3, 4, 5]


def test_verify_of_chosen_checkpoints(chain: Chain, path: Path, run: Run) -> None:
    damage(path, 4)
    chain.store.set_identifier(3, "nightly")
    assert run("verify", path, 2, "nightly", 2).out.splitlines()[:2] == ["checkpoint 2: valid", "checkpoint 3: valid"]
    assert run("verify", path, "nightly").code == 0
    assert run("verify", path, "--latest").code == 1
    assert run("verify", path, "--latest", "--json").json["damaged"] == [5]


def test_what_no_start_goes_on_from_is_not_called_good(chain: Chain, path: Path, run: Run) -> None:
    """Sound, and worth nothing: it was given up, or sealed by a writer that had been replaced before."""
    store = chain.store
    seen = chain.last
    assert seen is not None
    take_over(store, from_id=4)
    fence = store.load_by_id(6)
    assert fence is not None
    took_over = fence.model_copy(update={"generation": 9, "began": [(9, 6)]})
    store.amend(6, lambda _: took_over.stamped())
    store.save(seen.model_copy(update={"checkpoint_id": 7, "generation": 3, "abandons": []}, deep=True))
    store.save(took_over.model_copy(update={"checkpoint_id": 8, "kind": "checkpoint"}, deep=True))
    told = "says that it was given up: no start goes on from it"
    lines = run("verify", path, 4, 5, 7).out.splitlines()
    assert lines[:3] == ["checkpoint 4: valid", "checkpoint 5: valid", f"  warning: checkpoint 8 {told}"]
    assert lines[3:5] == ["checkpoint 7: valid", f"  warning: checkpoint 6 {told}"]
    listed = run("list", path, "--json").json["checkpoints"]
    assert {each["checkpoint_id"]: each["abandoned_by"] for each in listed if each["checkpoint_id"] > 3} == {
        4: None,
        5: 8,
        6: None,
        7: 6,
        8: None,
    }
    assert run("health", path, "--json").json["fallbacks"] == [6, 4, 3, 2]


def test_verify_counts_the_bytes_it_will_read(chain: Chain, path: Path) -> None:
    """Goal: the bar ends at its end. Method: compare what is announced with what is reported while reading."""
    service = open_service(str(path))
    ids = service.references_to_ids([])
    seen: list[int] = []
    verification = service.verify(ids, seen.append)
    assert service.bytes_to_verify(ids) == sum(seen) == verification.bytes_read


def test_verify_judges_by_the_pipelines_own_partitions(chain: Chain, path: Path, run: Run) -> None:
    assert all(verdict["warnings"] == [] for verdict in run("verify", path, "--json").json["verdicts"])
    chain.seal(6, epoch=5, vnode_count=8)
    warnings = [v["warnings"] for v in run("verify", path, 5, 6, "--json").json["verdicts"]]
    assert warnings == [["manifest validation: vnode_count mismatch: checkpoint has 4, runtime expects 8"], []]


def test_verify_of_nothing_is_not_a_yes(path: Path, run: Run) -> None:
    writable(path)
    ran = run("verify", path)
    assert ran.code == 2
    assert "there are no checkpoints" in ran.err


def test_verify_works_on_every_kind_of_store(url: str, run: Run) -> None:
    chain = Chain(writable(url))
    chain.seal(1)
    chain.seal(2)
    assert run("verify", url).code == 0


def test_recover_names_its_choice(chain: Chain, path: Path, run: Run) -> None:
    ran = run("recover", path, "--dry-run")
    assert ran.code == 0
    assert ran.out.startswith("recovery would restore checkpoint 5: epoch 4, ")
    assert f"it would seal fence 6 with generation 2 on timeline {TIMELINE}" in ran.out
    assert "sinks it would ask and drive: pg" in ran.out
    assert ran.out.splitlines()[-1] == "sinks and sources were not asked: 'holdfast plan FILE' asks them"


def test_recover_says_why_newer_ones_are_skipped(chain: Chain, path: Path, run: Run) -> None:
    damage(path, 4)
    ran = run("recover", path, "--dry-run")
    assert ran.code == 0
    assert "recovery would restore checkpoint 3: epoch 2" in ran.out
    assert "ids it would abandon: 4-5" in ran.out
    assert "skipped 5: " in ran.out
    assert "skipped 4: " in ran.out
    document = run("recover", path, "--dry-run", "--json").json
    assert document["outcome"] == "restore"
    assert document["chosen"]["checkpoint_id"] == 3
    assert [skipped["checkpoint_id"] for skipped in document["skipped"]] == [5, 4]
    assert document["abandons"] == [4, 5]


def test_recover_exits_with_3_when_it_would_refuse(chain: Chain, path: Path, run: Run) -> None:
    damage(path, 2)
    for id in range(3, 6):
        shutil.rmtree(path / "checkpoints" / f"checkpoint_{id:06d}")
    ran = run("recover", path, "--dry-run")
    assert ran.code == 3
    assert ran.out.startswith("recovery would refuse to start: ")
    assert "skipped 2: " in ran.out
    json_ran = run("recover", path, "--dry-run", "--json")
    assert json_ran.code == 3
    assert json_ran.json["outcome"] == "refuse"
    assert json_ran.json["chosen"] is None


def test_recover_on_an_empty_store_starts_fresh(path: Path, run: Run) -> None:
    writable(path)
    ran = run("recover", path, "--dry-run")
    assert ran.code == 0
    assert "would start fresh" in ran.out
    assert run("recover", path, "--dry-run", "--json").json["outcome"] == "fresh"


def test_recover_writes_nothing(chain: Chain, path: Path, run: Run) -> None:
    damage(path, 5)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    run("recover", path, "--dry-run")
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


@pytest.mark.parametrize("arguments", [("recover",), ("recover", "--json")])
def test_recover_without_dry_run_explains_itself(chain: Chain, path: Path, run: Run, arguments: tuple[str]) -> None:
    ran = run(*arguments, path)
    assert ran.code == 2
    assert "recovery happens when a pipeline starts" in ran.err
