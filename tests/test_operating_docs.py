"""docs/operating is true: its commands do what the pages say, its metrics exist, its alerts can be evaluated."""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from holdfast import SinkCommitStatus
from holdfast.clock import SYSTEM_CLOCK
from holdfast.engine.events import EpochCommitted, Recovered, SinkRetry, Stopped
from holdfast.engine.fencing import take_over
from holdfast.engine.history import HistoryObserver
from holdfast.engine.verifying import BackgroundVerification, VerificationSettings
from holdfast.interfaces.cli import app
from holdfast.interfaces.metrics.gauges import GAUGES
from holdfast.interfaces.metrics.instruments import Instruments
from holdfast.stores.urls import open_store
from holdfast.testing import ManualClock
from interfaces.chains import TIMELINE, Chain
from interfaces.conftest import Run, run  # noqa: F401
from test_docs import FENCE, HEADING, LINK, NOT_RUN

PAGES = Path(__file__).parents[1] / "docs" / "operating"
ALERTS = PAGES / "alerts.yaml"
FAILURES = sorted(page for page in PAGES.glob("*.md") if page.stem not in ("README", "metrics", "alerts"))
PLACE = "/srv"
DONE = {"lake": SinkCommitStatus.COMMITTED, "pg": SinkCommitStatus.COMMITTED}


PIPELINE = """\
name: orders
store: ./orders
sync: {bucket: file:///srv/bucket}
sources: {orders: {files: {path: ./in, schema: id long}}}
sinks: {lake: {takes: orders, files: {path: ./lake}}}
"""

# Scenes: the situation that a page is about


class Scene:
    """A directory with the store `orders` in it, at the moment when somebody opens the page."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "orders"
        self.store = open_store(self.path, retain=None, vnode_count=4)
        self.began = SYSTEM_CLOCK.now_ms() - 6 * 60_000
        self.chain = Chain(self.store)
        (directory / "orders.yaml").write_text(PIPELINE.replace(PLACE, str(directory)))
        self._run = HistoryObserver(self.store.history, SYSTEM_CLOCK)

    def started(self, **report: Any) -> None:
        """Tell history of a start."""
        known = {"fence_id": 1, "generation": 1, "timeline": str(TIMELINE), "chosen_id": None, "epoch": 0}
        place = {"host": "worker-3", "process": 4711, "state_bytes": 0, "skipped": [], "examined": 0, "seconds": 1.2}
        self._run.on_event(Recovered({**known, **place, **report}))

    def ended(self, error: str, kind: str) -> None:
        """Tell history that the run ended, and begin another one."""
        self._run.on_event(Stopped(4, error, kind))
        self.written()

    def written(self) -> None:
        """Wait until history is on the disk."""
        self._run.close()
        self._run = HistoryObserver(self.store.history, SYSTEM_CLOCK)

    def seal(self, first: int, last: int, **fields: Any) -> None:
        """Seal checkpoints a minute apart."""
        for id in range(first, last + 1):
            made = self.began + id * 60_000
            self.chain.seal(id, epoch=id - 1, timestamp_ms=made, **{"sink_commit_statuses": DONE, **fields})

    def damage(self, id: int, file: str, position: int) -> None:
        damaged = self.path / "checkpoints" / f"checkpoint_{id:06d}" / file
        data = bytearray(damaged.read_bytes())
        data[position] ^= 1
        damaged.write_bytes(data)


def in_order(scene: Scene) -> None:
    """Start a pipeline and seal four epochs."""
    running(scene)
    scene.written()


def running(scene: Scene, **fields: Any) -> None:
    take_over(scene.store, clock=ManualClock(scene.began))
    scene.started()
    scene.seal(2, 5, **fields)


def sink_failed(scene: Scene) -> None:
    failed = SinkCommitStatus.failed('column "amount" of relation "orders" does not exist')
    running(scene, sink_commit_statuses={**DONE, "pg": failed})
    scene.written()


def replaced(scene: Scene) -> None:
    running(scene)
    take_over(scene.store)
    scene.ended("checkpoint 6 was sealed by another writer (generation 2); nothing was written", "Fenced")
    scene.started(fence_id=6, generation=2, chosen_id=5, epoch=4, host="worker-4", process=4712, seconds=1.3)
    scene.written()


def destroyed(scene: Scene) -> None:
    in_order(scene)
    other = open_store(scene.directory / "copy", retain=None, vnode_count=4)
    take_over(other)
    chain = Chain(other)
    for id in range(2, 6):
        chain.seal(id, epoch=id - 1)
    for id in range(3, 6):
        for file in sorted((scene.path / "checkpoints" / f"checkpoint_{id:06d}").iterdir()):
            file.unlink()
        (scene.path / "checkpoints" / f"checkpoint_{id:06d}").rmdir()
    manifest = scene.path / "checkpoints" / "checkpoint_000002" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"part-1.csv"', '"part-2.csv"'))


def damaged(scene: Scene) -> None:
    running(scene, sink_commit_statuses={**DONE, "pg": SinkCommitStatus.PENDING})
    scene.damage(4, "state.bin", 3000)
    BackgroundVerification(scene.store, scene._run, SYSTEM_CLOCK, VerificationSettings()).verify_now()
    scene.written()


def slow(scene: Scene) -> None:
    in_order(scene)
    for epoch in range(2, 5):
        if epoch == 4:
            scene._run.on_event(SinkRetry("pg", 4, "commit", 1, "locked", 0.5))
            scene._run.on_event(SinkRetry("pg", 4, "commit", 2, "locked", 0.5))
        steps = {"compute": 0.07, "commit": 1.3, "commit:pg": 1.3} if epoch == 4 else {"compute": 0.07}
        scene._run.on_event(
            EpochCommitted(epoch, epoch + 1, 1000, {"pg": 1004}, 49_152, 1_258_291, None, 0.132, steps)
        )
    scene.written()


def copied(scene: Scene) -> None:
    """Copy the checkpoint of epoch 2, and go on."""
    take_over(scene.store, clock=ManualClock(scene.began))
    scene.seal(2, 3)
    pushed = CliRunner().invoke(app, ["sync", "push", str(scene.directory / "orders.yaml")])
    assert pushed.exit_code == 0, pushed.output
    scene.seal(4, 5)


SCENES: dict[str, Callable[[Scene], None]] = {
    "sink-cannot-commit": sink_failed,
    "fenced": replaced,
    "no-valid-checkpoint": destroyed,
    "damaged-checkpoint": damaged,
    "stuck": slow,
    "sync-failing": copied,
}


# Commands


@dataclass(frozen=True)
class Command:
    """A line that a reader would type, and what the page shows below it."""

    line: int
    words: tuple[str, ...]
    shown: tuple[str, ...]
    runs: bool


def commands(page: Path) -> Iterator[Command]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        if match["language"] != "console":
            continue
        before = text[: match.start()]
        block = re.sub(f"(?m)^{match['indent']}", "", match["text"])
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            typed, *shown = part.splitlines()
            runs = NOT_RUN.search(before) is None
            yield Command(before.count("\n") + 1, tuple(shlex.split(typed)), tuple(shown), runs)


def plain(line: str) -> str:
    """Return a line without what differs from run to run: numbers, digests, times, columns."""
    line = re.sub(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b\d{4}-\d\d-\d\dT[\d:.]+Z", "#", line)
    line = re.sub(r"(expected|got|sha256) [0-9a-f]+", r"\1 #", line)
    line = re.sub(r"\b\d+[smhd](?: \d+[smhd])?\b|\d+(?:\.\d+)?(?: ms|s| (?:[KMG]i)?B)\b", "#", line)
    return " ".join(re.sub(r"\d+(?:[.,]\d+)*", "#", line).split())


def check_shown(command: Command, printed: str, where: str) -> None:
    """Compare what a page shows with what was printed; `...` stands for any number of lines."""
    lines = [plain(line) for line in printed.splitlines()]
    position, anywhere = 0, False
    for shown in command.shown:
        if shown.strip() in ("", "..."):
            anywhere = anywhere or shown.strip() == "..."
            continue
        found = next((at for at in range(position, len(lines)) if fits(lines[at], plain(shown))), -1)
        assert found >= 0, f"{where}: '{plain(shown)}' is not among\n" + "\n".join(lines[position:])
        between = [line for line in lines[position:found] if line]
        assert anywhere or not between, f"{where}: {between} is not on the page"
        position, anywhere = found + 1, False


def fits(line: str, shown: str) -> bool:
    return line.startswith(shown.removesuffix("...")) if shown.endswith("...") else line == shown


@pytest.mark.parametrize("page", [PAGES / "README.md", *FAILURES], ids=lambda page: page.stem)
def test_commands_do_what_the_page_shows(
    page: Path,
    tmp_path: Path,
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: what a tired person types works. Method: make the situation, type the page's commands, compare."""
    scene = Scene(tmp_path)
    SCENES.get(page.stem, in_order)(scene)
    monkeypatch.chdir(tmp_path)
    unreachable(monkeypatch)
    export_copy(tmp_path, run)
    code = 0
    for command in commands(page):
        where = f"{page.name}:{command.line} {' '.join(command.words)}"
        if command.words == ("echo", "$?"):
            assert command.shown == (str(code),), where
        elif command.runs:
            assert command.words[0] == "holdfast", where
            ran = run(*(word.replace(PLACE, str(tmp_path)) for word in command.words[1:]))
            code = ran.code
            assert code != 2, f"{where}: {ran.err}"
            check_shown(command, (ran.out + ran.err).replace(str(tmp_path), PLACE), where)


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let S3 be where nobody listens."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


def export_copy(directory: Path, run: Run) -> None:  # noqa: F811
    """Put the export there that somebody made in good times."""
    if (directory / "copy").exists():
        assert run("export", directory / "copy", 5, directory / "orders.hf").code == 0


def known_commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if not children:
        yield path, command
        return
    for name, child in children.items():
        yield from known_commands(child, (*path, name))


KNOWN = dict(known_commands(get_command(app)))


@pytest.mark.parametrize("page", [PAGES / "README.md", *FAILURES], ids=lambda page: page.stem)
def test_commands_that_are_not_run_use_what_exists(page: Path) -> None:
    for command in commands(page):
        if command.words[0] != "holdfast":
            continue
        names = [name for name in KNOWN if command.words[1 : 1 + len(name)] == name]
        assert names, f"{page.name}:{command.line}: {' '.join(command.words)}"
        options = {option for parameter in KNOWN[names[0]].params for option in parameter.opts}
        assert {word for word in command.words if word.startswith("-")} <= options, f"{page.name}:{command.line}"


@pytest.mark.parametrize("page", FAILURES, ids=lambda page: page.stem)
def test_a_page_says_what_you_see_what_it_means_and_what_to_type(page: Path) -> None:
    titles = [match["title"] for match in HEADING.finditer(FENCE.sub("", page.read_text()))]
    assert titles[1:] == ["What you see", "What it means", "What to type"]


def test_the_index_has_every_page() -> None:
    linked = {match["target"] for match in LINK.finditer((PAGES / "README.md").read_text())}
    assert {page.name for page in PAGES.glob("*.md")} - {"README.md"} <= linked


# Metrics and alerts


def families() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return every metric there is: its name as it is read, its type, its labels besides the pipeline."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for instrument in vars(Instruments("orders")).values():
        metric = getattr(instrument, "_metric", None)
        if metric is not None:
            [family] = metric.describe()
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = (family.type, metric._labelnames[1:])
    return found | {f"holdfast_{name}": ("gauge", labels) for name, (_, labels) in GAUGES.items()}


def test_every_metric_is_in_a_table_with_its_type_and_labels_and_nothing_else() -> None:
    row = re.compile(r"^\| `(holdfast_\w+)` \| (\w+) \| ([^|]*)\| .+ \|$", re.MULTILINE)
    documented = {
        match[1]: (match[2], tuple(re.findall(r"`(\w+)`", match[3])))
        for match in row.finditer((PAGES / "metrics.md").read_text())
    }
    assert documented == families()


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(ALERTS.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def series() -> dict[str, tuple[str, ...]]:
    """Return every name that can stand in an expression, with its labels."""
    found: dict[str, tuple[str, ...]] = {}
    for name, (kind, labels) in families().items():
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + suffix: (*labels, "pipeline", "le") for suffix in suffixes}
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_can_be_evaluated_and_leads_somewhere(rule: dict[str, Any]) -> None:
    promql_parser.parse(rule["expr"])
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    names = set(re.findall(r"holdfast_\w+", rule["expr"]))
    assert names
    assert names <= series().keys()
    labels = {label for name in names for label in series()[name]}
    selected = set(re.findall(r"[{,]\s*(\w+)\s*=", rule["expr"]))
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert selected | shown <= labels
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert (PAGES / rule["annotations"]["runbook"]).is_file()


def test_every_alert_is_described_with_its_severity_and_page() -> None:
    row = re.compile(r"^\| `(\w+)` \| (\w+) \| .+ \| \[.+\]\((.+)\) \|$", re.MULTILINE)
    described = {match[1]: (match[2], match[3]) for match in row.finditer((PAGES / "alerts.md").read_text())}
    assert described == {
        rule["alert"]: (rule["labels"]["severity"], rule["annotations"]["runbook"]) for rule in rules()
    }
