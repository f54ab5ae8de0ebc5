"""An automatic look at what hinders people: names, roles, contrast, order. In both themes and on both screens."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from interfaces.http_client import served
from marks import long
from page.conftest import LAPTOP, PHONE, OpenPage
from page.serving import serving_stores
from page.story import Story, flip

DAY_MS = 24 * 3600 * 1000
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
WHERE = """(() => {
    const section = document.activeElement.closest('section');
    return section?.getAttribute('aria-labelledby') ?? section?.id ?? document.activeElement.className;
})()"""
SCHEMES = pytest.mark.parametrize("scheme", ["dark", *long("light")])


def findings(page: Page) -> list[str]:
    """Return what axe complains about, and where."""
    page.evaluate("document.querySelectorAll('.toast').forEach((each) => each.remove())")
    options = {"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]}
    violations = Axe().run(page, options=options).response["violations"]
    return [
        f"{each['id']}: {node['html']} {node.get('failureSummary', '')}"
        for each in violations
        for node in each["nodes"]
    ]


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a store with everything in it: a kill, a recovery past damage, verified and damaged checkpoints."""
    story = Story(tmp_path_factory.mktemp("troubled") / "store", 1_767_225_600_000)
    story.start()
    story.epochs(20, 20)
    story.verify(story.newest.checkpoint_id)
    story.damage(story.newest.checkpoint_id)
    story.kill()
    story.clock.advance(900)
    story.start(sinks={"db": "has everything", "lake": "committed epoch 19", "raw": "ahead: at epoch 20"})
    story.epochs(10, 20)
    flip(story.store, story.newest)
    story.verify(story.newest.checkpoint_id)
    story.stop("sink 'db', epoch 29, commit: the server closed the connection", "SinkError")
    with serving_stores(archive=story.store) as url:
        yield url


@pytest.mark.parametrize(
    ("scheme", "size"),
    [("light", LAPTOP), ("dark", PHONE), *long(("light", PHONE), ("dark", LAPTOP))],
    ids=["light-laptop", "dark-phone", "light-phone", "dark-laptop"],
)
def test_trouble_can_be_perceived_by_everybody(
    troubled: str, open_page: OpenPage, scheme: str, size: dict[str, int]
) -> None:
    page = open_page(f"{troubled}/#/archive/compare/5/15", viewport=size, color_scheme=scheme)
    expect(page.locator("#verdict-title")).to_have_text("Recoverable, but something needs a look")
    expect(page.locator(".differences")).to_be_visible()
    page.locator("#checkpoint-table summary").click()
    expect(page.locator("#checkpoint-table .badge.damaged").first).to_be_visible()
    for details in page.locator(".run details:not([open]) > summary").all():
        details.click()
    page.get_by_text("Raw manifest").click()
    assert findings(page) == []


@SCHEMES
def test_a_running_pipeline_and_its_dialogs(tmp_path: Path, open_page: OpenPage, scheme: str) -> None:
    with served(tmp_path / "store") as shop:
        shop.pipeline.feed_and_wait(8)
        page = open_page(shop.server.url, color_scheme=scheme)
        expect(page.locator("#checkpoint-title")).to_be_visible()
        expect(page.get_by_role("button", name="Stop…")).to_be_visible()
        assert findings(page) == []
        page.get_by_role("button", name="Stop…").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert findings(page) == []
        page.keyboard.press("Escape")
        shop.server.stop()
        expect(page.locator("#connection-banner")).to_be_visible()
        assert findings(page) == []


def test_the_order_of_the_keyboard_is_the_order_of_the_page(tmp_path: Path, open_page: OpenPage) -> None:
    with served(tmp_path / "store") as shop:
        shop.pipeline.feed_and_wait(4)
        page = open_page(shop.server.url)
        expect(page.get_by_role("button", name="Stop…")).to_be_visible()
        expect(page.locator("#checkpoint-title")).to_be_visible()
        seen = []
        for _ in range(60):
            page.keyboard.press("Tab")
            where = page.evaluate(WHERE)
            if where and (not seen or seen[-1] != where):
                seen.append(where)
            if page.evaluate("document.activeElement.closest('footer') !== null"):
                break
        sections = [
            where
            for where in seen
            if where in ("verdict-title", "timeline-title", "checkpoint", "recoveries-title", "pipeline-title")
        ]
        assert sections == ["verdict-title", "timeline-title", "checkpoint", "recoveries-title", "pipeline-title"]
        assert seen[0] == "skip"


def test_a_screen_reader_is_told_of_changes_and_not_of_every_epoch(tmp_path: Path, open_page: OpenPage) -> None:
    with served(tmp_path / "store") as shop:
        shop.pipeline.feed_and_wait(4)
        page = open_page(shop.server.url)
        expect(page.locator("#connection")).to_have_text("Live")
        for _ in range(5):
            shop.pipeline.feed_and_wait(2)
        expect(page.locator("#timeline-view")).to_have_attribute("aria-valuemax", "7")
        page.wait_for_timeout(1500)
        assert page.locator("#announcements").text_content() == ""
        shop.pipeline.pause()
        expect(page.locator("#announcements")).to_have_text("Pipeline shop: Paused")
        live = page.evaluate(
            "[...document.querySelectorAll('[aria-live], [role=status], [role=alert], [role=log]')].map((e) => e.id)"
        )
        assert live == ["announcements"]
