"""Activity, and the frame around all views, in a real Chromium."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
from aiohttp import web
from aiohttp.test_utils import TestServer

from luce.supervisor import Supervisor, SupervisorConfig
from luce.supervisor.http.app import create_app
from tests.http.serving import BOUNDED, Server, generating
from tests.http.window.browsing import browser, counts, go_to, has_focus, is_seen, opened, shows

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

VIEWS = ("chat", "memory", "now", "connect")


def test_lanes_queue_speed_and_pages(browser: Browser, server: Server) -> None:
    with opened(browser, f"{server.url}/#now") as page:
        page.wait_for_selector(".lane")
        shows(page.locator("#state"), "ready")
        shows(page.locator("#model"), "luce-tiny-Q8_0")
        counts(page.locator(".lane"), 4)
        with generating(server, 6):
            shows(page.locator("#waiting"), "2")
            shows(page.locator("#speed"), re.compile("[1-9]"))
            page.wait_for_selector(".lane:has-text('writing')")
            shows(page.locator("#running"), "4")
            page.wait_for_selector(".map i.running")
        shows(page.locator("#running"), "0")
        page.wait_for_selector(".map")
        labels = page.locator(".map").evaluate_all("maps => maps.map(map => map.getAttribute('aria-label'))")
        assert [label.split(":")[0] for label in labels] == ["Device", "Host memory", "Disk"]
        assert "kept" in labels[0]


def test_the_last_hour_and_why_the_last_request_took_so_long(browser: Browser, server: Server) -> None:
    for question in ("Who are you?", "What is 7 + 5?"):
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 8}
        httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).raise_for_status()
    with opened(browser, f"{server.url}/#now") as page:
        page.wait_for_selector(".chart canvas")
        labels = page.locator(".chart [role=img]").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        assert len(labels) == 6
        assert all(re.search(r", since \d\d:\d\d:\d\d: latest ", label) for label in labels)
        since = page.locator("section p", has_text="A sample every")
        shows(since, re.compile(r"^Since .* when the server started"))
        first = page.locator(".requests tbody tr").first
        shows(first.locator("td").nth(2), "chat")
        first.get_by_role("button", name="Why").press("Enter")
        shows(page.locator(".requests .why:visible"), re.compile("Most of the time .* was spent on .* prompt tokens"))
        with page.expect_response(re.compile("requests.json")):
            pass
        assert page.locator(".requests .why:visible").count() == 1, "it stays open while the table is drawn anew"


def test_refused_requests_are_told_apart_and_on_a_telephone_each_is_a_card(browser: Browser, server: Server) -> None:
    assert httpx.post(f"{server.url}/v1/chat/completions", json={"messages": "no"}).status_code == 400
    with opened(browser, f"{server.url}/#now", viewport={"width": 400, "height": 800}) as page:
        note = page.locator("#requests-note")
        shows(note, re.compile(r"failed\. Refused requests are not counted: [1-9]\d* of the last "))
        card = page.locator(".requests tbody tr").first
        outcome = card.get_by_role("cell").filter(has_text="refused (400)")
        name = outcome.evaluate("cell => getComputedStyle(cell, '::before').content")
        assert name == '"Outcome"'
        boxes = [cell.bounding_box() for cell in card.get_by_role("cell").all()]
        shown = [box for box in boxes if box]
        assert len({box["x"] for box in shown}) == 1, "a line a value"


def test_what_is_out_of_the_pool(browser: Browser, tiny_model: Path) -> None:
    running = Server(tiny_model, BOUNDED).start()
    try:
        with opened(browser, f"{running.url}/#now") as page:
            with generating(running, 1, n_prompt=1500):
                page.wait_for_selector(".map i.out")
                page.wait_for_selector(".recall")  # once the prompt's end has chosen
            counts(page.locator(".key i.out"), 1)
            said = re.compile(r"^\d+ % of the selected pages were in the pool; \d.* moved in, \d")
            shows(page.locator(".recall"), said)
    finally:
        running.stop()


def test_a_key_is_asked_for_once_and_kept_for_the_tab_until_the_server_is_gone(
    browser: Browser, tiny_model: Path
) -> None:
    key = "schlüssel-ключ"
    running = Server(tiny_model, {"ctx": 512, "pool": 1024, "api_keys": (key,)}).start()
    try:
        with opened(browser, f"{running.url}/") as page:
            page.wait_for_selector("#ask:visible")
            shows(page.locator("#state"), "locked")
            page.fill("#key", "wrong")
            page.press("#key", "Enter")
            shows(page.locator("#refused"), re.compile("not accepted"))
            page.fill("#key", key)
            page.click("#ask button")
            shows(page.locator("#state"), "ready")
            is_seen(page.locator("#ask"), False)
            page.reload()
            page.click("nav a[data-view=connect]")
            page.wait_for_selector(".connect pre:has-text('YOUR_KEY')")
            page.click("nav a[data-view=chat]")
            page.fill("#prompt", "Who are you?")
            page.click("#send")
            page.wait_for_selector(".message .figures")
            assert "ssel" not in page.url
            page.click("nav a[data-view=now]")
            page.wait_for_selector(".lane")
            running.stop()
            shows(page.locator("#state"), "no answer")
            counts(page.locator("body.stale"), 1)
    finally:
        running.stop()


def test_it_works_under_a_path_in_the_dark(browser: Browser, tiny_model: Path) -> None:
    ready: threading.Event = threading.Event()
    found: dict[str, Any] = {}

    async def host() -> None:
        config = SupervisorConfig(
            model=tiny_model, ctx=512, pool=1024, lanes=2, threads=1, no_warmup=True, log_level="warn"
        )
        async with Supervisor(config) as supervisor:
            outer = web.Application()
            outer.add_subapp("/a/b/", await create_app(supervisor))
            async with TestServer(outer) as running:
                found.update(url=str(running.make_url("/a/b/")), loop=asyncio.get_running_loop(), end=asyncio.Event())
                ready.set()
                await found["end"].wait()

    thread = threading.Thread(target=lambda: asyncio.run(host()))
    thread.start()
    try:
        assert ready.wait(120)
        with opened(browser, found["url"] + "#now", color_scheme="dark") as page:
            page.wait_for_selector(".chart canvas")
            counts(page.locator(".lane"), 2)
            page.click("nav a[data-view=connect]")
            page.wait_for_selector(f".connect pre:has-text('{found['url'].rstrip('/')} ')")
    finally:
        found["loop"].call_soon_threadsafe(found["end"].set)
        thread.join()


def test_no_view_needs_a_mouse_and_all_fit_a_telephone(browser: Browser, server: Server) -> None:
    with opened(browser, f"{server.url}/", viewport={"width": 360, "height": 740}) as page:
        page.wait_for_selector(".welcome")
        is_seen(page.locator("#export"), False)  # there is nothing to export yet
        for view in VIEWS:
            go_to(page, view)
            page.wait_for_selector(f"#{view} h1", state="attached")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{view} scrolls sideways"
            named = page.locator(f"#{view}").locator("button, a, input:not([hidden]), textarea, select")
            assert (
                named.evaluate_all(
                    "all => all.filter(one => !one.ariaLabel && !one.textContent.trim() && !one.labels?.length).length"
                )
                == 0
            ), f"{view} has a control without a name"
        go_to(page, "chat")
        page.press("#show-conversations", "Enter")
        is_seen(page.locator("#new"))
        shows(page.locator("#no-conversations:visible"), re.compile("^No conversations yet"))
        page.press("#new", "Enter")
        is_seen(page.locator("#new"), False)
        has_focus(page.locator("#prompt"))
        assert page.get_attribute("html", "lang") == "en"
        assert page.get_attribute("#state", "aria-live") == "polite"
