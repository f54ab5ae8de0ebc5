"""Histories that broke a promise once, by what broke: made short by the simulation, kept as they are."""

from simulate.steps import History, Step

KEPT = {
    "going back to what an earlier go-back gave up": History(
        81,
        "bucket",
        None,
        (
            Step("run", count=3),
            Step("run", count=3),
            Step("run", count=2),
            Step("go back", pick=192),
            Step("run", count=2),
            Step("run"),
            Step("run"),
            Step("run"),
            Step("go back", pick=684, how="any"),
            Step("run"),
            Step("run", count=3),
            Step("go back", pick=6, how="any"),
        ),
    ),
    "two go-backs at once": History(
        127,
        "directory",
        None,
        (
            Step("run"),
            Step("run"),
            Step("run", meets="torn"),
            Step("run"),
            Step("go back"),
            Step("go back", pick=5, meets="pause", during=(Step("go back", pick=422),)),
        ),
    ),
    "a late seal under the id of a pruned fence": History(
        1149,
        "directory",
        1,
        (
            Step("run"),
            Step("go back"),
            Step("run", count=2),
            Step("fresh", how="rewind"),
            Step("stop"),
            Step("sinks", how="renamed"),
            Step("run"),
        ),
    ),
    "away while the pipeline went back": History(
        1015,
        "bucket",
        None,
        (
            Step("start"),
            Step("sinks", pick=607, how="renamed"),
            Step("run", count=2),
            Step("sinks", pick=104, how="removed"),
            Step(
                "go back",
                pick=122,
                meets="pause",
                during=(Step("sinks", pick=309, how="renamed"), Step("run", pick=585)),
            ),
            Step("run"),
        ),
    ),
    "an old token after the target was told of a way back": History(
        259,
        "bucket",
        2,
        (
            Step("sinks", how="renamed"),
            Step("copy"),
            Step("sinks", how="removed"),
            Step("sinks", how="renamed"),
            Step("trouble", how="commit busy"),
            Step("run"),
            Step("discard"),
            Step("run"),
            Step("move"),
            Step("discard"),
            Step("savepoint"),
            Step("copy"),
            Step("trouble", how="commit broken"),
            Step("copy"),
            Step("go back", pick=845),
        ),
    ),
    "a range that nobody decided, after a copy of the store ran on": History(
        5202,
        "bucket",
        None,
        (
            Step("run"),
            Step("run"),
            Step("run", count=3),
            Step("switch"),
            Step("run"),
            Step("take again"),
            Step("sinks", pick=266, how="renamed"),
            Step("fresh", how="rewind", meets="before"),
            Step("run", count=2),
            Step("wake"),
            Step("take again"),
            Step("run"),
            Step("take again"),
            Step("run"),
            Step("run", count=3),
            Step("run", count=3),
            Step("run", meets="torn"),
            Step("copy"),
            Step("run"),
            Step("run"),
            Step("switch", pick=277),
            Step("sinks", how="renamed"),
        ),
    ),
}

OPEN = {
    "late and not told because the newest manifest is damaged": History(
        1361,
        "bucket",
        2,
        (
            Step("start"),
            Step(
                "run",
                meets="pause",
                during=(
                    Step("run", pick=724),
                    Step("damage", pick=416, how="flip"),
                    Step("damage", pick=70, how="flip"),
                ),
            ),
        ),
    ),
    "a fresh start whose fence is damaged": History(
        1288,
        "bucket",
        None,
        (
            Step("run"),
            Step("run"),
            Step("damage", pick=241, how="flip"),
            Step("fresh", how="rewind"),
            Step("damage", how="flip"),
        ),
    ),
}
"""What still breaks: refusals after damage that nobody gets out of."""

OPEN_SEEDS = {
    204: "late and not told because the newest manifest is damaged",
}
"""Seeds of the short histories that meet what is open."""
