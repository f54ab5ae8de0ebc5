"""The parts of the page that need no document, called in the browser that will run them."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from interfaces.http_client import served

NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


@pytest.fixture(scope="module")
def modules(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Return a page that can import the modules."""
    with served(tmp_path_factory.mktemp("store") / "store", start=False) as shop:
        page = browser.new_page(timezone_id="UTC")
        page.goto(shop.server.url)
        page.evaluate("""() => {
            const main = document.querySelector('script[type=module]').src;
            globalThis.load = (name) => import(new URL(name + '.js', main).href);
        }""")
        yield page
        page.close()


def call(page: Page, module: str, expression: str, given: Any = None) -> Any:
    """Evaluate an expression over what a module exports (`m`) and what is given (`g`)."""
    return page.evaluate(f"async (g) => {{ const m = await load('{module}'); return {expression}; }}", given)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0.4 ms"),
        (0.0421, "42.1 ms"),
        (0.9999, "1 s"),
        (1.5, "1.5 s"),
        (59.99, "1 min"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (3601, "1 h"),
        (356_400, "4 d 3 h"),
        (None, NOTHING),
    ],
)
def test_durations(modules: Page, seconds: float | None, text: str) -> None:
    assert call(modules, "formatting", "m.durationText(g)", seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (12_700, "12.4 KiB"),
        (-2048, f"{MINUS}2 KiB"),
        (5 * 2**40, "5 TiB"),
        (None, NOTHING),
    ],
)
def test_sizes(modules: Page, size: int | None, text: str) -> None:
    assert call(modules, "formatting", "m.bytesText(g)", size) == text


def test_counts_changes_and_ids(modules: Page) -> None:
    assert call(modules, "formatting", "m.countedText(1, 'checkpoint') + m.countedText(1200, 'checkpoint')") == (
        "1 checkpoint1,200 checkpoints"
    )
    assert call(modules, "formatting", "[12, -3, 0, null].map((value) => m.changeText(value))") == [
        "+12", f"{MINUS}3", "0", NOTHING,
    ]  # fmt: skip
    assert call(modules, "formatting", "m.idsText([9, 3, 5, 6, 7, 8, 12, 13])") == "3, 5\N{EN DASH}9, 12, 13"
    assert call(modules, "formatting", "[m.median([3, 1, 2]), m.median([1, 2, 3, 4]), m.median([])]") == [
        2,
        2.5,
        None,
    ]


def test_events_are_cut_out_of_pieces_of_any_length(modules: Page) -> None:
    text = ': listening\n\nid: 1\nevent: A\ndata: {"event": "A"}\n\n'
    text += 'data: {"event":\ndata: "B"}\r\n\r\ndata: broken\n\nid: 2\n'
    for size in (1, 2, 7, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        found = call(
            modules,
            "event_stream",
            "(() => { const p = new m.EventParser(); return g.flatMap((t) => p.push(t)); })()",
            pieces,
        )
        assert found == [{"event": "A"}, {"event": "B"}]
    assert call(modules, "event_stream", "[1, 2, 3, 4, 5, 9].map(m.pauseAfter)") == [
        1000,
        2000,
        4000,
        8000,
        15000,
        15000,
    ]


def test_the_address_names_a_pipeline_and_checkpoints(modules: Page) -> None:
    parse = "g.map((hash) => m.parseRoute(hash))"
    hashes = ["", "#/shop", "#/a%20b/checkpoint/42", "#/shop/compare/3/9", "#/shop/checkpoint/x", "#/%zz"]
    assert call(modules, "routing", parse, hashes) == [
        {"name": None, "checkpoint": None, "compared": None},
        {"name": "shop", "checkpoint": None, "compared": None},
        {"name": "a b", "checkpoint": 42, "compared": None},
        {"name": "shop", "checkpoint": 9, "compared": 3},
        {"name": "shop", "checkpoint": None, "compared": None},
        {"name": None, "checkpoint": None, "compared": None},
    ]  # fmt: skip
    assert call(modules, "routing", "m.routeText({name: 'a b', checkpoint: 9, compared: 3})") == "#/a%20b/compare/3/9"


def summary(id: int, **changes: Any) -> dict[str, Any]:
    return {
        "checkpoint_id": id,
        "condition": "valid",
        "problem": None,
        "abandoned_by": None,
        "epoch": id,
        "kind": "checkpoint",
        "created_at": f"2026-01-01T00:{id:02d}:00.000Z",
        "name": None,
        "size": 100,
        "uuid": f"u{id}",
        "sinks": {"db": "Committed"},
        **changes,
    }


def test_how_a_checkpoint_stands(modules: Page) -> None:
    listed = [
        summary(1, condition="start"),
        summary(2),
        summary(3),
        summary(4, condition="broken"),
        summary(5, abandoned_by=6, condition="broken"),
        summary(6, sinks={"db": "Pending"}),
        summary(7, condition="foreign"),
        summary(8, sinks={"db": "Committed", "lake": "Failed"}),
    ]
    expression = "(() => { const r = new Map(g.readings); return g.listed.map((s) => m.standingOf(s, r, 8)); })()"
    assert call(modules, "standing", expression, {"listed": listed, "readings": [[2, []], [3, ["a bit"]]]}) == [
        "start", "verified", "damaged", "damaged", "abandoned", "unverified", "foreign", "doubtful",
    ]  # fmt: skip
    assert (
        call(modules, "standing", "m.worse('verified', 'damaged') + m.worse('damaged', 'pruned')") == "damageddamaged"
    )


def test_lists_in_parts_make_one_model_and_what_is_gone_is_pruned(modules: Page) -> None:
    expression = """(() => {
        const model = new m.Model('shop', true);
        model.takeListing({checkpoints: g.slice(4, 8), total: 8});
        const before = [model.ids.length, model.unknownOlder];
        model.takeListing({checkpoints: g.slice(0, 4), total: 8}, 5);
        const all = [model.ids.length, model.unknownOlder];
        const epoch = {checkpoint_id: 2, epoch: 2, at: '2026-01-01T00:02:00Z', new_bytes: 5, total_bytes: 50};
        const rest = {seconds: 1, rows_in: 3, steps: {}, retries: [], rows_out: {}};
        model.takeEpochs({epochs: [{...epoch, ...rest}], notes: []});
        model.takeListing({checkpoints: g.slice(3, 8), total: 5});
        model.takeListing({checkpoints: [], total: 5}, 4);
        return {before, all, items: model.items.map((i) => [i.id, i.state]), times: model.items.map((i) => i.at)};
    })()"""
    found = call(modules, "model", expression, [summary(id) for id in range(1, 9)])
    assert found["before"] == [4, 4]
    assert found["all"] == [8, 0]
    assert found["items"] == [[2, "pruned"], *([id, "unverified"] for id in range(4, 9))]
    assert found["times"] == sorted(found["times"])


def item(id: int, at: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": id,
        "at": at,
        "state": "verified",
        "kind": "checkpoint",
        "newBytes": 10,
        "fullBytes": 100,
        "synced": False,
        "name": None,
        **changes,
    }


def test_thousands_share_columns_and_the_worst_shows(modules: Page) -> None:
    items = [item(id, id * 1000, state="damaged" if id == 2500 else "verified") for id in range(5000)]
    window = {"from": 0, "to": 5_000_000}
    columns = call(
        modules, "timeline_layout", "m.columnsOf(g.items, g.window, 1000, 2)", {"items": items, "window": window}
    )
    assert 450 < len(columns) <= 500
    [damaged] = [column for column in columns if column["state"] == "damaged"]
    assert damaged["first"] <= 2500 <= damaged["last"]
    assert sum(column["last"] - column["first"] + 1 for column in columns) == 5000


def test_gaps_are_much_longer_than_usual(modules: Page) -> None:
    items = [item(id, id * 10_000) for id in range(20)] + [item(id, 1_000_000 + id * 10_000) for id in range(20, 40)]
    gaps = call(modules, "timeline_layout", "m.gapsOf(g, 1_400_000)", items)
    assert gaps == [{"from": 190_000, "to": 1_200_000, "open": False}]
    open_gap = call(modules, "timeline_layout", "m.gapsOf(g, 9_000_000)", items)[-1]
    assert open_gap == {"from": 1_390_000, "to": 9_000_000, "open": True}
    assert call(modules, "timeline_layout", "m.gapsOf([], 5)") == []


def run(at: str, **changes: Any) -> dict[str, Any]:
    return {"at": at, "outcome": "restore", "ended_at": None, "error": None, **changes}


def test_an_end_that_nobody_wrote_down_is_a_kill(modules: Page) -> None:
    runs = [
        run("2026-01-01T00:00:00Z"),
        run("2026-01-01T00:10:00Z", ended_at="2026-01-01T00:15:00Z"),
        run("2026-01-01T00:20:00Z", outcome="refuse", ended_at="2026-01-01T00:20:01Z", error="no"),
        run("2026-01-01T00:30:00Z"),
    ]
    zero = 1_767_225_600_000
    items = [item(1, zero + 60_000), item(2, zero + 120_000), item(3, zero + 31 * 60_000)]
    expression = "m.marksOf(g.runs, g.items, g.alive).map(({kind, at}) => [kind, (at - g.zero) / 60000])"
    given = {"runs": runs, "items": items, "zero": zero}
    expected = [["start", 0], ["kill", 2], ["start", 10], ["stop", 15], ["refused", 20], ["start", 30]]
    assert call(modules, "timeline_layout", expression, {**given, "alive": True}) == expected
    assert call(modules, "timeline_layout", expression, {**given, "alive": None}) == expected
    assert call(modules, "timeline_layout", expression, {**given, "alive": False}) == [*expected, ["kill", 31]]


def test_the_nearest_and_the_window(modules: Page) -> None:
    items = [item(1, 1_000), item(2, 2_000), item(3, 10_000)]
    assert call(modules, "timeline_layout", "[0, 1600, 5900, 6100, 99999].map((at) => m.nearest(g, at))", items) == [
        0,
        1,
        1,
        2,
        2,
    ]
    assert call(modules, "timeline_layout", "m.nearest([], 5)") == -1
    young = call(modules, "timeline_layout", "m.windowOf(g, 6 * 3600e3, 12000)", items)
    assert young["from"] < 1_000 < 12_000 < young["to"] < 13_000
    old = call(modules, "timeline_layout", "m.windowOf([{at: 0}, {at: 1e9}], 3600e3, 1e9)")
    assert old["from"] == 1e9 - 3600e3
    ticks = call(modules, "timeline_layout", "m.ticksOf({from: 0, to: 3600e3}, 900, 90, 0).map((t) => t.at / 60000)")
    assert ticks == [0, 10, 20, 30, 40, 50]


def test_steps_follow_each_other_and_sinks_work_side_by_side(modules: Page) -> None:
    steps = {
        "begin": 0.01,
        "compute": 0.2,
        "prepare": 0.1,
        "prepare:db": 0.04,
        "prepare:lake": 0.09,
        "capture": 0.03,
        "seal": 0.02,
        "commit": 0.05,
        "commit:db": 0.05,
    }
    spans = call(modules, "epoch_steps", "m.spansOf(g, 0.5)", steps)
    assert [(each["name"], each["sink"], round(each["from"], 3)) for each in spans] == [
        ("begin", None, 0), ("compute", None, 0.01),
        ("prepare", "db", 0.21), ("prepare", "lake", 0.21), ("capture", None, 0.21),
        ("seal", None, 0.31), ("commit", "db", 0.33), ("sync", None, 0.38),
    ]  # fmt: skip
    assert round(call(modules, "epoch_steps", "m.checkpointSeconds(g)", steps), 3) == 0.05
    assert call(modules, "epoch_steps", "m.spansOf({})") == []


def test_rows_between_two_checkpoints_are_known_only_with_every_epoch(modules: Page) -> None:
    epochs = [{"epoch": epoch, "rows_in": 10 * epoch} for epoch in (1, 2, 3, 5)]
    assert call(modules, "differences", "m.rowsBetween(g, 1, 3)", epochs) == 50
    assert call(modules, "differences", "m.rowsBetween(g, 1, 5)", epochs) is None
    assert call(modules, "differences", "m.rowsBetween(g, 3, 3)", epochs) == 0


def test_what_recovery_would_do_about_a_sink(modules: Page) -> None:
    plan = "g.map(([status, has_token, newest]) => m.sinkPlan({status, has_token}, {checkpoint_id: 5}, newest))"
    texts = call(
        modules,
        "checkpoint",
        plan,
        [
            ["Committed", True, 5],
            ["Pending", True, 5],
            ["Pending", False, 5],
            ["Failed", True, 5],
            ["Committed", True, 9],
        ],
    )
    assert [text.split(":")[0].split(",")[0].split(";")[0] for text in texts] == [
        "Nothing", "Ask it where it stands", "Ask it where it stands",
        "Commit the prepared rows again", "Is further by now",
    ]  # fmt: skip


def test_why_a_checkpoint_waits(modules: Page) -> None:
    reasons = ["Replaying", {"InputEndpointBarrier": "orders"}]
    activity = {"status": "delayed", "reasons": reasons, "delayed_since": "2026-01-01T00:00:00Z"}
    value, note = call(modules, "pipeline", "m.activityWords(g)", activity)
    assert value == "waiting"
    assert note.startswith("a checkpoint waits: recovery computes epochs again")
    assert "input 'orders'" in note
    assert call(modules, "pipeline", "m.activityWords({status: 'idle'})") == ["idle", "no checkpoint is asked for"]


def test_text_of_others_stays_text(modules: Page) -> None:
    evil = "<img src=x onerror=alert(1)>"
    expression = "(() => { const e = m.h('p', {title: g}, g); return [e.children.length, e.textContent]; })()"
    assert call(modules, "dom", expression, evil) == [0, evil]


def test_the_verdict_in_words(modules: Page) -> None:
    healths = [
        None,
        *(
            {"recoverable": word, "refused": refused}
            for word, refused in (("yes", False), ("degraded", False), ("no", True), ("no", False))
        ),
    ]
    assert [each["tone"] for each in call(modules, "verdict", "g.map((h) => m.headlineOf(h))", healths)] == [
        "unknown",
        "yes",
        "degraded",
        "no",
        "unknown",
    ]
    holder = {"generation": 3, "host": "a", "process": 7, "since": None, "ended_at": None}
    words = call(modules, "verdict", "[m.holderWords(null, 0), m.holderWords(g, 0)]", holder)
    assert words == [["nobody yet", None], ["generation 3", "process 7 on a"]]
    healths = [{"fallbacks": [], "independent_fallback": None}, {"fallbacks": [5, 4], "independent_fallback": 4}]
    assert call(modules, "verdict", "g.map(m.fallbackWords)", healths) == [
        ["nothing is left", None],
        ["2 checkpoints", "4 shares no bytes with it"],
    ]


def test_words_of_the_server_are_made_readable(modules: Page) -> None:
    text = f"found at 2026-01-01T08:00:00.000Z: expected {'ab' * 32}, got 12"
    assert call(modules, "formatting", "m.readable(g, Date.parse('2026-01-01T09:00:00Z'))", text) == (
        "found at 08:00:00: expected abababab\N{HORIZONTAL ELLIPSIS}, got 12"
    )


RENDERED = """async (steps) => {
    const { h, renderInto } = await load('dom');
    const body = document.body.appendChild(h('div', { id: 'rendered' }));
    globalThis.clicks = [];
    let renderings = 0;
    globalThis.news = () => {
        const number = ++renderings;
        renderInto(body, number, () => [
            h('input', { type: 'text', 'data-key': 'field', value: '31' }),
            h('button', { 'data-key': 'button', onclick: () => clicks.push(number) }, `press ${number}`),
        ]);
    };
    news();
}"""


@pytest.fixture
def rendered(modules: Page) -> Iterator[Page]:
    """Return a page with a field and a button that `news()` builds anew."""
    modules.evaluate(RENDERED)
    yield modules
    modules.evaluate("document.getElementById('rendered').remove()")


def test_what_is_selected_in_a_field_outlives_news(rendered: Page) -> None:
    rendered.locator("#rendered input").select_text()
    rendered.evaluate("news()")
    rendered.keyboard.insert_text("2")
    assert rendered.locator("#rendered input").input_value() == "2"


def test_news_wait_while_something_is_pressed(rendered: Page) -> None:
    rendered.locator("#rendered button").hover()
    rendered.mouse.down()
    rendered.evaluate("news(), news()")
    assert rendered.locator("#rendered button").text_content() == "press 1"
    rendered.mouse.up()
    rendered.get_by_text("press 3").wait_for()
    assert rendered.evaluate("clicks") == [1]
