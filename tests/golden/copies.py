"""The golden copies: packed directories, and what the version that made them said of each."""

import json
import tarfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "copies"
_SOME_TIME = 1_700_000_000


@dataclass(frozen=True)
class Facts:
    """What was true of a directory when it was packed, by the words of the version that made it."""

    made_with: str
    """The commit of that version."""
    records: int
    """How many records (or input files) there were."""
    checkpoints: dict[str, str]
    """Checkpoint id -> kind, epoch, and what verifying every byte of it said."""
    ledgers: dict[str, int]
    """Sink -> the epoch that its target shows."""


def pack(name: str, place: Path, facts: Facts, keep: Callable[[Path], bool] = lambda path: True) -> None:
    """Write a directory down as a golden copy. Names of owners and times of change are left out."""
    FOLDER.mkdir(exist_ok=True)
    with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(place.rglob("*")):
            if keep(path.relative_to(place)):
                archive.add(path, str(path.relative_to(place)), recursive=False, filter=_plain)
    (FOLDER / f"{name}.json").write_text(json.dumps(asdict(facts), indent=2, sort_keys=True) + "\n")


def unpack(name: str, place: Path) -> Facts:
    """Put a golden copy's files into a directory, as if they were written now; return what is known of it.

    Delta forgets log entries whose files are older than a month.
    """
    place.mkdir(parents=True, exist_ok=True)
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(place, filter=_written_now)
    return Facts(**json.loads((FOLDER / f"{name}.json").read_text()))


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = _SOME_TIME
    return member


def _written_now(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
    plain = tarfile.data_filter(member, place)
    return plain.replace(mtime=int(time.time()), deep=False)
