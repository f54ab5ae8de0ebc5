"""Kafka, PostgreSQL, MariaDB and Delta into Delta, PostgreSQL and Kafka: killed at every step, nothing lost or twice.

All four sources in one pipeline, so that each kill meets each of them. Every source on its own, at every step and at
random moments: `make test-all`.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spark.kills import moments, recovery_moments
from systems.chains import SINKS, Chain, Servers, compare, flip_a_byte, servers
from systems.feeds import Feed

SEED = 5
MOMENTS = ("1:after:prepare", "2:after:seal", "2:after:commit:topic")
DAMAGE_BEFORE = "2:after:commit:topic"
SOURCES = ("kafka", "postgres", "mysql", "delta")


@pytest.fixture(scope="module")
def real() -> Iterator[Servers]:
    with servers() as found:
        yield found


def killed_again_and_again(
    base: Path, feeds: Sequence[Feed], real: Servers, kills: Sequence[str], changes: int
) -> None:
    """Run one chain that is killed and one that is not, over the same changes."""
    generator = random.Random(SEED)
    chain, undisturbed = (Chain(f"{name}_{SEED}_{len(feeds)}", base, feeds, real) for name in ("killed", "calm"))
    undisturbed.run()
    for number, moment in enumerate(kills):
        for feed in feeds if number > 0 else ():  # The first process sees what the undisturbed one saw, and no more.
            feed.change(generator, changes)
        if moment == DAMAGE_BEFORE:
            flip_a_byte(chain.newest_checkpoint() / "manifest.json", generator)
        chain.run(moment)
    chain.run()
    undisturbed.run()
    compare(chain, undisturbed, feeds)


@pytest.mark.timeout(1200)
def test_every_row_of_every_system_arrives_once_in_every_sink(tmp_path: Path, real: Servers) -> None:
    feeds = list(real.feeds(tmp_path).values())
    killed_again_and_again(tmp_path, feeds, real, MOMENTS, changes=240)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_on_its_own_at_every_step(tmp_path: Path, source: str) -> None:
    with servers() as real:
        feed = real.feeds(tmp_path)[source]
        kills = [*moments(SINKS), *recovery_moments(), *random.Random(source).sample(moments(SINKS), 5)]
        killed_again_and_again(tmp_path, [feed], real, kills, changes=600)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("server", ["kafka", "postgres", "mariadb"])
def test_a_server_that_dies_in_the_middle(tmp_path: Path, server: str) -> None:
    """The pipeline waits, or stops and says which system is gone; then it goes on as if nothing had been."""
    generator = random.Random(SEED)
    with servers() as real:
        feeds = list(real.feeds(tmp_path).values())
        chain, undisturbed = (Chain(name, tmp_path, feeds, real) for name in ("struck", "calm"))
        for each in (undisturbed, chain):
            each.run()
        for feed in feeds:
            feed.change(generator, 1200)
        with chain.started() as process:
            assert process.stdout is not None
            assert process.stderr is not None
            committed = (line for line in process.stdout if line.startswith("committed"))
            next(committed)
            getattr(real, server).kill()
            getattr(real, server).start()
            for _ in committed:
                """Read on, so that nobody waits for us."""
            wrong = process.stderr.read()
        if process.returncode != 0:
            assert "holdfast.errors." in wrong, "what stopped it is told in our words"
            chain.run()
        undisturbed.run()
        compare(chain, undisturbed, feeds)
