"""The page of a manager: several pipelines and stores, and the life of a process. Real processes, no Spark."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from interfaces.test_manager_http import Manager, file, serve
from page.conftest import OpenPage
from page.story import Story

__all__ = ["file", "serve"]


def test_pipelines_and_stores_stand_side_by_side(
    serve: Callable[..., Manager], file: Path, tmp_path: Path, open_page: OpenPage
) -> None:
    story = Story(tmp_path / "archive", 1_767_225_600_000)
    story.start()
    story.epochs(5, 30)
    story.stop()
    manager = serve(file, tmp_path / "archive", start=False)
    page = open_page(str(manager.client.base_url))
    switcher = page.get_by_label("Pipeline or store")
    expect(switcher.locator("option")).to_have_text(["archive (store)", "orders"])
    expect(page.locator("#verdict-title")).to_have_text("Yes, recoverable now")
    expect(page.locator("#status")).to_have_text("store only")
    expect(page.locator("#actions button")).to_have_count(0)
    expect(page.locator("#connection")).to_have_text("Connected")
    switcher.select_option("orders")
    expect(page.locator("#status")).to_have_text("Stopped")
    expect(page.locator("#verdict-title")).to_have_text("Nothing to recover yet")
    expect(page).to_have_url(re.compile("#/orders$"))
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#status")).to_have_text("Running")
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#verdict-title")).to_have_text("Yes, recoverable now")
    page.get_by_role("button", name="Take a checkpoint").click()
    expect(page.locator(".toast")).to_have_text("The checkpoint is taken")
    page.get_by_role("button", name="Stop…").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.locator("#status")).to_have_text("Stopped")
    expect(page.locator("#pipeline-body")).to_contain_text("The pipeline is stopped.")
    page.go_back()
    expect(page.locator("#status")).to_have_text("store only")


def test_a_process_that_is_killed_comes_back_and_the_page_with_it(
    serve: Callable[..., Manager], file: Path, open_page: OpenPage
) -> None:
    manager = serve(file, start=True)
    manager.reaches("Running")
    page = open_page(str(manager.client.base_url))
    expect(page.locator("#connection")).to_have_text("Live")
    os.kill(manager.process()["pid"], signal.SIGKILL)
    expect(page.locator("#verdict")).to_contain_text("generation 2")
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#connection-banner")).to_be_hidden()


def test_why_a_pipeline_failed_is_shown(serve: Callable[..., Manager], file: Path, open_page: OpenPage) -> None:
    (file.parent / "fail").write_text('[2, "<b>no luck</b> today", null]')
    manager = serve(file, start=True)
    page = open_page(str(manager.client.base_url))
    expect(page.locator("#status")).to_have_text("Failed")
    expect(page.locator("#pipeline-body .problem")).to_contain_text("<b>no luck</b> today")
