"""The command line as a process: what it imports, what it prints into a pipe and on a terminal."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from interfaces.chains import Chain
from interfaces.conftest import writable

CLI = [sys.executable, "-m", "holdfast.interfaces.cli"]


def environment(**changes: str) -> dict[str, str]:
    clean = {
        key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "HOLDFAST_STORE")
    }
    return {**clean, "TERM": "xterm-256color", **changes}


def in_a_pipe(*arguments: object, **changes: str) -> subprocess.CompletedProcess[str]:
    command = [*CLI, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment(**changes), check=False
    )


def on_a_terminal(*arguments: object, typed: bytes = b"", **changes: str) -> tuple[int, str]:
    """Run with a terminal on all three streams; return the exit code and what the terminal saw."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*CLI, *map(str, arguments)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**changes)
    )
    os.close(theirs)
    os.write(ours, typed)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    return process.wait(60), seen.decode()


def test_neither_spark_nor_http_is_imported() -> None:
    code = (
        "import sys, holdfast.interfaces.cli\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'pyspark','py4j','fastapi','uvicorn','starlette',"
        "'boto3','pyarrow','pandas','deltalake','moto'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"


def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).with_name("holdfast")
    ran = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.startswith("holdfast 0.")


def test_help_names_every_exit_code() -> None:
    ran = in_a_pipe("--help")
    assert ran.returncode == 0
    for line in (
        "0    done",
        "1    the answer is no",
        "2    wrong usage",
        "3    recovery refuses, or would refuse",
        "5    fenced",
        "6    the pipeline changed",
        "7    a sink failed",
        "8    the pipeline failed",
    ):
        assert line in ran.stdout
    assert in_a_pipe().stdout == ran.stdout


def test_a_pipe_gets_plain_unwrapped_lines(chain: Chain, path: Path) -> None:
    for changes in ({}, {"FORCE_COLOR": "1", "COLUMNS": "20"}):
        ran = in_a_pipe("list", path, **changes)
        assert ran.returncode == 0
        assert ran.stderr == ""
        assert "\x1b" not in ran.stdout
        assert len(ran.stdout.splitlines()) == 6
    assert json.loads(in_a_pipe("show", path, "--json").stdout)["checkpoint_id"] == 5


def test_a_terminal_gets_colours_unless_told_otherwise(chain: Chain, path: Path) -> None:
    code, seen = on_a_terminal("list", path)
    assert code == 0
    assert "\x1b[32mvalid" in seen
    _, plain = on_a_terminal("list", path, NO_COLOR="1")
    assert "\x1b[32m" not in plain
    assert "valid" in plain


def test_verify_shows_a_bar_on_a_terminal_and_none_in_a_pipe(chain: Chain, path: Path) -> None:
    code, seen = on_a_terminal("verify", path)
    assert code == 0
    assert "verifying" in seen
    assert "verdict: sound" in seen
    assert "verifying" not in in_a_pipe("verify", path).stderr


def test_json_stays_one_document_on_a_terminal(chain: Chain, path: Path) -> None:
    _, seen = on_a_terminal("verify", path, "--json")
    assert json.loads(seen)["sound"] is True


def test_prune_asks_a_person(chain: Chain, path: Path) -> None:
    code, seen = on_a_terminal("prune", path, "--keep", 1, typed=b"n\n")
    assert code == 1
    assert "remove " in seen
    assert "nothing was removed" in seen
    code, seen = on_a_terminal("prune", path, "--keep", 1, typed=b"y\n")
    assert code == 0


def test_a_pipe_that_closes_early_makes_no_noise(chain: Chain, path: Path) -> None:
    for arguments in (["list", str(path)], ["show", str(path), "--manifest"], ["show", str(path), "--json"]):
        process = subprocess.Popen(
            [*CLI, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        noise = process.stderr.read()
        process.stderr.close()
        process.wait(60)
        assert noise == b""


def test_names_that_the_terminal_cannot_show_do_not_stop_it(path: Path) -> None:
    Chain(writable(path)).seal(1, sink_names=["größe"])
    ran = in_a_pipe("show", path, PYTHONIOENCODING="ascii")
    assert ran.returncode == 0
    assert "gr\\xf6\\xdfe" in ran.stdout


def test_damage_is_reported_once(tmp_path: Path) -> None:
    document = {"version": 1, "checkpoint_id": 1, "epoch": 1, "timestamp_ms": 1}
    document["operator_states"] = {"a": {"state_b64": "!!"}}  # type: ignore[assignment]
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    ran = in_a_pipe("import", tmp_path / "new", tmp_path)
    assert ran.returncode == 1
    assert "base64 decode failed" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_developer_can_have_the_traceback(tmp_path: Path) -> None:
    ran = in_a_pipe("list", tmp_path, HOLDFAST_DEBUG="1")
    assert "Traceback" in ran.stderr
    assert "Traceback" not in in_a_pipe("list", tmp_path).stderr


@pytest.mark.skipif(not hasattr(signal, "SIGINT"), reason="needs signals")
def test_interrupting_is_one_line(chain: Chain, path: Path) -> None:
    code = (
        "import signal, sys\n"
        "from holdfast.interfaces import service\n"
        "service.CheckpointService.verify = lambda *a: signal.raise_signal(signal.SIGINT)\n"
        "from holdfast.interfaces.cli import main\n"
        f"sys.argv = ['holdfast', 'verify', {str(path)!r}]\n"
        "main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (130, "holdfast: interrupted\n")


def test_a_fault_of_ours_is_one_line_too(path: Path) -> None:
    code = (
        "import sys\n"
        "from holdfast.interfaces.cli import looking, main\n"
        "def broken(store): raise RuntimeError('token=hunter2 oops')\n"
        "looking.open_service = broken\n"
        "sys.argv = ['holdfast', 'list', 'x']\n"
        "main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 70
    assert ran.stderr.startswith("holdfast: fault in holdfast: RuntimeError: token=*** oops; run again with")
    assert ran.stderr.count("\n") == 1
