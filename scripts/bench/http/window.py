#!/usr/bin/env python3
"""Measure what the window (`GET /`) costs a browser: first paint, dropped frames, compressed size.

`luce serve` runs with --model, and a real Chromium opens its page: --opens times with nothing in its cache, then
--answers times to read an answer of --tokens tokens that comes at --rate tokens a second (one event a token, as the
server sends them; a proxy of this program writes them, since no model keeps a given speed). A frame is dropped where
the page's own clock of frames (requestAnimationFrame, 60 a second) skips it. Aims on two idle cores: first paint below
200 ms, at most 5 % of the frames dropped, below 300 KB compressed.

Needs playwright, and its Chromium or the system's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import statistics
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import ClientSession, web
from rich.console import Console
from rich.table import Table

from luce.supervisor.http.window.pages import packed_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.harness import model_path, write_json
from scripts.bench.servers import LuceServer

if TYPE_CHECKING:
    from playwright.async_api import Browser

REPO = Path(__file__).resolve().parents[3]
AIMS = {"first paint": 200.0, "frames dropped": 0.05, "compressed": 300_000}
FRAME_MS = 1000 / 60
DEADLINE_MS = 120_000.0
PAINT = "performance.getEntriesByType('paint').map(entry => [entry.name, entry.startTime])"
FRAMES = """() => {
  const at = window.frames_at = [], tick = now => { at.push(now); requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
}"""


class ScriptedAnswer:
    """In front of the server: gives all as it does, and an answer of its own at a given speed."""

    def __init__(self, to: str, text: Path, n_tokens: int, rate: float) -> None:
        source = text.read_text()
        self._pieces = (re.findall(r"\s*\S{1,5}|\s+$", source) * (n_tokens // max(1, len(source) // 6) + 1))[:n_tokens]
        self._to = to
        self._rate = rate
        self.took_s = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its address."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        async with ClientSession(auto_decompress=False) as self._session:
            try:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.Response:
        kept = {name: value for name, value in request.headers.items() if name not in ("Host", "Origin", "Referer")}
        async with self._session.request(
            request.method, self._to + request.path_qs, headers=kept, data=await request.read()
        ) as given:
            left_out = ("Transfer-Encoding", "Content-Length", "Connection")
            headers = {name: value for name, value in given.headers.items() if name not in left_out}
            return web.Response(status=given.status, body=await given.read(), headers=headers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        clock = asyncio.get_running_loop().time
        began_s = clock()
        for number, piece in enumerate(self._pieces):
            await asyncio.sleep(began_s + number / self._rate - clock())
            await response.write(_event(number, {"content": piece}, None))
        self.took_s = clock() - began_s
        await response.write(_event(len(self._pieces), {}, "stop") + b"data: [DONE]\n\n")
        return response


def _event(number: int, delta: dict[str, str], finish: str | None) -> bytes:
    chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return f"id: {number}\ndata: {json.dumps(chunk)}\n\n".encode()


def chromium(own: Path) -> Path:
    """Playwright's own, or the system's."""
    if own.exists():
        return own
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (found := shutil.which(name)) is not None:
            return Path(found)
    raise SystemExit("needs Chromium: `playwright install chromium`, or Debian's package chromium")


async def first_paint_ms(browser: Browser, url: str) -> float:
    page = await browser.new_page()
    try:
        await page.goto(url)
        await page.wait_for_function(f"{PAINT}.length == 2", timeout=DEADLINE_MS)
        return float(dict(await page.evaluate(PAINT))["first-contentful-paint"])
    finally:
        await page.close()


async def frames(browser: Browser, url: str, slowdown: float) -> tuple[int, int]:
    """While an answer is written: how many frames there should have been, and how many there were not."""
    page = await browser.new_page()
    page.set_default_timeout(DEADLINE_MS)
    try:
        devtools = await page.context.new_cdp_session(page)
        await devtools.send("Emulation.setCPUThrottlingRate", {"rate": slowdown})
        await page.goto(url)
        await page.wait_for_selector(".welcome")
        await page.fill("#prompt", "Tell me all.")
        await page.press("#prompt", "Enter")
        await page.wait_for_selector(".message.live .body:has-text('a')")
        await page.evaluate(FRAMES)
        await page.wait_for_selector(".message.assistant:not(.live)")
        at: list[float] = await page.evaluate("window.frames_at")
    finally:
        await page.close()
    expected = [max(1, round((later - now) / FRAME_MS)) for now, later in pairwise(at)]
    return sum(expected), sum(n - 1 for n in expected)


async def measure(args: argparse.Namespace, url: str) -> dict[str, Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        program = chromium(Path(playwright.chromium.executable_path))
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        await first_paint_ms(browser, url)  # the browser's own start
        paints = [await first_paint_ms(browser, url) for _ in range(args.opens)]
        scripted = ScriptedAnswer(url, args.text, args.tokens, args.rate)
        shares, n_all, rates = [], [], []
        async with scripted.running() as proxy:
            for _ in range(args.answers):
                n_frames, n_dropped = await frames(browser, proxy, args.slowdown)
                shares.append(n_dropped / n_frames)
                n_all.append(n_frames)
                rates.append(args.tokens / scripted.took_s)
        await browser.close()
    return {
        "first paint": paints, "frames dropped": shares, "frames": n_all, "tokens a second": rates,
        "compressed": [packed_bytes()],
    }  # fmt: skip


def show(results: dict[str, Sequence[float]]) -> None:
    units: dict[str, Callable[[float], str]] = {
        "first paint": lambda ms: f"{ms:.0f} ms",
        "frames dropped": lambda share: f"{100 * share:.1f} %",
        "frames": lambda n: f"{n:.0f}",
        "tokens a second": lambda rate: f"{rate:.0f}",
        "compressed": lambda n_bytes: f"{n_bytes / 1000:.0f} KB",
    }
    table = Table("", "median", "range", "aim")
    for name, values in results.items():
        said = units[name]
        aim = f"<= {said(AIMS[name])}" if name in AIMS else ""
        table.add_row(name, said(statistics.median(values)), f"{said(min(values))} to {said(max(values))}", aim)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=model_path, default="luce-tiny", help="whose server is opened (%(default)s)")
    parser.add_argument("--opens", type=int, default=20, help="of the page (%(default)s)")
    parser.add_argument("--answers", type=int, default=3, help="that are read (%(default)s)")
    parser.add_argument("--tokens", type=int, default=4000, help="of an answer (%(default)s)")
    parser.add_argument("--rate", type=float, default=500.0, help="tokens a second (%(default)s)")
    parser.add_argument("--slowdown", type=float, default=1.0, help="of the page's own thread (%(default)s)")
    parser.add_argument("--text", type=Path, default=REPO / "README.md", help="Markdown that is answered (%(default)s)")
    parser.add_argument("--json", type=Path, help="write all figures there")
    args = parser.parse_args()
    with LuceServer(args.model, []) as server:
        results = asyncio.run(measure(args, server.url))
    show(results)
    write_json(args.json, results)


if __name__ == "__main__":
    main()
