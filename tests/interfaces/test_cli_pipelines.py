"""run, check, init, approve, resolve, export-spark: everything that needs no Spark."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import SinkCommitStatus
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.fencing import take_over
from holdfast.errors import ApprovalNeeded, Fenced, ForeignTimeline, NoValidCheckpoint, PipelineError, SinkError
from holdfast.interfaces.cli import deciding, pipelines
from holdfast.interfaces.execution import RunOptions
from holdfast.interfaces.http.addresses import Address
from holdfast.interfaces.http.security import Security, Tokens
from holdfast.interfaces.http.settings import HttpSettings
from holdfast.interfaces.pipeline_file import PipelineFile, read_pipeline_file
from holdfast.interfaces.pipeline_file.starter import STARTER
from interfaces.chains import Chain
from interfaces.conftest import Run, writable
from interfaces.test_cli_process import on_a_terminal
from interfaces.test_pipeline_file import BASE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(BASE.replace("./checkpoints", "./store"))
    return path


# check


def test_check_shows_what_a_file_says(file: Path, run: Run) -> None:
    ran = run("check", file)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == f"{file} is valid: pipeline orders, exactly-once, store {file.parent}/store"
    assert [line.split(None, 2) for line in lines[1:]] == [
        ["source", "orders", "json, watermark ts 10 minutes"],
        ["view", "recent", "SQL"],
        ["sink", "db", "takes recent, sqlite, exactly once"],
    ]
    document = run("check", file, "--json").json
    assert (document["name"], document["sinks"][0]["name"]) == ("orders", "db")


def test_check_refuses_with_file_line_and_key(file: Path, run: Run) -> None:
    file.write_text(BASE.replace("table:", "tabel:"))
    ran = run("check", file)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"holdfast: {file}:16: sinks.db.sqlite.tabel: unknown key, did you mean 'table'?\n"
    document = run("check", file, "--json").json
    assert document["exit_code"] == 2


def test_check_starts_no_spark_and_writes_nothing(file: Path, run: Run) -> None:
    before = sorted(file.parent.iterdir())
    run("check", file)
    assert sorted(file.parent.iterdir()) == before


# init


def test_init_writes_a_file_that_is_valid(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("init")
    assert ran.code == 0
    assert ran.out == ("wrote pipeline.yaml and in/orders-1.json\nrun it with: holdfast run pipeline.yaml --once\n")
    assert run("check", "pipeline.yaml").code == 0
    rows = [json.loads(line) for line in (tmp_path / "in" / "orders-1.json").read_text().splitlines()]
    assert {tuple(row) for row in rows} == {("id", "customer", "amount", "ts")}


def test_init_into_another_folder(tmp_path: Path, run: Run) -> None:
    (tmp_path / "etc" / "in").mkdir(parents=True)
    document = run("init", tmp_path / "etc" / "my.yaml", "--json").json
    assert document == {"file": f"{tmp_path}/etc/my.yaml", "sample": None}
    assert read_pipeline_file(str(tmp_path / "etc" / "my.yaml")).store == f"{tmp_path}/etc/checkpoints"
    assert list((tmp_path / "etc" / "in").iterdir()) == []


def test_init_overwrites_only_by_force(file: Path, run: Run) -> None:
    before = file.read_text()
    ran = run("init", file)
    assert (ran.code, ran.err) == (2, f"holdfast: {file} exists; give --force to replace it, or another name\n")
    assert file.read_text() == before
    assert run("init", file, "--force").code == 0
    assert file.read_text() == STARTER.format(file=file)


def test_init_where_nothing_can_be_written(tmp_path: Path, run: Run) -> None:
    ran = run("init", tmp_path / "gone" / "x.yaml")
    assert (ran.code, ran.err) == (
        2,
        f"holdfast: cannot write {tmp_path}/gone/x.yaml: No such file or directory\n",
    )


# run, with a pipeline that ends as the test wants


@pytest.fixture
def ran_with(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    """Return the options of every run; nothing is run."""
    seen: list[RunOptions] = []
    monkeypatch.setattr(pipelines, "run_pipeline", lambda file, options, watcher, http: seen.append(options))
    return seen


@pytest.fixture
def served_with(monkeypatch: pytest.MonkeyPatch) -> list[HttpSettings | None]:
    """Return where every run would listen; nothing is run."""
    seen: list[HttpSettings | None] = []
    monkeypatch.setattr(pipelines, "run_pipeline", lambda file, options, watcher, http: seen.append(http))
    return seen


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Return a function that lets every run end with an error."""

    def choose(error: Exception) -> None:
        def fail(file: PipelineFile, options: RunOptions, watcher: Any, http: Any) -> None:
            raise error

        monkeypatch.setattr(pipelines, "run_pipeline", fail)

    return choose


def test_run_passes_on_what_a_person_said(file: Path, run: Run, ran_with: list[RunOptions], chain: Chain) -> None:
    assert run("run", file).code == 0
    assert run("run", file, "--once", "--from", "3", "--sinks", "adopt", "--on-change", "allow").code == 0
    assert run("run", file, "--from", "latest", "--quiet").code == 0
    assert ran_with == [
        RunOptions(),
        RunOptions(once=True, from_id=3, sinks="adopt", on_change="allow"),
        RunOptions(from_id=5),
    ]


def test_run_serves_its_api_where_the_file_or_the_command_line_says(
    file: Path, run: Run, served_with: list[HttpSettings | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOLDFAST_HTTP_TOKEN", "HOLDFAST_HTTP_READ_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (file.parent / "token").write_text("t" * 32)
    section = "http: {address: '127.0.0.1:9000', token_file: ./token, allowed_hosts: [etl.internal]}\n"
    assert run("run", file).code == 0
    assert run("run", file, "--no-http").code == 0
    file.write_text(BASE + section)
    assert run("run", file).code == 0
    assert run("run", file, "--http", ":0").code == 0
    file.write_text(BASE + "http: {enabled: false}\n")
    assert run("run", file).code == 0
    secured = Security(Tokens("t" * 32), frozenset({"etl.internal"}))
    assert served_with == [
        HttpSettings(),
        None,
        HttpSettings(Address("127.0.0.1", 9000), secured),
        HttpSettings(Address("127.0.0.1", 0), secured),
        None,
    ]


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("{address: nowhere:1:2}", "'nowhere:1:2' is no address to listen on: give HOST:PORT"),
        ("{allowed_hosts: ['a b']}", "'a b' is no host name"),
        ("{enabled: perhaps}", "expected true or false"),
        ("{port: 80}", "http.port: unknown key"),
    ],
)
def test_what_is_wrong_in_the_http_section_is_named_with_its_place(
    file: Path, run: Run, section: str, problem: str
) -> None:
    file.write_text(f"{BASE}http: {section}\n")
    ran = run("check", file)
    assert ran.code == 2
    assert problem in ran.err
    assert f"{file}:" in ran.err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (NoValidCheckpoint("none can be trusted; --fresh"), 3, "none can be trusted; --fresh"),
        (Fenced("taken by generation 4", checkpoint_id=7), 5, "taken by generation 4"),
        (SinkError("sink 'db', epoch 3, commit: disk full"), 7, "sink 'db', epoch 3, commit: disk full"),
        (ForeignTimeline("another timeline"), 7, "another timeline"),
        (PipelineError("view 'x' failed"), 8, "view 'x' failed"),
        (
            ApprovalNeeded("pipeline changed:\n  - view 'x' changed\napprove it with: holdfast approve s 0f"),
            6,
            "pipeline changed:\n  - view 'x' changed\napprove it with: holdfast approve s 0f",
        ),
    ],
)
def test_what_ends_a_run_decides_the_exit_code(
    file: Path, run: Run, ends_with: Callable[[Exception], None], error: Exception, code: int, message: str
) -> None:
    ends_with(error)
    ran = run("run", file, "--quiet")
    assert (ran.code, ran.out, ran.err) == (code, "", f"holdfast: {message}\n")
    assert json.loads(run("run", file, "--json").out) == {"error": message, "exit_code": code}


def test_errors_show_no_value_from_the_environment(
    file: Path, run: Run, ends_with: Callable[[Exception], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter22")
    file.write_text(BASE.replace("./app.db", "./${DB_PASSWORD}.db"))
    ends_with(SinkError("cannot open ./hunter22.db"))
    for option in ("--quiet", "--json"):
        ran = run("run", file, option)
        assert "hunter22" not in ran.out + ran.err
        assert "cannot open ./${DB_PASSWORD}.db" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "--quiet"], "--quiet and --json exclude each other"),
        (["--fresh", "--from", "3"], "--fresh and --from exclude each other: one starts over, the other goes back"),
        (["--from", "9"], "checkpoint 9 not found; the newest is 5; 'holdfast list' shows all"),
        (
            ["--sinks", "keep"],
            "Invalid value for '--sinks': 'keep' is not one of 'rewind', 'adopt', 'append'; "
            "see 'holdfast run --help'",
        ),
    ],
)
def test_run_refuses_contradictions(file: Path, run: Run, chain: Chain, arguments: list[str], message: str) -> None:
    ran = run("run", file, *arguments)
    assert ran.code == 2
    assert ran.err.replace("root ", "holdfast ") == f"holdfast: {message}\n"


def test_fresh_needs_a_word_when_there_is_something_to_lose(
    file: Path, run: Run, ran_with: list[RunOptions], path: Path
) -> None:
    assert run("run", file, "--fresh").code == 0
    Chain(writable(path)).seal(1)
    ran = run("run", file, "--fresh")
    assert ran.code == 2
    assert ran.err == "holdfast: --fresh abandons every checkpoint and nobody can be asked here: give --yes\n"
    assert run("run", file, "--fresh", "--yes").code == 0
    assert ran_with == [RunOptions(fresh=True)] * 2


def test_fresh_asks_a_person(file: Path, chain: Chain) -> None:
    code, seen = on_a_terminal("run", file, "--fresh", typed=b"n\n")
    assert code == 1
    assert f"start over and abandon 5 checkpoints in {file.parent}/store?" in seen
    assert "nothing was done" in seen


def test_run_without_a_file(tmp_path: Path, run: Run) -> None:
    ran = run("run", tmp_path / "x.yaml")
    assert ran.code == 2
    assert "there is no file" in ran.err
    assert "holdfast init" in ran.err


def test_a_sink_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    """Goal: the exit code arrives. Method: a run that leaves a thread behind, as a sink without an answer does."""
    code = (
        "import sys, threading\n"
        "from holdfast.clock import SYSTEM_CLOCK\n"
        "from holdfast.engine.delivery import Delivery, DeliverySettings\n"
        "from holdfast.engine.events import LogObserver\n"
        "from holdfast.errors import SinkError\n"
        "from holdfast.interfaces.cli import main, pipelines\n"
        "def hang(*_):\n"
        "    delivery = Delivery({'a': None}, DeliverySettings(), LogObserver(), SYSTEM_CLOCK)\n"
        "    delivery.on_all(['a'], 1, 'commit', 0.05, lambda *call: threading.Event().wait())\n"
        "    raise SinkError('no answer')\n"
        "pipelines.run_pipeline = hang\n"
        f"sys.argv = ['holdfast', 'run', {str(tmp_path / 'orders.yaml')!r}, '--quiet']\n"
        "main()"
    )
    (tmp_path / "orders.yaml").write_text(BASE)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (7, "holdfast: no answer\n")


# approve


def newest(path: Path) -> CheckpointManifest:
    store = writable(path)
    manifest = store.load_by_id(store.newest_id())
    assert manifest is not None
    return manifest


def test_approve_records_the_fingerprint_in_a_fence(chain: Chain, path: Path, run: Run) -> None:
    ran = run("approve", path, "00ab")
    assert ran.code == 0
    assert "approved 00000000000000ab: the pipeline with this fingerprint goes on from epoch 4" in ran.out
    assert "recorded in fence 6" in ran.out
    fence = newest(path)
    assert (fence.kind, fence.recovery) == ("fence", {**(fence.recovery or {}), "approved": ["00000000000000ab"]})
    assert run("approve", path, "ff", "--json").json["checkpoint_id"] == 7


@pytest.mark.parametrize("fingerprint", ["", "xyz", "0" * 17, "-1"])
def test_approve_refuses_what_is_no_fingerprint(chain: Chain, path: Path, run: Run, fingerprint: str) -> None:
    ran = run("approve", path, "--", fingerprint)
    assert ran.code == 2
    assert "is no fingerprint: copy the 16 hexadecimal digits" in ran.err


def test_approve_needs_a_checkpoint(path: Path, run: Run) -> None:
    take_over(writable(path))
    assert run("approve", path, "ab").code == 3


# resolve


def test_discard_gives_an_epoch_up(chain: Chain, path: Path, run: Run) -> None:
    ran = run("resolve", path, "--sink", "pg", "--epoch", 4, "--discard", "--reason", "table dropped")
    assert ran.code == 0
    assert ran.out.splitlines()[0] == "sink pg, epoch 4: given up, its rows are lost for this sink"
    fence = newest(path)
    assert fence.sink_commit_statuses["pg"] == SinkCommitStatus.COMMITTED
    assert (fence.recovery or {})["resolved"]["reason"] == "table dropped"


def test_discard_takes_the_pipeline_file_too(chain: Chain, file: Path, run: Run) -> None:
    receipt = run("resolve", file, "--sink", "pg", "--epoch", 4, "--discard", "--reason", "x", "--json").json
    assert (receipt["action"], receipt["checkpoint_id"]) == ("discard", 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--discard"], "--discard loses rows: say why with --reason"),
        ([], "give one of --retry, --to-file and --discard"),
        (["--retry", "--discard"], "give one of --retry, --to-file and --discard"),
        (["--discard", "--reason", "x", "--epoch", "3"], "sink 'pg' is owed nothing of epoch 3"),
        (["--discard", "--reason", "x", "--sink", "no"], "the newest checkpoint knows no sink 'no'"),
        (["--retry"], "--retry starts the pipeline's recovery: give the pipeline file"),
        (["--discard", "--to-file", "rows.csv"], "give one of --retry, --to-file and --discard"),
        (["--to-file", "rows.csv"], "--to-file reads the rows through the sink: give the pipeline file"),
    ],
)
def test_resolve_refuses(chain: Chain, path: Path, run: Run, arguments: list[str], message: str) -> None:
    ran = run("resolve", path, "--sink", "pg", "--epoch", "4", *arguments)
    assert ran.code == 2
    assert message in ran.err


def test_retry_needs_something_that_is_owed(chain: Chain, file: Path, run: Run) -> None:
    for sink, epoch, message in (
        ("lake", 4, "sink 'lake' is owed nothing of epoch 4: the newest checkpoint is of epoch 4 and says Committed"),
        ("pg", 9, "sink 'pg' is owed nothing of epoch 9"),
        ("no", 4, "knows no sink 'no'"),
    ):
        ran = run("resolve", file, "--sink", sink, "--epoch", epoch, "--retry")
        assert ran.code == 2
        assert message in ran.err


def test_retry_recovers_and_says_what_became_of_the_sink(
    chain: Chain, file: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = {"sinks": {"pg": "committed epoch 4"}}
    monkeypatch.setattr(deciding, "recover_pipeline", lambda file, watcher, debug: report)
    ran = run("resolve", file, "--sink", "pg", "--epoch", 4, "--retry")
    assert ran.out.splitlines()[0] == "sink pg, epoch 4: committed epoch 4"
    assert run("resolve", file, "--sink", "pg", "--epoch", 4, "--retry", "--json").json["action"] == "retry"


# export-spark


def test_export_spark_writes_a_spark_checkpoint(path: Path, tmp_path: Path, run: Run) -> None:
    parts = {"metadata": b'{"id":"x"}', "offsets/0": b"v1\n{}\n0", "commits/0": b"v1\n{}", "root": b"/old"}
    Chain(writable(path)).seal(1, epoch=1, parts=parts)
    target = tmp_path / "deep" / "spark"
    ran = run("export-spark", path, "latest", target)
    assert ran.code == 0
    assert ran.out.startswith(f"wrote checkpoint 1 (epoch 1) to {target}: 5 files, ")
    assert (target / "offsets" / "0").read_bytes() == b"v1\n{}\n0"
    assert (target / "commits" / "0").exists()
    assert (target / "0" / "1.delta").stat().st_size == 6000
    again = run("export-spark", path, "1", target)
    assert again.code == 2
    assert "exists already" in again.err
    assert run("export-spark", path, "1", tmp_path / "other", "--json").json["files"] == 5


def test_export_spark_refuses_what_spark_could_not_use(chain: Chain, path: Path, tmp_path: Path, run: Run) -> None:
    ran = run("export-spark", path, "1", tmp_path / "x")
    assert (ran.code, ran.err) == (2, "holdfast: checkpoint 1 holds nothing that Spark could go on from\n")
    ran = run("export-spark", path, "2", tmp_path / "x")
    assert ran.code == 1
    assert "the progress record of batch 0 lacks metadata" in ran.err
    assert not os.path.exists(tmp_path / "x")
