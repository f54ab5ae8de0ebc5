"""The client that PyPI has as `feldera`, in an environment of its own: it wants another pandas than PySpark does."""

import subprocess
import sys
from pathlib import Path

from connectors.kafka_jars import Unobtainable, kept

VERSION = "0.369.0"
_PATIENCE_SECONDS = 900


def client_python() -> Path:
    """Return a Python that has the client; made once, in the cache that outlives the tests."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return kept(f"feldera-{VERSION}-python{python}", _make) / "bin" / "python"


def _make(folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, f"feldera=={VERSION}"])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Unobtainable(f"the client could not be fetched within {_PATIENCE_SECONDS} s") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unobtainable(f"the client could not be fetched: {said[-1] if said else 'pip does not say why'}")
