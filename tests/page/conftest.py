"""A real Chromium, and pages in it that must not complain, nor ask anybody but their own server."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

LAPTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
PATIENCE_MS = 30_000

OpenPage = Callable[..., Page]

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Start Chromium. For one module only: while Playwright works, no other test could run an event loop."""
    with sync_playwright() as playwright:
        # Without its own sandbox, which needs rights that containers do not give; it sees our pages only.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Return a function that opens a page: a URL, and options of a browser context."""
    contexts, complaints = [], []

    def listen(page: Page, origin: str) -> None:
        def heard(message: ConsoleMessage) -> None:
            # A request that is refused is logged by the browser itself; what the page makes of it is tested.
            if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
                complaints.append(message.text)

        def asked(request: Request) -> None:
            if urlsplit(request.url).netloc != origin:
                complaints.append(f"asked another host: {request.url}")

        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", asked)

    def open_page(url: str, **options: object) -> Page:
        context = browser.new_context(**{"viewport": LAPTOP, **options})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        listen(page, urlsplit(url).netloc)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
