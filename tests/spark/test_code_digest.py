"""A digest of code says whether it does the same, in whatever process, and from wherever it was loaded."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark import cloudpickle

from holdfast.spark.code_digest import code_digest

CODE = """
import dataclasses, enum, functools, logging
from decimal import Decimal
import {helpers} as helpers
LOG, NAMES = logging.getLogger("rules"), {{"a", "b", "c", "x"}}
RATES = {{"a": 1, "b": [2, Decimal("2.5")], 3: None}}
class Kind(enum.Enum):
    NEW = 1
    OLD = 2
@dataclasses.dataclass
class Rule:
    rate: float = 2.0
    @property
    def double(self): return self.rate * 2
    @staticmethod
    def plain(): return frozenset({{1, 2, 3}})
    @classmethod
    def made(cls): return cls()
class Node:
    def __init__(self): self.me = self
NODE = Node()
@functools.lru_cache
def cached(x): return [y for y in NAMES if y != x]
def decorated(function):
    @functools.wraps(function)
    def inner(*args, **kwargs): return function(*args, **kwargs)
    return inner
@decorated
def wanted(x, *, y=(1, 2)):
    LOG.info("seen %s", x)
    known = x in {{"p", "q", "r"}}, bool(NODE), Kind.NEW
    return Rule.made().double + helpers.of(x) + len(cached(x)) + RATES["a"], known
"""
HELPERS = (
    "from decimal import Decimal\ndef of(x): return inner(x) + RATE\ndef inner(x): return x\nRATE = Decimal(2)\n"
)
SHOWN = "import sys; sys.path[:0] = [{path!r}]; import {name}; from holdfast.spark.code_digest import code_digest\n"
SHOWN += "from pyspark import cloudpickle; cloudpickle.register_pickle_by_value({name})\n"
SHOWN += "print(code_digest({name}.wanted), code_digest(cloudpickle.loads(cloudpickle.dumps({name}.wanted))))"


def digests(folder: Path, name: str, seed: str, code: str = CODE, helpers: str = HELPERS) -> list[str]:
    """Return the digests in a process of its own: of the function, and of what a worker of Spark's would get."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(code.format(helpers=f"{name}_helpers"))
    (folder / f"{name}_helpers.py").write_text(helpers)
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
    shown = SHOWN.format(path=str(folder), name=name)
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.split()


def test_it_is_the_same_in_every_process_and_from_every_place(tmp_path: Path) -> None:
    first, second = (digests(tmp_path / f"{n}", "rules", seed) for n, seed in enumerate(("1", "99")))
    assert first == second


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def inner(x): return x", "def inner(x): return -x"),
        ("RATE = Decimal(2)", "RATE = Decimal(3)"),
    ],
)
def test_it_follows_what_is_called_into_other_modules(tmp_path: Path, old: str, new: str) -> None:
    before = digests(tmp_path / "before", "rules", "1")
    assert digests(tmp_path / "after", "rules", "1", helpers=HELPERS.replace(old, new))[0] != before[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rate: float = 2.0", "rate: float = 3.0"),
        ("self.rate * 2", "self.rate + 2"),
        ("frozenset({{1, 2, 3}})", "frozenset({{1, 2, 4}})"),
        ("NEW = 1", "NEW = 7"),
        ('"x"}}', '"y"}}'),
        ('"a": 1', '"a": 1.0'),
        ("3: None", "3: 0"),
        ("y != x", "y == x"),
        ("y=(1, 2)", "y=(1, 3)"),
        ("function(*args, **kwargs)", "function(*args)"),
        ('{{"p", "q", "r"}}', '{{"p", "q", "s"}}'),
    ],
)
def test_it_changes_with_everything_that_is_reached(tmp_path: Path, old: str, new: str) -> None:
    assert old in CODE
    before = digests(tmp_path / "before", "rules", "1")
    after = digests(tmp_path / "after", "rules", "1", CODE.replace(old, new))
    assert after[0] != before[0]
    assert after[1] != before[1]


def test_what_cannot_be_compared_does_not_count() -> None:
    """Locks, connections and the like differ from process to process and say nothing of what is computed."""

    def made(lock: object) -> object:
        return lambda x: (lock, x)

    assert code_digest(made(threading.Lock())) == code_digest(made(threading.Lock()))
    assert code_digest(made(1)) != code_digest(made(2))


def test_a_value_that_cannot_be_shown_is_no_reason_to_fail() -> None:
    def broken(value: object) -> str:
        raise OSError("closed")

    library = type("Handle", (), {"__module__": "sqlite3", "__eq__": lambda a, b: a is b, "__repr__": broken})
    held = library()
    assert code_digest(lambda: held) == code_digest(lambda: held)


def test_a_function_of_python_itself_is_known_by_its_name() -> None:
    assert code_digest(len) == code_digest(len) != code_digest(max)
    assert code_digest(os.path.join) == code_digest(cloudpickle.loads(cloudpickle.dumps(os.path.join)))
