"""The tree of what is remembered: by a real server, for programs and in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import pytest

from luce.supervisor.scheduling.remembered_texts import TextListing, parse_listing
from tests.http.serving import Server
from tests.http.window.browsing import browser, counts, opened, shows

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

SHARED = list(range(100, 300))  # 3 pages of 64
ONE = [*SHARED, *range(300, 400)]
OTHER = [*SHARED, *range(1300, 1400)]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"host_cache": 256 << 20})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        while top := [run["page"] for run in runs(client) if run["parent"] is None]:
            client.post("/memory/forget", json={"engine": 0, "page": top[0]}).raise_for_status()
        for prompt in (ONE, OTHER):
            complete(client, prompt)
        yield client


def complete(client: httpx.Client, prompt: list[int]) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1, "temperature": 0})
    answer.raise_for_status()
    told: dict[str, Any] = answer.json()
    return told


def runs(client: httpx.Client) -> list[dict[str, Any]]:
    (engine,) = client.get("/memory.json").json()["engines"]
    listed: list[dict[str, Any]] = engine["runs"]
    return listed


def test_texts_are_a_tree_whose_branches_can_be_kept_and_forgotten(client: httpx.Client) -> None:
    top, *branches = runs(client)
    assert (top["parent"], top["begin"], top["end"]) == (None, 0, 192)
    assert [(run["parent"], run["begin"], run["end"]) for run in branches] == [(top["page"], 192, 256)] * 2
    assert all(run["n_device"] + run["n_host"] > 0 and run["words"] for run in [top, *branches])

    page = branches[0]["page"]
    client.post("/memory/hold", json={"engine": 0, "page": page}).raise_for_status()
    held = {run["page"]: (run["is_held"], run["n_pinned"]) for run in runs(client)}
    assert held[page][0]
    assert held[top["page"]][1] == 3, "what it begins with is kept as well"
    client.post("/memory/hold", json={"engine": 0, "page": page, "on": False}).raise_for_status()
    assert not any(run["is_held"] or run["n_pinned"] for run in runs(client))

    client.post("/memory/forget", json={"engine": 0, "page": page}).raise_for_status()
    (rest,) = runs(client)
    assert (rest["begin"], rest["end"]) == (0, 256), "there is no branch any more"
    one, other = (
        complete(client, prompt)["usage"]["prompt_tokens_details"]["cached_tokens"] for prompt in (ONE, OTHER)
    )
    assert other <= len(SHARED) < one, "the youngest text came first"


def test_all_of_a_conversation_can_be_forgotten(client: httpx.Client) -> None:
    client.post("/memory/forget", json={"engine": 0, "page": runs(client)[0]["page"]}).raise_for_status()
    assert runs(client) == []
    assert complete(client, ONE)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_the_device_s_memory_goes_and_comes_back(client: httpx.Client) -> None:
    client.post("/memory/park", json={}).raise_for_status()
    (engine,) = client.get("/memory.json").json()["engines"]
    assert engine["parked"]
    assert all(run["n_device"] == 0 and run["n_host"] > 0 for run in engine["runs"])
    assert complete(client, ONE)["usage"]["prompt_tokens_details"]["cached_tokens"] > 192
    assert not client.get("/memory.json").json()["engines"][0]["parked"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"engine": 0, "page": "0" * 32}, "nothing that is remembered ends there"),
        ({"engine": 0, "page": "abc"}, "32 hexadecimal digits"),
        ({"engine": 7, "page": "0" * 32}, "no engine 7"),
        ({"engine": 0}, "page"),
    ],
)
def test_what_is_not_there_is_said(client: httpx.Client, body: dict[str, Any], said: str) -> None:
    for path in ("/memory/hold", "/memory/forget"):
        answer = client.post(path, json=body)
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]


def test_a_listing_is_read_and_words_of_newer_engines_are_passed_over() -> None:
    assert parse_listing({}) == TextListing(0, 0, ())
    listed = parse_listing({"total": "9", "short": "2", "texts": "b:a:64:128:1:0:2:0:1:0:1::7+8:new"})
    (run,) = listed.runs
    assert (listed.n_runs, listed.n_short, run.parent, run.age_s, run.is_held) == (9, 2, "a", None, True)
    assert run.first_tokens == (7, 8)


@pytest.mark.usefixtures("client")
def test_the_view_shows_the_tree_and_what_is_done_with_it(browser: Browser, server: Server) -> None:
    with opened(browser, f"{server.url}/#memory") as page:
        page.on("dialog", lambda dialog: dialog.accept())
        counts(page.locator(".text"), 3)
        label = page.locator(".where").first.get_attribute("title") or ""
        assert re.match(r"3 pages: \d (on the device|in host memory)", label)
        branch = page.locator(".text .text").first
        branch.get_by_role("button", name="Pin").press("Enter")
        shows(branch.locator("[data-act^=hold]"), "Unpin")
        branch.get_by_role("button", name="Forget").press("Enter")
        counts(page.locator(".text"), 1)
        page.get_by_role("button", name="Park").press("Enter")
        shows(page.locator("[data-act=park-0]"), "Load the model again")
