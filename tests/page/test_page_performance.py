"""Five thousand checkpoints: how soon something is seen, and how long an event keeps the page from answering."""

import statistics
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import CDPSession, Page, expect

from holdfast.clock import SYSTEM_CLOCK
from holdfast.interfaces.local import LocalPipeline
from page.conftest import OpenPage
from page.serving import serving_story
from page.story import Story

pytestmark = pytest.mark.long  # What a busy machine takes says nothing; run on a quiet one, by `make test-all`.
CHECKPOINTS = 5_000
EVERY_SECONDS = 20.0
FIRST_PAINT_MS = 1_000
WORK_PER_EVENT_MS = 100


@dataclass
class Long:
    """A pipeline that ran for a day, and where it is served."""

    story: Story
    url: str
    local: LocalPipeline


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Long]:
    begin = SYSTEM_CLOCK.now_ms() - round(CHECKPOINTS * (EVERY_SECONDS + 0.4) * 1000)
    story = Story(tmp_path_factory.mktemp("long") / "store", begin)
    story.start()
    story.epochs(CHECKPOINTS - 1, EVERY_SECONDS, lambda number: 600 + number % 900)
    story.kill()
    story.start()
    with serving_story(story) as (url, local):
        yield Long(story, url, local)


def test_something_is_seen_within_a_second(long: Long, open_page: OpenPage) -> None:
    paints = []
    for _ in range(5):
        page = open_page(long.url)
        expect(page.locator("#verdict-title")).to_have_text("Yes, recoverable now")
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        page.close()
    print(f"first paint: {[round(paint) for paint in paints]} ms")
    assert statistics.median(paints) < FIRST_PAINT_MS


def work_ms(session: CDPSession) -> float:
    """Return how long the main thread has worked since it began: tasks of every kind."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in metrics if each["name"] == "TaskDuration") * 1000


def everything_shown(page: Page, long: Long) -> None:
    page.get_by_role("button", name="Show all").click()
    last = str(long.story.newest.checkpoint_id - 1)
    expect(page.locator("#timeline-view")).to_have_attribute("aria-valuemax", last, timeout=120_000)


def test_an_event_takes_little_of_the_main_thread_with_all_of_them_on_screen(long: Long, open_page: OpenPage) -> None:
    page = open_page(long.url)
    expect(page.locator("#connection")).to_have_text("Live")
    everything_shown(page, long)
    page.wait_for_timeout(3000)
    page.evaluate("""() => {
        globalThis.longest = 0;
        new PerformanceObserver((list) => {
            for (const entry of list.getEntries()) longest = Math.max(longest, entry.duration);
        }).observe({type: 'longtask'});
    }""")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    events, before, pause = 20, work_ms(session), threading.Event()
    for _ in range(events):
        long.local.on_event(long.story.epoch())
        pause.wait(0.25)
    expect(page.locator("#timeline-view")).to_have_attribute(
        "aria-valuemax", str(long.story.newest.checkpoint_id - 1)
    )
    page.wait_for_timeout(1000)
    per_event = (work_ms(session) - before) / events
    longest = page.evaluate("longest")
    print(
        f"main thread: {per_event:.0f} ms per event, longest task {longest:.0f} ms, with {CHECKPOINTS:,} checkpoints"
    )
    assert per_event < WORK_PER_EVENT_MS


def test_moving_through_all_of_them_is_smooth(long: Long, open_page: OpenPage) -> None:
    page = open_page(long.url)
    everything_shown(page, long)
    box = page.locator("#timeline-view").bounding_box()
    assert box is not None
    took = page.evaluate("""async () => {
        const view = document.getElementById('timeline-view');
        const frame = () => new Promise(requestAnimationFrame);
        const times = [];
        for (let step = 0; step < 40; step += 1) {
            const begun = performance.now();
            const clientX = view.getBoundingClientRect().x + step * 20;
            view.dispatchEvent(new PointerEvent('pointermove', {clientX, bubbles: true}));
            view.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}));
            times.push(performance.now() - begun);
            await frame();
        }
        return times.sort((a, b) => a - b);
    }""")
    print(f"a step on the timeline: median {statistics.median(took):.1f} ms, longest {took[-1]:.1f} ms")
    assert statistics.median(took) < 16
