"""The page's files: what they may do, who may see them, what they take on the wire."""

from __future__ import annotations

import re
from importlib.resources import files

import aiohttp
import pytest

from luce.supervisor.http.window.pages import packed_bytes
from tests.http.conftest import MakeServer
from tests.http.serving import Server

BROWSER = {"Accept": "text/html,application/xhtml+xml"}
STATIC = files("luce.supervisor.http.window").joinpath("static")
MAX_PACKED_BYTES = 300_000


async def test_the_page_may_do_nothing_but_what_it_is(server: Server) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/", headers=BROWSER) as answer:
        text, policy = await answer.text(), answer.headers["Content-Security-Policy"]
        assert (answer.status, answer.content_type) == (200, "text/html")
    for directive in ("default-src 'none'", "script-src 'self'", "base-uri 'none'", "frame-ancestors 'none'"):
        assert directive in policy
    assert "unsafe" not in policy
    assert "http:" not in policy
    assert re.search(r"<[^>]+ on[a-z]+=", text) is None, "an inline event handler would not run"
    assert re.search(r"<[^>]+ style=|<style", text) is None, "nor would a style in an attribute"
    assert re.search(r"<script(?![^>]+src=)", text) is None, "nor a script in the page"
    assert re.search(r"""(src|href)=["'](?!data:|window/|#)""", text) is None, "it loads what is its own"


@pytest.mark.parametrize("path", ["app.js", "style.css", "vendor/uplot.js", "vendor/highlight/languages/python.js"])
async def test_files_come_packed_and_once(server: Server, path: str) -> None:
    async with aiohttp.ClientSession() as session:
        url = f"{server.url}/window/{path}"
        first = await session.get(url, headers={"Accept-Encoding": "gzip"})
        assert (first.status, first.headers["Content-Encoding"]) == (200, "gzip")
        assert await first.read() == STATIC.joinpath(path).read_bytes()
        again = await session.get(url, headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status, await again.read()) == (304, b"")
        plain = await session.get(url, headers={"Accept-Encoding": "identity"})
        assert "Content-Encoding" not in plain.headers
        assert plain.content_type in {"text/javascript", "text/css"}


@pytest.mark.parametrize("path", ["../pages.py", "%2e%2e/pages.py", "vendor", "vendor/", "nothing.js", "/etc/passwd"])
async def test_what_is_no_part_of_the_page_is_not_there(server: Server, path: str) -> None:
    import yarl

    async with aiohttp.ClientSession() as session:
        assert (await session.get(yarl.URL(f"{server.url}/window/{path}", encoded=True))).status == 404


def test_all_of_it_is_small() -> None:
    assert packed_bytes() < MAX_PACKED_BYTES


async def test_the_figures_want_a_key_and_the_page_asks_for_it(make_server: MakeServer) -> None:
    async with make_server(api_keys=("secret",)) as server, aiohttp.ClientSession() as session:
        url, key = server.url, {"Authorization": "Bearer secret"}
        for path in ("status.json", "history.json", "requests.json", "clients.json"):
            assert (await session.get(f"{url}/{path}")).status == 401
            assert (await session.get(f"{url}/{path}?key=secret")).status == 401
            assert (await session.get(f"{url}/{path}", headers=key)).status == 200
        asked = await session.get(f"{url}/", headers=BROWSER)
        assert (asked.status, asked.content_type) == (401, "text/html")
        assert "API key" in await asked.text()
        refused = await session.get(f"{url}/")
        assert (refused.status, refused.content_type) == (401, "application/json")
        assert (await session.get(f"{url}/", headers=key)).status == 200
        assert (await session.get(f"{url}/window/app.js")).status == 200, "it is the same for everybody"
        told = await (await session.get(f"{url}/clients.json", headers=key)).json()
        assert told["needs_key"] is True
        assert "YOUR_KEY" in told["clients"]["Claude Code"]
        assert "secret" not in str(told)


async def test_client_lines_name_the_address_that_the_browser_uses(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        told = await (await session.get(f"{server.url}/clients.json", params={"url": "https://my.box/luce"})).json()
        assert "ANTHROPIC_BASE_URL=https://my.box/luce " in told["clients"]["Claude Code"]
        refused = await session.get(f"{server.url}/clients.json", params={"url": "https://a/$(reboot)"})
        assert refused.status == 400
