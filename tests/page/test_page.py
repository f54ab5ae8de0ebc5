"""The page in a real browser, over a pipeline without Spark: real store, real protocol, real HTTP."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from holdfast.interfaces.http.addresses import Address, listen
from holdfast.interfaces.http.app import create_app
from holdfast.interfaces.http.security import Security, Tokens
from holdfast.interfaces.http.server import HttpServer
from holdfast.interfaces.local import OnePipeline
from interfaces.http_client import Served, served
from page.conftest import LAPTOP, PHONE, OpenPage
from page.story import flip

OPERATOR, READER = "operator-" + "o" * 24, "reader-" + "r" * 24
SIZES = pytest.mark.parametrize(
    "size", [pytest.param(LAPTOP, id="laptop"), pytest.param(PHONE, id="phone", marks=pytest.mark.long)]
)
YES = "Yes, recoverable now"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store") as shop:
        shop.pipeline.feed_and_wait(6)
        yield shop


def verdict(page: Page) -> object:
    return page.locator("#verdict-title")


def newest(shop: Served) -> int:
    return shop.pipeline.newest.checkpoint_id


def opened(page: Page, text: str) -> None:
    expect(page.locator("#checkpoint-title")).to_have_text(text)


@SIZES
def test_the_verdict_stands_first_and_epochs_appear_as_they_are_committed(
    shop: Served, open_page: OpenPage, size: dict[str, int]
) -> None:
    page = open_page(shop.server.url, viewport=size)
    expect(verdict(page)).to_have_text(YES)
    expect(page.locator("#verdict")).to_contain_text("epoch 3")
    expect(page.locator("#status")).to_have_text("Running")
    expect(page.locator("#connection")).to_have_text("Live")
    timeline = page.locator("#timeline-view")
    expect(timeline).to_have_attribute("aria-valuemax", "3")
    shop.pipeline.feed_and_wait(4)
    expect(timeline).to_have_attribute("aria-valuemax", "5")
    expect(page.locator("#verdict")).to_contain_text("epoch 5")
    expect(page.locator("#pipeline-body")).to_contain_text("median of the last 5")
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), "it is wider than the window"


@SIZES
def test_a_checkpoint_can_be_taken(shop: Served, open_page: OpenPage, size: dict[str, int]) -> None:
    page = open_page(shop.server.url, viewport=size)
    before = newest(shop)
    page.get_by_role("button", name="Take a checkpoint").click()
    expect(page.locator(".toast")).to_have_text("The checkpoint is taken")
    expect(page.locator("#checkpoint-count")).to_have_text(str(before + 1))
    expect(page.locator("#announcements")).to_have_text("The checkpoint is taken")


@SIZES
def test_a_damaged_checkpoint_turns_red_once_it_is_verified_and_stays_so(
    shop: Served, open_page: OpenPage, size: dict[str, int]
) -> None:
    flip(shop.pipeline.store, shop.pipeline.newest)
    page = open_page(f"{shop.server.url}/#/shop/checkpoint/{newest(shop)}", viewport=size)
    opened(page, f"Checkpoint {newest(shop)}")
    panel = page.locator("#checkpoint-body")
    expect(panel.locator(".badge").first).to_have_text("not read yet")
    expect(verdict(page)).to_have_text(YES)
    panel.get_by_role("button", name="Verify").click()
    expect(panel.locator(".badge").first).to_have_text("damaged")
    expect(panel.locator(".outcome")).to_contain_text(f"Checkpoint {newest(shop)} is damaged")
    expect(verdict(page)).to_have_text("Recoverable, but something needs a look")
    expect(page.locator(".reasons")).to_contain_text(
        f"checkpoint {newest(shop)} cannot be used, a start goes back to"
    )
    expect(page.locator("#verdict")).to_contain_text("epoch 2")
    page.reload()
    expect(page.locator("#checkpoint-body .badge").first).to_have_text("damaged")
    expect(verdict(page)).to_have_text("Recoverable, but something needs a look")


def test_all_can_be_verified_at_once(shop: Served, open_page: OpenPage) -> None:
    page = open_page(shop.server.url)
    page.get_by_role("button", name="Verify all").click()
    expect(page.locator(".toast")).to_contain_text("All 4 checkpoints are sound")
    expect(page.locator("#verdict")).to_contain_text("every byte was read")
    page.locator("#checkpoint-table summary").click()
    expect(page.locator("#checkpoint-table .badge.verified")).to_have_count(3)


def test_everything_about_a_checkpoint_is_shown(shop: Served, open_page: OpenPage) -> None:
    page = open_page(f"{shop.server.url}/#/shop/checkpoint/3")
    opened(page, "Checkpoint 3")
    panel = page.locator("#checkpoint-body")
    for heading in ("Steps of epoch 2", "Sources", "Sinks", "State", "Depends on"):
        expect(panel.get_by_role("heading", name=re.compile(heading))).to_be_visible()
    expect(panel.locator(".gantt tbody tr")).not_to_have_count(0)
    expect(panel.get_by_role("region", name="Sinks of this checkpoint")).to_contain_text("later epochs are replayed")
    panel.get_by_text("Raw manifest").click()
    expect(panel.locator("pre").last).to_contain_text('"manifest_checksum"')
    shop.pipeline.feed_and_wait(2)
    expect(panel.locator("details[open] pre")).to_contain_text('"manifest_checksum"')


def test_two_checkpoints_are_compared(shop: Served, open_page: OpenPage) -> None:
    page = open_page(f"{shop.server.url}/#/shop/checkpoint/4")
    opened(page, "Checkpoint 4")
    page.get_by_label("Compare with").fill("2")
    page.get_by_role("button", name="Show differences").click()
    differences = page.locator(".differences")
    expect(differences).to_contain_text("From checkpoint 2 to 4")
    expect(differences).to_contain_text("The pipeline is the same in both.")
    expect(differences.locator(".fact").filter(has_text="Rows in between")).to_contain_text("4")
    expect(differences.get_by_role("region", name="Offsets that moved")).to_contain_text("+4")
    expect(page).to_have_url(re.compile("#/shop/compare/2/4$"))
    expect(page.locator("#differences-title")).to_be_focused()
    page.get_by_role("button", name="Close").click()
    expect(differences).to_have_count(0)


def test_the_timeline_is_walked_with_the_keyboard(shop: Served, open_page: OpenPage) -> None:
    page = open_page(shop.server.url)
    timeline = page.get_by_role("slider", name="Checkpoints over time")
    expect(timeline).to_have_attribute("aria-valuemax", "3")
    timeline.focus()
    page.keyboard.press("Home")
    expect(timeline).to_have_attribute("aria-valuetext", re.compile(r"Fence 1, epoch 0, first start"))
    page.keyboard.press("ArrowRight")
    expect(timeline).to_have_attribute("aria-valuetext", re.compile(r"Checkpoint 2, epoch 1, not read yet"))
    expect(page.locator("#timeline-tip")).to_be_visible()
    page.keyboard.press("+")
    page.keyboard.press("-")
    page.keyboard.press("Enter")
    opened(page, "Checkpoint 2")
    expect(timeline).to_be_focused()
    page.keyboard.press("End")
    expect(timeline).to_have_attribute("aria-valuenow", "3")


def test_the_timeline_answers_to_a_pointer(shop: Served, open_page: OpenPage) -> None:
    page = open_page(shop.server.url)
    timeline = page.locator("#timeline-view")
    expect(timeline).to_have_attribute("aria-valuemax", "3")
    box = timeline.bounding_box()
    assert box is not None
    # Looked up anew each time, as what stands above the timeline may still grow. The newest are on the right.
    for x in range(int(box["width"]) - 2, 0, -6):
        place = {"x": x, "y": 100}
        timeline.hover(position=place)
        if page.locator("#timeline-tip").is_visible():
            break
    expect(page.locator("#timeline-tip .tip-title")).to_contain_text(re.compile(r"(Fence|Checkpoint) \d"))
    timeline.click(position=place)
    expect(page.locator("#checkpoint-title")).to_have_text(re.compile(r"(Fence|Checkpoint) \d"))
    expect(page).to_have_url(re.compile("/checkpoint/"))


def test_a_pipeline_is_paused_resumed_and_stopped_after_a_question(shop: Served, open_page: OpenPage) -> None:
    page = open_page(shop.server.url)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#status")).to_have_text("Paused")
    assert shop.pipeline.paused
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#status")).to_have_text("Running")
    stop = page.get_by_role("button", name="Stop…")
    stop.click()
    dialog = page.get_by_role("dialog", name="Stop the pipeline?")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(stop).to_be_focused()
    assert shop.get("/v0/pipelines/shop")["deployment_status"] == "Running"
    stop.click()
    dialog.get_by_role("button", name="Stop").click()
    expect(page.locator("#status")).to_have_text("Stopped")
    expect(page.locator("#pipeline-body")).to_contain_text("The pipeline is stopped.")
    expect(page.locator("#pipeline-body")).to_contain_text("which ended at epoch 3")
    expect(page.locator("#recoveries-body")).to_contain_text("stopped at epoch 3")
    expect(verdict(page)).to_have_text(YES)


def test_a_lost_connection_is_shown_and_heals(tmp_path: Path, open_page: OpenPage) -> None:
    with served(tmp_path / "store") as shop:
        shop.pipeline.feed_and_wait(4)
        port = shop.server.address.port
        page = open_page(shop.server.url)
        expect(page.locator("#connection")).to_have_text("Live")
        expect(verdict(page)).to_have_text(YES)
        shop.server.stop()
        expect(page.locator("#connection")).to_have_text("No connection")
        expect(page.locator("#connection-banner")).to_contain_text("What you see is what was true then")
        expect(page.locator("#verdict")).to_contain_text("Not known since")
        expect(page.get_by_role("button", name="Take a checkpoint")).to_have_count(0)
        shop.pipeline.feed_and_wait(2)
        app = create_app(OnePipeline(shop.local), Security(requests_per_second=10_000))
        with HttpServer(app, listen(Address("127.0.0.1", port))):
            expect(page.locator("#connection")).to_have_text("Live")
            expect(page.locator("#connection-banner")).to_be_hidden()
            expect(page.locator("#verdict")).to_contain_text("epoch 3")
            expect(page.locator("#timeline-view")).to_have_attribute("aria-valuemax", "3")


def test_tokens_are_asked_for_and_kept_for_this_tab_only(tmp_path: Path, open_page: OpenPage) -> None:
    with served(tmp_path / "store", security=Security(Tokens(OPERATOR, READER))) as shop:
        shop.pipeline.feed_and_wait(4)
        page = open_page(shop.server.url)
        dialog = page.get_by_role("dialog", name="Token")
        expect(dialog).to_contain_text("shows nothing without a token")
        dialog.get_by_label("Token").fill("wrong-" + "w" * 24)
        dialog.get_by_role("button", name="Use it").click()
        expect(dialog).to_contain_text("does not take this token")
        dialog.get_by_label("Token").fill(READER)
        dialog.get_by_role("button", name="Use it").click()
        expect(verdict(page)).to_have_text(YES)
        page.get_by_role("button", name="Pause").click()
        expect(dialog).to_contain_text("for looking only")
        assert not shop.pipeline.paused
        dialog.get_by_label("Token").fill(OPERATOR)
        dialog.get_by_role("button", name="Use it").click()
        expect(page.locator("#status")).to_have_text("Paused")
        page.reload()
        expect(verdict(page)).to_have_text(YES)
        assert page.evaluate("JSON.stringify(localStorage)") == "{}"
        assert page.evaluate("document.cookie") == ""
        assert OPERATOR not in page.url
        other_tab = page.context.new_page()
        other_tab.goto(shop.server.url)
        expect(other_tab.get_by_role("dialog", name="Token")).to_be_visible()


def test_a_theme_can_be_chosen_and_stays(shop: Served, open_page: OpenPage) -> None:
    page = open_page(shop.server.url, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Theme: as the system").click()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="Theme: light").click()
    assert page.evaluate(ground) == dark


def test_a_damaged_manifest_is_shown_for_what_it_is(shop: Served, open_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "store" / "checkpoints" / "checkpoint_000003" / "manifest.json"
    path.chmod(0o644)
    path.write_text(path.read_text().replace('"epoch": 2', '"epoch": 7'))
    page = open_page(f"{shop.server.url}/#/shop/checkpoint/3")
    panel = page.locator("#checkpoint-body")
    expect(panel.locator(".badge").first).to_have_text("damaged")
    expect(panel.locator(".problem")).to_contain_text("checksum")


def test_the_api_documents_itself_without_another_host(shop: Served, open_page: OpenPage) -> None:
    page = open_page(f"{shop.server.url}/docs")
    expect(page.locator(".swagger-ui .title")).to_contain_text("Holdfast")
    expect(page.locator(".opblock").first).to_be_visible()
    assert page.evaluate("document.querySelector('link[rel~=icon]').href").endswith("/favicon.svg")


def test_an_empty_store_is_no_alarm(tmp_path: Path, open_page: OpenPage) -> None:
    with served(tmp_path / "store") as shop:
        page = open_page(shop.server.url)
        expect(verdict(page)).to_have_text("Nothing to recover yet")
        page.get_by_role("button", name="Take a checkpoint").click()
        expect(page.locator(".toast")).to_contain_text("no epoch was completed")
