"""JVMs of tests live shortly: they compile little, and find Spark's classes ready to use in an archive.

Loading and checking some ten thousand classes is half of what a Spark session costs until its first epoch. `make` has
`archive_classes` write an archive of them once for each environment; without one, tests only take longer.
"""

import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
)
"""The optimising compiler takes half of the CPU time of a short life and gives little back. Without it
there is room for 48 MB of code only, and what is thrown out is soon compiled again.
Hadoop starts a `chmod` for every file it writes, which takes half as long without a helper process in between."""


def java_options() -> str:
    """Return options for a JVM that lives shortly. An archive that does not fit it is passed over, without a word."""
    if not ARCHIVE.exists() or " " in str(ARCHIVE):
        return SHORT_LIVED
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:disable"
