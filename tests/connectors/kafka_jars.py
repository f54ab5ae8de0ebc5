"""Kafka's own programs and Spark's connector to it, fetched once by the resolver that comes with PySpark."""

import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

KAFKA = "4.1.1"
_PATIENCE_S = 900
_SPARK = importlib.metadata.version("pyspark")
_CONNECTOR = ("org.apache.spark", "spark-sql-kafka-0-10_2.13")
_CONNECTORS = (
    [(*_CONNECTOR, _SPARK, True)],
    # PySpark may be published days before its connector, and mirrors lack some. This one works with it.
    [
        (*_CONNECTOR, "4.2.0", False),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1", False),
        ("org.apache.kafka", "kafka-clients", "3.9.2", False),
        ("org.apache.commons", "commons-pool2", "2.13.1", False),
    ],
)
"""What to try in turn: group, name, version, and whether what it needs comes with it."""


class Unobtainable(Exception):
    """Something is not here and could not be fetched; the message says why."""


def java() -> str:
    """Return the Java that runs them."""
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    if found is None:
        raise Unobtainable("Kafka needs Java 17")
    return found


def broker_classpath() -> str:
    """Return the classpath of a broker. Logging is PySpark's."""
    logging = [jar for name in ("slf4j-api", "log4j-") for jar in sorted(_pyspark_jars().glob(f"{name}*.jar"))]
    wanted = [("org.apache.kafka", "kafka_2.13", KAFKA, True)]
    jars = kept(f"kafka-{KAFKA}/jars", lambda folder: _fetch(folder, wanted))
    return os.pathsep.join(map(str, [*logging, jars / "*"]))


def connector_jars() -> str:
    """Return Spark's Kafka connector as the setting `spark.jars` takes it."""
    jars = kept(f"spark-kafka-{_SPARK}", _fetch_connector)
    return ",".join(map(str, sorted(jars.glob("*.jar"))))


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache that outlives the tests; the first who asks has it made, whole or not at all."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-tests"
    target = cache / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock, tempfile.TemporaryDirectory(dir=cache) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            folder = Path(scratch) / "made"
            folder.mkdir()
            make(folder)
            folder.rename(target)
    return target


def _fetch_connector(folder: Path) -> None:
    *others, last = _CONNECTORS
    for wanted in others:
        try:
            return _fetch(folder, wanted)
        except Unobtainable:
            continue
    _fetch(folder, last)


def _fetch(folder: Path, wanted: Iterable[tuple[str, str, str, bool]]) -> None:
    """Fetch packages and what they need into a folder."""
    [ivy] = _pyspark_jars().glob("ivy-*.jar")
    settings = Path.home() / ".ivy2" / "ivysettings.xml"
    with tempfile.TemporaryDirectory() as scratch:
        order = Path(scratch) / "ivy.xml"
        order.write_text(_order(wanted))
        command = [java(), "-jar", str(ivy), "-ivy", str(order), "-cache", f"{scratch}/cache"]
        command += ["-settings", str(settings)] if settings.exists() else []
        command += ["-types", "jar", "bundle", "-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, cwd=scratch)
        except subprocess.TimeoutExpired:
            raise Unobtainable(f"Kafka could not be fetched within {_PATIENCE_S} s") from None
    if done.returncode != 0:
        raise Unobtainable(f"Kafka could not be fetched: {_reason(done.stdout + done.stderr)}")


def _order(wanted: Iterable[tuple[str, str, str, bool]]) -> str:
    lines = [
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="default->default"'
        f' transitive="{str(with_needs).lower()}"/>'
        for group, name, version, with_needs in wanted
    ]
    return (
        '<ivy-module version="2.0"><info organisation="holdfast" module="tests"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{"".join(lines)}</dependencies>'
        "</ivy-module>"
    )


def _reason(output: str) -> str:
    said = [line.strip() for line in output.splitlines() if "not found" in line or "ERROR" in line]
    return said[-1] if said else "the resolver does not say why"


def _pyspark_jars() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "jars"
