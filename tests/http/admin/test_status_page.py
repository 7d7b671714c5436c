"""The status page and what it polls: figures by a real server, and the page itself in headless Chromium."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from luce.supervisor import GenerateRequest, Supervisor, SupervisorConfig
from luce.supervisor.http.admin.status_page import page_tiers
from luce.supervisor.http.app import create_app
from luce.supervisor.http.engine_metrics import numbers
from tests.http.conftest import MakeServer
from tests.http.serving import BOUNDED, Server
from tests.http.statuses import engine_status

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 120_000
BROWSER = {"Accept": "text/html,application/xhtml+xml"}


def parts(tier: dict[str, Any]) -> dict[str, int]:
    return {part["kind"]: part["n"] for part in tier["parts"]}


# The figures


def test_pages_are_counted_by_tier() -> None:
    engine_metrics = numbers(
        {"cells_used": "65", "pages_resident": "5", "pages_host": "7", "host_bytes": "900", "disk_files": "3",
         "disk_bytes": "4096", "disk_trouble": "none"}
    )  # fmt: skip
    device, host, disk = page_tiers(engine_status(), engine_metrics)
    assert (device["n_total"], parts(device)) == (10, {"running": 2, "kept": 3})
    assert (host["n_total"], parts(host)) == (100, {"pages": 7, "tails": 2})
    assert (disk["n_total"], disk["bytes"], parts(disk)) == (None, 4096, {"files": 3})


def test_pages_that_are_out_of_the_pool_are_told_from_the_host_s_others() -> None:
    engine_metrics: dict[str, int | float | str] = {
        "cells_used": 640,
        "pages_resident": 10,
        "pages_host": 9,
        "pages_out": 7,
    }
    device, host, _ = page_tiers(engine_status(kvflash=640), engine_metrics)
    assert parts(device) == {"running": 10, "kept": 0}
    assert parts(host) == {"out": 7, "pages": 2, "tails": 0}
    # One that two texts miss is told twice, and lies in the host once.
    assert parts(page_tiers(engine_status(kvflash=640), engine_metrics | {"pages_out": 12})[1])["out"] == 9
    assert "out" not in parts(page_tiers(engine_status(), engine_metrics)[1])


def test_figures_with_a_fraction_are_numbers() -> None:
    engine_metrics = {
        "spec_share": "0.2500",
        "spec_steps": "12",
        "disk_trouble": "none",
        "odd": "1.2.3",
        "long": "9" * 400 + ".0",
    }
    assert numbers(engine_metrics) == engine_metrics | {"spec_share": 0.25, "spec_steps": 12}


@pytest.mark.parametrize("engine_metrics", [{"cells_used": 10**6, "pages_resident": 10**6}, {"cells_used": "odd"}])
def test_figures_that_cannot_be_do_not_overfill_a_tier(engine_metrics: dict[str, int | str]) -> None:
    device, *_ = page_tiers(engine_status(), engine_metrics)
    assert 0 <= sum(parts(device).values()) <= 10


def test_an_engine_that_says_nothing_has_no_map() -> None:
    assert page_tiers(engine_status(), {}) == []
    assert page_tiers(engine_status(info=None), {"pages_host": 1}) == []


async def test_the_figures_follow_what_runs(make_server: MakeServer) -> None:
    async with make_server(lanes=1, aliases=("tiny",), max_queue=9) as server, aiohttp.ClientSession() as session:
        before = await (await session.get(f"{server.url}/status.json")).json()
        assert (before["model"], before["ready"], before["max_waiting"]) == ("tiny", True, 9)
        assert before["engines"][0]["running"] == []
        with generating(server, 3):
            seen = await until(session, server.url, is_under_way)
        (lane,) = seen["engines"][0]["running"]
        assert (lane["n_prompt"], lane["n_read"]) == (300, 300)
        ended = await until(session, server.url, lambda seen: seen["requests"]["cancelled"] == 3)
        assert ended["waiting"] == 0


async def test_a_text_that_outgrows_the_pool_is_seen_in_the_host(make_server: MakeServer) -> None:
    async with make_server(**BOUNDED) as server, aiohttp.ClientSession() as session:
        with generating(server, 1, n_prompt=1500):
            seen = await until(session, server.url, lambda seen: n_out(seen) > 0)
        device, host, _ = seen["engines"][0]["tiers"]
        assert device["n_total"] == 640 // 64
        assert sum(parts(device).values()) + n_out(seen) > device["n_total"]
        assert sum(parts(host).values()) >= n_out(seen)
        await until(session, server.url, lambda seen: n_out(seen) == 0 and tiers_of(seen) != [])


def tiers_of(seen: dict[str, Any]) -> list[dict[str, Any]]:
    tiers: list[dict[str, Any]] = seen["engines"][0]["tiers"]
    return tiers


def n_out(seen: dict[str, Any]) -> int:
    return sum(parts(tier).get("out", 0) for tier in tiers_of(seen))


def is_under_way(seen: dict[str, Any]) -> bool:
    """The engine's own figures are those of a moment earlier, and it may be too busy to tell them."""
    (engine,) = seen["engines"]
    return (
        seen["waiting"] == 2
        and written(seen) > 0
        and engine["tiers"] != []
        and parts(engine["tiers"][0])["running"] > 0
    )


def written(seen: dict[str, Any]) -> int:
    return sum(lane["n_generated"] for engine in seen["engines"] for lane in engine["running"])


async def until(session: aiohttp.ClientSession, url: str, condition: Any) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while True:
            answer = await session.get(f"{url}/status.json")
            assert answer.status == 200
            seen: dict[str, Any] = await answer.json()
            if condition(seen):
                return seen


@contextmanager
def generating(server: Server, n_requests: int, n_prompt: int = 300) -> Iterator[None]:
    """So many long answers under way on the server, until the block is left."""
    tasks: list[asyncio.Task[None]] = []

    async def read(number: int) -> None:
        request = GenerateRequest(
            prompt_ids=[2 + (number * 7 + i) % 8000 for i in range(n_prompt)], max_tokens=3000, ignore_eos=True
        )
        while True:
            async with aclosing(server.supervisor.generate(request)) as events:
                async for _ in events:
                    pass

    async def begin() -> None:
        tasks.extend(asyncio.create_task(read(number)) for number in range(n_requests))

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server.call(begin)
    try:
        yield
    finally:
        server.call(end)


# The page and who may see it


async def test_the_page_may_do_nothing_but_what_it_is(server: Server) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/", headers=BROWSER) as answer:
        text, policy = await answer.text(), answer.headers["Content-Security-Policy"]
        assert (answer.status, answer.content_type) == (200, "text/html")
    for directive in ("default-src 'none'", "connect-src 'self'", "base-uri 'none'", "frame-ancestors 'none'"):
        assert directive in policy
    assert "unsafe" not in policy
    assert re.search(r"<[^>]+ on[a-z]+=", text) is None, "an inline event handler would not run"
    assert re.search(r"<[^>]+ style=", text) is None, "nor would a style in an attribute"
    assert re.search(r"""(src|href)=["'](?!data:)""", text) is None, "it is one file"


async def test_the_figures_want_a_key_and_the_page_asks_for_it(make_server: MakeServer) -> None:
    async with make_server(api_keys=("secret",)) as server, aiohttp.ClientSession() as session:
        url = server.url
        assert (await session.get(f"{url}/status.json")).status == 401
        assert (await session.get(f"{url}/status.json?key=secret")).status == 401
        key = {"Authorization": "Bearer secret"}
        assert (await session.get(f"{url}/status.json", headers=key)).status == 200
        asked = await session.get(f"{url}/", headers=BROWSER)
        assert (asked.status, asked.content_type) == (401, "text/html")
        assert "API key" in await asked.text()
        refused = await session.get(f"{url}/")
        assert (refused.status, refused.content_type) == (401, "application/json")
        assert (await session.get(f"{url}/", headers=key)).status == 200


async def test_many_lookers_are_one_look_at_the_engine(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(session.get(f"{server.url}/status.json") for _ in range(50)))
        times = {(await answer.json())["time_s"] for answer in answers}
    assert len(times) < 50


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Playwright's own Chromium, or the system's."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="left out: needs playwright (pip install playwright)")
    system = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    result: dict[str, Any] = {}
    # A loop of its own: playwright's blocking interface refuses a thread that has one.
    with sync_api.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        if not own.exists() and system is None:
            pytest.skip("left out: needs Chromium (`playwright install chromium`, or Debian's chromium)")
        result["browser"] = playwright.chromium.launch(
            executable_path=None if own.exists() else system, args=["--no-sandbox"]
        )
        yield result["browser"]
        result["browser"].close()


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page that has no errors of its own by the end."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
    try:
        page.goto(url)
        yield page
    finally:
        page.close()
    assert errors == []


def shows(page: Page, where: str, text: str | re.Pattern[str]) -> None:
    from playwright.sync_api import expect

    expect(page.locator(where)).to_have_text(text, timeout=PATIENCE_MS)


def test_the_page_shows_lanes_queue_speed_and_pages(browser: Browser, server: Server) -> None:
    with opened(browser, f"{server.url}/") as page:
        page.wait_for_selector(".lane")
        assert page.text_content("#state") == "ready"
        assert page.text_content("#model") == "luce-tiny-Q8_0"
        assert page.locator(".lane").count() == 4
        with generating(server, 6):
            shows(page, "#waiting", "2")
            shows(page, "#speed", re.compile("[1-9]"))
            page.wait_for_selector(".lane:has-text('writing')")
            assert page.text_content("#running") == "4"
            page.wait_for_selector(".map i.running")
        shows(page, "#running", "0")
        page.wait_for_selector(".map")
        labels = page.locator(".map").evaluate_all("maps => maps.map(map => map.getAttribute('aria-label'))")
        assert [label.split(":")[0] for label in labels] == ["Device", "Host memory", "Disk"]
        assert "kept" in labels[0]


def test_the_page_shows_what_is_out_of_the_pool(browser: Browser, tiny_model: Path) -> None:
    running = Server(tiny_model, BOUNDED).start()
    try:
        with opened(browser, f"{running.url}/") as page:
            with generating(running, 1, n_prompt=1500):
                page.wait_for_selector(".map i.out")
                page.wait_for_selector(".recall")  # once the prompt's end has chosen
            assert page.locator(".key i.out").count() == 1
            shows(page, ".recall", re.compile(r"^\d+ % of the pages that mattered were in the pool; \d.* came in, \d"))
    finally:
        running.stop()


def test_the_page_says_when_the_server_is_gone(browser: Browser, tiny_model: Path) -> None:
    running = Server(tiny_model, {"ctx": 512, "pool": 1024}).start()
    try:
        with opened(browser, f"{running.url}/") as page:
            page.wait_for_selector(".lane")
            running.stop()
            shows(page, "#state", "no answer")
            assert page.locator("body.stale").count() == 1
    finally:
        running.stop()


def test_the_page_asks_for_a_key_and_keeps_it_for_the_tab(browser: Browser, tiny_model: Path) -> None:
    running = Server(tiny_model, {"ctx": 512, "pool": 1024, "api_keys": ("secret",)}).start()
    try:
        with opened(browser, f"{running.url}/") as page:
            page.wait_for_selector("#ask:visible")
            assert page.locator("#board").is_hidden()
            page.fill("#key", "wrong")
            page.press("#key", "Enter")
            shows(page, "#refused", re.compile("not accepted"))
            page.fill("#key", "secret")
            page.click("#ask button")
            page.wait_for_selector(".lane")
            assert page.locator("#ask").is_hidden()
            page.reload()
            page.wait_for_selector(".lane")
            assert "secret" not in page.url
    finally:
        running.stop()


def test_the_page_works_under_a_path(browser: Browser, tiny_model: Path) -> None:
    ready: threading.Event = threading.Event()
    found: dict[str, Any] = {}

    async def host() -> None:
        config = SupervisorConfig(model=tiny_model, ctx=512, pool=1024, lanes=2, threads=1, log_level="warn")
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
        with opened(browser, found["url"], color_scheme="dark") as page:
            page.wait_for_selector(".lane")
            assert page.locator(".lane").count() == 2
    finally:
        found["loop"].call_soon_threadsafe(found["end"].set)
        thread.join()


def test_the_page_needs_no_mouse_and_fits_a_telephone(browser: Browser, server: Server) -> None:
    with opened(browser, f"{server.url}/", viewport={"width": 360, "height": 740}) as page:
        page.wait_for_selector(".lane")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
        roles = json.loads(page.evaluate("JSON.stringify([...document.querySelectorAll('[role]')].map(e => e.role))"))
        assert "status" in roles
        assert page.get_attribute("html", "lang") == "en"
