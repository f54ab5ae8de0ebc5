"""The page over `holdfast run` with a real Spark: epochs, a checkpoint on request, damage, a kill and a recovery."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from holdfast.stores.urls import open_store
from interfaces.started import Started
from interfaces.test_run_http_process import address_of
from interfaces.test_run_process import pipeline, put, start
from page.conftest import OpenPage
from page.story import flip

__all__ = ["pipeline", "start"]
SPARK_MS = 120_000


@pytest.mark.long
def test_a_pipeline_on_spark_is_watched_from_start_to_recovery(
    pipeline: Path, start: Callable[..., Started], open_page: OpenPage
) -> None:
    folder = pipeline.parent
    put(folder, "1.json", 1, 2)
    first = start("run", pipeline, "--http", "127.0.0.1:0", "--json")
    url = address_of(first)
    page = open_page(url)
    expect(page.locator("#status")).to_have_text("Running", timeout=SPARK_MS)
    expect(page.locator("#verdict-title")).to_have_text("Yes, recoverable now", timeout=SPARK_MS)
    expect(page.locator("#verdict")).to_contain_text("epoch 1")
    put(folder, "2.json", 3)
    expect(page.locator("#verdict")).to_contain_text("epoch 2", timeout=SPARK_MS)
    expect(page.locator("#checkpoint-body")).to_contain_text("Steps of epoch 1")
    page.get_by_role("button", name="Take a checkpoint").click()
    expect(page.locator(".toast")).to_have_text("The checkpoint is taken", timeout=SPARK_MS)
    put(folder, "3.json", 4)
    expect(page.locator("#verdict")).to_contain_text("epoch 3", timeout=SPARK_MS)

    store = open_store(folder / "store", retain=None, vnode_count=1)
    newest = store.load_latest()
    assert newest is not None
    flip(store, newest)
    page.goto(f"{url}/#/orders/checkpoint/{newest.checkpoint_id}")
    panel = page.locator("#checkpoint-body")
    panel.get_by_role("button", name="Verify").click()
    expect(panel.locator(".badge").first).to_have_text("damaged", timeout=SPARK_MS)
    first.process.send_signal(signal.SIGKILL)
    expect(page.locator("#connection")).to_have_text("No connection")
    first.kill()

    second = start("run", pipeline, "--http", f"127.0.0.1:{urlsplit(url).port}", "--json")
    recovered = json.loads(second.until(lambda line: '"Recovered"' in line))["report"]
    expect(page.locator("#connection")).to_have_text("Live", timeout=SPARK_MS)
    report = page.locator("#recoveries-body .run").first
    expect(report).to_contain_text(
        f"Recovered to epoch {recovered['epoch']} from checkpoint {recovered['chosen_id']}"
    )
    expect(report).to_contain_text(f"checkpoint {newest.checkpoint_id}")
    expect(report.locator(".skipped")).to_have_count(len(recovered["skipped"]))
    expect(page.locator("#recoveries-body .run").last).to_contain_text("killed: nobody wrote down its end")
    expect(page.locator("#verdict")).to_contain_text("generation 2", timeout=SPARK_MS)
    put(folder, "4.json", 5)
    expect(page.locator("#verdict-title")).to_have_text("Yes, recoverable now", timeout=SPARK_MS)
    page.get_by_role("button", name="Stop…").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    assert second.ended()[0] == 0
