"""Draws what happens to a pipeline between its first start and its end.

A life ends in this process, at a step of the protocol, or really, in a process of its own, as in one case of ten.
"""

import random
from dataclasses import dataclass, replace

from fuzz.described import Case, Life, Pairs, Sink

KNOWN_DIFFERENCES = {
    "other max_files": "how rows are cut into epochs decides what is late: only where nothing has state",
    "free columns after damage": "an epoch whose checkpoint was damaged is computed again, for sinks that lack it",
    "free columns by key": "which of two rows of a key replaced the other is compared with plain Spark already",
    "sinks added beside other max_files": "which rows came before a sink is told by counting epochs",
    "sinks added after damage": "a sink that comes when an epoch is computed again has the rows of that one as well",
    "sinks added beside --from": "where one goes back to decides what a sink has of what was read before it came",
    "history": "that a start was refused is recorded there, and locks are held in files",
    "sqlite": "it has neither NaN nor booleans",
    "exchange reuse": "of two branches that begin alike Spark 4.3 closes no window of the second: off on both sides",
    "a source that is not used": "plain Spark and Holdfast leave it alone; it cannot be compared",
}
"""All that the comparison leaves out, and why."""

STEPS = ("begin", "prepare", "capture", "seal", "commit", "record")
RECOVERY_STEPS = ("recovery.ask", "recovery.fence", "recovery.claim", "recovery.settle", "recovery.restore")
ENDS = {"crash": 10, "stop": 3, "overtaken": 2, "full disk": 1}
REAL_ENDS = {"sigkill": 4, "sigterm": 2, "sigstop": 3}
DAMAGE = ("flip", "cut", "gone")
THEN = {"lose work": 3, "damage": 4, "flip work": 2, "prune": 2}
STARTS = {"clock": 3, "order": 2, "from": 2, "prune": 2, "max_files": 3, "added": 2}


@dataclass
class Hand:
    """What a case may be disturbed by: drawn once for each."""

    random: random.Random
    real: bool

    def __post_init__(self) -> None:
        self.may = {name for name in (*ENDS, *REAL_ENDS, *THEN, *STARTS) if self.random.random() < 0.6}

    def choose(self, among: dict[str, int]) -> str:
        """Return one of those that this case may have, the first if there is none."""
        able = [name for name in among if name in self.may] or list(among)[:1]
        return self.random.choices(able, [among[name] for name in able])[0]


def draw_lives(case: Case, hand: Hand, *, stateless: bool) -> Case:
    """Return the case with lives, and with sinks that come later."""
    pick, epochs = hand.random, max(len(source.files) for source in case.sources)
    count = pick.choices((1, 2, 3, 4), (3, 4, 2, 1))[0]
    lives = tuple(_life(case, hand, number, epochs, stateless) for number in range(count))
    if hand.real and pick.random() < 0.5:
        lives = tuple(life if life.end in REAL_ENDS else replace(life, end="sigkill") for life in lives)
    goes_back = any(name == "from" for life in lives for name, _ in life.start)
    if "added" in hand.may and pick.random() < 0.4 and not goes_back and len(case.sinks) < 5:
        first = pick.choice(case.sinks)
        added = Sink(f"added{pick.randint(0, 9)}", first.kind, first.takes, since=pick.randint(1, count))
        return replace(case, sinks=(*case.sinks, added), lives=tuple(map(_cut_as_before, lives)))
    return replace(case, lives=lives)


def _cut_as_before(life: Life) -> Life:
    return replace(life, start=tuple(word for word in life.start if word[0] != "max_files"))


def _life(case: Case, hand: Hand, number: int, epochs: int, stateless: bool) -> Life:
    pick = hand.random
    end = hand.choose(REAL_ENDS if hand.real else ENDS)
    epoch, when = pick.randint(1, max(1, epochs - 1)), "committed"
    if end != "stop" and pick.random() < 0.75:
        when = f"{pick.choice(('before', 'after'))} {pick.choice(STEPS)}"
    if end in ("crash", "sigkill", "sigterm") and pick.random() < (0.25 if number else 0.08):
        when = f"{pick.choice(('before', 'after'))} {pick.choice(RECOVERY_STEPS)}"
    return Life(end, epoch, when, _start(hand, number, stateless), _then(hand))


def _start(hand: Hand, number: int, stateless: bool) -> Pairs:
    pick, drawn = hand.random, []
    if "clock" in hand.may and pick.random() < 0.3:
        drawn.append(("clock", pick.choice((-3600, -86_400 * 400, 7200))))
    if number and "order" in hand.may and pick.random() < 0.4:
        drawn.append(("order", "reversed"))
    if number and "from" in hand.may and pick.random() < 0.3:
        drawn.append(("from", pick.randint(0, 4)))
    if "prune" in hand.may and pick.random() < 0.3:
        drawn.append(("prune", pick.choice((1, 2, 3))))
    if number and stateless and "max_files" in hand.may and pick.random() < 0.5:
        drawn.append(("max_files", pick.choice((2, 3, None))))
    return tuple(drawn)


def _then(hand: Hand) -> Pairs:
    pick, drawn = hand.random, []
    if "lose work" in hand.may and pick.random() < 0.3:
        drawn.append(("lose work", True))
    if "damage" in hand.may and pick.random() < 0.4:
        for back in pick.choice(((0,), (0,), (1,), (0, 1))):
            name = pick.choice(("manifest.json", "state.bin"))
            drawn.append((pick.choice(("flip", *DAMAGE)), (name, back, pick.random())))
    if "flip work" in hand.may and pick.random() < 0.3:
        drawn.append(("flip work", (pick.random(), pick.random())))
    if "prune" in hand.may and pick.random() < 0.2:
        drawn.append(("prune", pick.choice((1, 2))))
    return tuple(drawn)
