"""The place where chaos happens: a small disk, a database, a feed of orders, and a pipeline process at a time."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any

from chaos.sequence import ROWS_PER_FILE, write_file
from chaos.victim import FENCED, STOPPED
from connectors.postgres_server import Server

DISK_BYTES = 1 << 30
PATIENCE = 180.0
_FEED_SECONDS = 0.25
_MOST_AHEAD = 400 * ROWS_PER_FILE


class Victim:
    """One life of the pipeline."""

    def __init__(self, base: Path, url: str, number: int, *, once: bool, clock_offset: float) -> None:
        self.log = base.parent / "logs" / f"{number:05d}.log"
        self.log.parent.mkdir(exist_ok=True)
        self._output: IO[bytes] = self.log.open("wb")
        command = [sys.executable, str(Path(__file__).with_name("victim.py")), str(base), url]
        command += ["--once"] if once else ["--clock-offset", str(clock_offset)]
        self._process = subprocess.Popen(
            command, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def lines(self, word: str) -> list[str]:
        """Return what it said, by the first word of a line."""
        text = self.log.read_text(errors="replace")
        return [line.partition(" ")[2] for line in text.split("\n") if line.startswith(f"{word} ")]

    def wait_until_running(self) -> None:
        """Wait until it has recovered, or is dead."""
        deadline = time.monotonic() + PATIENCE
        while self.is_alive and not self.lines("recovered"):
            assert time.monotonic() < deadline, f"no recovery within {PATIENCE:.0f} s, see {self.log}"
            time.sleep(0.05)

    def wait(self, seconds: float = PATIENCE) -> int:
        return self._process.wait(timeout=seconds)

    def kill(self) -> None:
        """Kill it and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()


class ChaosLab:
    """Holds everything together and counts what happened."""

    def __init__(self, generator: random.Random) -> None:
        self._random = generator
        self.tally: Counter[str] = Counter()
        self._home = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
        self.base = self._home / "disk"
        self.base.mkdir()
        self.can_fill_disk = _mount_small_disk(self.base)
        (self.base / "in").mkdir()
        self._server = Server()
        self.url = self._server.url
        self._victim: Victim | None = None
        self._lives = 0
        self._files = 0
        self.rows_seen = 0
        """How many orders the sinks showed when somebody last looked."""
        self._feeding = threading.Event()
        self._feed = threading.Thread(target=self._keep_feeding, daemon=True)
        self._keep = False
        self.stuck: list[str] = []
        """Why the last lives ended by themselves, one after the other without an epoch."""

    def __enter__(self) -> "ChaosLab":
        self._server.start()
        self._feeding.set()
        self._feed.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._feeding.clear()
        self._feed.join()
        if self._victim is not None:
            self._victim.kill()
        self._server.remove()
        if self._keep or kind is not None:
            print(f"kept for you to look at: {self._home}")
            return
        if self.can_fill_disk:
            subprocess.run(["umount", "--lazy", str(self.base)], check=False)
        shutil.rmtree(self._home, ignore_errors=True)

    def keep(self) -> None:
        """Leave everything where it is."""
        self._keep = True

    def count(self, what: str) -> None:
        """Count one more of something."""
        self.tally[what] += 1

    @property
    def kills(self) -> int:
        """How often something was killed."""
        return sum(times for what, times in self.tally.items() if what.startswith("killed"))

    @property
    def rows_fed(self) -> int:
        """How many orders there are."""
        return self._files * ROWS_PER_FILE

    def _keep_feeding(self) -> None:
        while self._feeding.is_set():
            # On a slow machine the end would take longer than the chaos before it.
            if self.rows_fed - self.rows_seen < _MOST_AHEAD:
                with contextlib.suppress(OSError):  # The disk is full: the file comes a little later.
                    write_file(self.base / "in", self._files)
                    self._files += 1
            time.sleep(_FEED_SECONDS)

    # the pipeline's lives

    def start(self) -> None:
        """Start the pipeline unless it runs."""
        if not self.is_alive:
            self._take_note()
            self._victim = self._new_victim()

    def _new_victim(self, *, once: bool = False) -> Victim:
        self._lives += 1
        offset = self._random.choice([0.0, 0.0, 0.0, -1.0, 1.0]) * self._random.choice([2, 3_600, 864_000])
        if offset:
            self.count("started with a clock that is off")
        return Victim(self.base, self.url, self._lives, once=once, clock_offset=offset)

    @property
    def is_alive(self) -> bool:
        """Whether the pipeline runs."""
        return self._victim is not None and self._victim.is_alive

    def let_it_run(self, seconds: float) -> None:
        """Wait for a while after it has recovered; with 0, kill it wherever it is in its start."""
        assert self._victim is not None
        if seconds == 0:
            time.sleep(self._random.uniform(0, 12))
            return
        self._victim.wait_until_running()
        time.sleep(seconds)

    def _take_note(self) -> None:
        """Count how the last life began and ended."""
        victim, self._victim = self._victim, None
        if victim is None:
            return
        for line in victim.lines("recovered"):
            self._count_recovery(json.loads(line))
        self.tally["epochs committed"] += len(victim.lines("epoch"))
        code = victim.wait()
        if victim.lines("epoch"):
            self.stuck = []
        if code == FENCED:
            self.count("lives ended: fenced")
        elif code == STOPPED:
            self.count("lives ended: stopped with an error, started again")
            self.stuck += victim.lines("stopped") if not victim.lines("epoch") else []
        elif code != -signal.SIGKILL:
            raise AssertionError(f"exit {code}, see {victim.log}")
        victim.kill()

    def _count_recovery(self, report: dict[str, Any]) -> None:
        self.count("recoveries")
        if report["skipped"]:
            self.count("recoveries that fell back")
        if report["replays"]:
            self.count("recoveries that replayed")
        for word in ("committed", "rewound"):
            if any(action.startswith(word) for action in report["sinks"].values()):
                self.count(f"recoveries where a sink was {word}")

    # what is done to it

    def kill(self) -> None:
        """Kill the pipeline with SIGKILL."""
        assert self._victim is not None
        if self._victim.is_alive:
            self._victim.kill()
            self.count("killed: the pipeline")

    def restart_postgres(self) -> None:
        """Shut the database down at once and start it a little later."""
        self._server.stop("immediate")
        self.count("killed: PostgreSQL")
        time.sleep(self._random.uniform(0, 5))
        self._server.start()

    def second_writer(self) -> None:
        """Start a second pipeline process beside the first; the first must give way."""
        first = self._victim
        assert first is not None
        if not first.is_alive:
            return
        second = self._new_victim()
        second.wait_until_running()
        self.count("second writers")
        if second.is_alive:
            first.wait()
        self._take_note()
        self._victim = second

    def fill_disk(self) -> None:
        """Leave no byte free for a while."""
        ballast = self.base / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(b"\0" * (1 << 20))
                file.flush()
        time.sleep(self._random.uniform(0.5, 3))
        ballast.unlink()
        self.count("times the disk was full")

    def perhaps_delete_work(self) -> None:
        """Delete the working directory now and then."""
        if self._random.random() < 0.25 and (self.base / "work").exists():
            shutil.rmtree(self.base / "work")
            self.count("working directories deleted")

    def perhaps_damage(self) -> None:
        """Damage the newest checkpoint now and then, once there are enough to fall back to."""
        checkpoints = sorted((self.base / "store" / "checkpoints").glob("checkpoint_*"))
        if len(checkpoints) < 4 or self._random.random() > 0.3:
            return
        files = [path for path in checkpoints[-1].iterdir() if path.name in ("manifest.json", "state.bin")]
        for path in self._random.sample(files, self._random.randint(1, len(files))):
            self._damage(path)
        self.count("newest checkpoints damaged")

    def _damage(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        way = self._random.choice(["flip", "flip", "truncate", "remove"])
        if way == "remove":
            path.unlink()
        elif way == "truncate":
            path.write_bytes(data[: self._random.randrange(len(data))])
        else:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
            path.write_bytes(data)

    def finish(self) -> list[str]:
        """Stop the feed, let the pipeline read everything, and return what kept it from that."""
        self._feeding.clear()
        self._feed.join()
        if self.is_alive:
            self.kill()
        self._take_note()
        last = self._new_victim(once=True)
        code = last.wait(PATIENCE * 3)
        for line in last.lines("recovered"):
            self._count_recovery(json.loads(line))
        last.kill()
        return [] if code == 0 else [f"the last run ended with {code}: {last.lines('stopped')}, see {last.log}"]


def _mount_small_disk(path: Path) -> bool:
    """Put a small filesystem there, so that it can be filled; False where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    return shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
