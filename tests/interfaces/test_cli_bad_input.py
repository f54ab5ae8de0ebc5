"""Bad input: one clear line on stderr, a number for the shell, and never a traceback."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from holdfast import TransientStoreError
from holdfast.core.manifest import checksum_of
from holdfast.stores.store import DurableCheckpointStore
from interfaces.chains import Chain
from interfaces.conftest import Run, use_s3

# What is typed; S stands for a good store, T for a directory with odd things in it.
CASES = [
    (["list", "T/nowhere"], 2, "there is no checkpoint store at"),
    (["list", "T/empty"], 2, "a store is a directory that holds checkpoints/"),
    (["list", "T/file"], 2, "is a file; a store is a directory"),
    (["list", "S/checkpoints"], 2, "did you mean"),
    (["list", "ftp://host/x"], 2, "unknown scheme 'ftp'"),
    (["list", "s3://user:hunter2@bucket/x"], 2, "carries credentials"),
    (["list", ""], 2, "the path of the store is empty"),
    (["list"], 2, "set HOLDFAST_STORE"),
    (["list", "S", "more"], 2, "unexpected extra argument"),
    (["list", "S", "--last", "0"], 2, "--last"),
    (["list", "S", "--colour"], 2, "No such option"),
    (["shwo", "S"], 2, "No such command 'shwo'"),
    (["show", "S", "99"], 2, "checkpoint 99 not found; the newest is 5"),
    (["show", "S", "0"], 2, "checkpoint 0 not found"),
    (["show", "S", "99999999999999999999999"], 2, "not found"),
    (["show", "S", "-1"], 2, "No such option"),
    (["show", "S", "nightly"], 2, "checkpoint named 'nightly' not found; give an id, 'latest' or the name"),
    (["show", "S", "1.5"], 2, "not found"),
    (["show", "S", "4"], 1, "'holdfast recover --dry-run' shows what can still be restored"),
    (["show", "S", "3"], 2, "manifest format version 7 is newer than 1"),
    (["show", "S", "--files", "--manifest"], 2, "exclude each other"),
    (["verify", "S", "99"], 2, "checkpoint 99 not found"),
    (["verify", "S", "2", "--latest"], 2, "not several of them"),
    (["recover", "S"], 2, "give --dry-run"),
    (["diff", "S", "5"], 2, "Missing argument 'B'"),
    (["diff", "S", "5", "98"], 2, "checkpoint 98 not found"),
    (["prune", "S"], 2, "--keep"),
    (["prune", "S", "--keep", "many"], 2, "--keep"),
    (["prune", "S", "--keep", "0"], 2, "--keep"),
    (["prune", "T/nowhere", "--keep", "3", "--yes"], 2, "there is no checkpoint store at"),
    (["orphans", "T/nowhere"], 2, "there is no checkpoint store at"),
    (["savepoint"], 2, "Missing command"),
    (["savepoint", "create", "S"], 2, "Missing argument 'NAME'"),
    (["savepoint", "create", "S", "a b"], 2, "use 1 to 63 of"),
    (["savepoint", "create", "S", "x" * 64], 2, "use 1 to 63 of"),
    (["savepoint", "create", "S", "latest"], 2, "taken for an id"),
    (["savepoint", "create", "S", "2026"], 2, "taken for an id"),
    (["savepoint", "create", "S", "ok", "99"], 2, "checkpoint 99 not found"),
    (["savepoint", "release", "S", "unknown"], 2, "'holdfast savepoint list' shows the names"),
    (["export", "S", "99", "T/x.hf"], 2, "checkpoint 99 not found"),
    (["export", "S", "1", "T/x.hf"], 2, "has nothing to restore"),
    (["export", "S", "5", "T/no/such/x.hf"], 2, "cannot write"),
    (["export", "S", "5", "T/empty"], 2, "give --overwrite"),
    (["export", "S", "5", "T/empty", "--overwrite"], 2, "cannot write"),
    (["import", "S", "T/nothing.hf"], 2, "there is no"),
    (["import", "S", "T/file"], 2, "is not a checkpoint archive"),
    (["import", "S", "T/zero"], 2, "is not a checkpoint archive"),
    (["import", "S", "T/other.tar"], 2, "it contains 'photo.jpg'"),
    (["import", "S", "T/link.tar"], 2, "it contains 'manifest.json'"),
    (["import", "S", "T/none.tar"], 2, "it has no manifest.json"),
    (["import", "S", "T/future.tar"], 2, "manifest format version 9 is newer than 1"),
    (["import", "S", "T/garbage.tar"], 1, "is damaged, nothing was imported: manifest is not JSON"),
    (["import", "S", "T/twice.tar"], 1, "contains manifest.json twice"),
    (["import", "S", "T/empty"], 2, "is not a checkpoint: it has no manifest.json"),
    (["import", "S", "S"], 2, "is a store, not a checkpoint"),
    (["import", "T/file", "T/other.tar"], 2, "is a file; a store is a directory"),
]  # fmt: skip


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Return a directory with things that are no checkpoints."""
    odd = tmp_path / "odd"
    (odd / "empty").mkdir(parents=True)
    (odd / "file").write_text("not a checkpoint\n" * 100)
    (odd / "zero").write_bytes(b"")

    def tar(name: str, *contents: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> None:
        with tarfile.open(odd / name, "w") as archive:
            for member, data in contents:
                info = tarfile.TarInfo(member)
                info.size, info.type, info.linkname = len(data), kind, "/etc/passwd"
                archive.addfile(info, io.BytesIO(data))

    future = {"version": 9, "checkpoint_id": 1, "epoch": 1, "timestamp_ms": 1}
    tar("other.tar", ("photo.jpg", b"x"))
    tar("link.tar", ("manifest.json", b""), kind=tarfile.SYMTYPE)
    tar("none.tar")
    tar("future.tar", ("manifest.json", json.dumps(future).encode()))
    tar("garbage.tar", ("manifest.json", b"garbage"))
    tar("twice.tar", ("manifest.json", b"{}"), ("manifest.json", b"{}"))
    return odd


@pytest.fixture
def damaged(chain: Chain, path: Path) -> Path:
    """Return the chain with a damaged manifest (4) and one from the future (3)."""
    (path / "checkpoints/checkpoint_000004/manifest.json").write_text('{"version": 1}')
    future = path / "checkpoints/checkpoint_000003/manifest.json"
    document = json.loads(future.read_text()) | {"version": 7}
    future.write_text(json.dumps(document | {"manifest_checksum": checksum_of(document)}))
    return path


@pytest.mark.parametrize(("arguments", "code", "words"), CASES, ids=[" ".join(case[0])[:60] for case in CASES])
def test_bad_input(arguments: list[str], code: int, words: str, damaged: Path, odd: Path, run: Run) -> None:
    places = {"S": str(damaged), "T": str(odd)}

    def placed(argument: str) -> str:
        start, slash, rest = argument.partition("/")
        return places.get(start, start) + slash + rest

    ran = run(*map(placed, arguments))
    assert ran.code == code, ran
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("holdfast: ")
    assert words in ran.err
    assert "hunter2" not in ran.err
    assert not (odd / "nowhere").exists(), "looking for a store does not make one"


def test_errors_are_a_document_too(damaged: Path, run: Run) -> None:
    ran = run("show", damaged, "99", "--json")
    assert ran.code == 2
    assert ran.json["exit_code"] == 2
    assert ran.json["error"] in ran.err


def test_storage_that_does_not_answer_is_told_apart(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    use_s3(monkeypatch, "http://127.0.0.1:9")
    ran = run("list", "s3://bucket/prefix")
    assert ran.code == 4
    assert ran.err.count("\n") == 1
    assert "testing" not in ran.err


def test_storage_that_fails_in_the_middle_is_told_apart(
    chain: Chain, path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: DurableCheckpointStore, checkpoint_id: int) -> None:
        raise TransientStoreError("cannot read: password=hunter2")

    monkeypatch.setattr(DurableCheckpointStore, "load_by_id", unreachable)
    for command in (["list"], ["show"], ["verify"], ["recover", "--dry-run"]):
        ran = run(command[0], path, *command[1:])
        assert (ran.code, ran.err) == (4, "holdfast: cannot read: password=***\n")


def test_an_empty_bucket_is_an_empty_store(run: Run, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_s3(monkeypatch, s3_endpoint)
    assert run("list", "s3://holdfast/nothing/here").out.startswith("no checkpoints in")
    assert run("show", "s3://holdfast/nothing/here").code == 2
    missing = run("list", "s3://no-such-bucket/x")
    assert missing.code in (2, 4)
    assert missing.err.count("\n") == 1


# HOLDFAST_STORE


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["show"],
        ["show", "5"],
        ["show", "--json", "nightly"],
        ["verify", "--latest"],
        ["verify", "5", "nightly"],
        ["diff", "2", "5"],
        ["prune", "--keep", "9", "--yes"],
        ["orphans"],
        ["savepoint", "list"],
        ["savepoint", "create", "other", "2"],
        ["savepoint", "create", "other"],
        ["savepoint", "release", "nightly"],
        ["recover", "--dry-run"],
    ],
    ids=" ".join,
)
def test_the_store_may_come_from_the_environment(
    arguments: list[str], chain: Chain, path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.store.set_identifier(3, "nightly")
    monkeypatch.setenv("HOLDFAST_STORE", str(path))
    ran = run(*arguments)
    assert ran.code == 0, ran.err


def test_an_argument_wins_over_the_environment(
    chain: Chain, path: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(path.parent)
    for store in (str(path), "store", "./store", f"file://{path}"):
        assert run("list", store).code == 0
        assert run("show", store).code == 0
        assert run("show", store, "5").code == 0
        assert run("verify", store, "5").code == 0
        assert run("diff", store, "2", "5").code == 0
    file = tmp_path / "c.hf"
    assert run("export", path, "5", file).code == 0
    assert run("import", file).code == 0, "into the store of the environment"
    assert run("list", "--json").json["total"] == 1
