"""Makes the pictures of the page in docs/images: tells a story to a store, serves it, and photographs it in Chromium.

.venv/bin/python scripts/make_dashboard_images.py
"""

import math
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "tests"))

from holdfast.clock import SYSTEM_CLOCK  # noqa: E402
from holdfast.stores.store import DurableCheckpointStore  # noqa: E402
from page.serving import serving_story  # noqa: E402
from page.story import Story  # noqa: E402

HOURS = 5.2
EVERY_SECONDS = 60.0
LAPTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}


def rows_of(number: int) -> int:
    """Return how many rows an epoch takes: a day with its tides."""
    return round(1400 + 900 * math.sin(number / 28) + 160 * math.sin(number * 1.7))


def tell(folder: Path, *, damaged: bool) -> Story:
    """Return the story of an afternoon: a start, a kill, a recovery past damage, and a quiet evening until now."""
    begin = SYSTEM_CLOCK.now_ms() - round(HOURS * 3_600_000)
    story = Story(folder / "checkpoints", begin)
    story.start(seconds=1.1)
    story.epochs(95, EVERY_SECONDS, rows_of)
    for id in range(6, 90, 12):
        story.verify(id)
    story.damage(story.newest.checkpoint_id)
    story.kill()
    story.clock.advance(26 * 60)
    story.start(sinks={"db": "committed epoch 94", "lake": "has everything", "raw": "ahead: at epoch 95"})
    left = round((SYSTEM_CLOCK.now_ms() - story.clock.now_ms()) / 1000 / (EVERY_SECONDS + 0.4))
    story.epochs(left - 2, EVERY_SECONDS, lambda number: rows_of(number + 95))
    for id in range(112, story.newest.checkpoint_id, 14):
        story.verify(id)
    story.verify(story.newest.checkpoint_id)
    story.epochs(2, (SYSTEM_CLOCK.now_ms() - story.clock.now_ms()) / 2000 - 3, rows_of)
    if damaged:
        story.damage(story.newest.checkpoint_id)
        story.verify(story.newest.checkpoint_id)
    story.flush()
    return story


def photograph(browser: Browser, url: str, name: str, prepare: Callable[[Page], object], **options: object) -> None:
    """Open a page, bring it into a state, and keep the picture."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector(".gantt", timeout=120_000)
    page.wait_for_selector(".run", timeout=120_000)
    prepare(page)
    page.wait_for_timeout(1500)
    page.screenshot(path=IMAGES / f"{name}.png")
    context.close()
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size // 1024} KiB")


def main() -> None:
    """Make all of them."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    # The pictures are not of this machine's folders.
    elsewhere = patch.object(DurableCheckpointStore, "describe", return_value="/srv/orders/checkpoints")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        story = tell(Path(folder) / "calm", damaged=False)
        with elsewhere, serving_story(story) as (url, _):
            photograph(browser, url, "dashboard", lambda page: None, viewport=LAPTOP, color_scheme="light")
            photograph(browser, url, "dashboard-phone", lambda page: None, viewport=PHONE, color_scheme="dark")
            photograph(browser, f"{url}/#/orders/checkpoint/{story.newest.checkpoint_id}", "dashboard-checkpoint",
                lambda page: page.locator("#checkpoint").scroll_into_view_if_needed(),
                viewport={**LAPTOP, "height": 1200}, color_scheme="light")  # fmt: skip
        story = tell(Path(folder) / "damaged", damaged=True)
        with elsewhere, serving_story(story) as (url, _):
            path = f"{url}/#/orders/checkpoint/{story.newest.checkpoint_id}"
            photograph(browser, path, "dashboard-damaged", lambda page: None, viewport=LAPTOP, color_scheme="light")
        browser.close()


if __name__ == "__main__":
    main()
