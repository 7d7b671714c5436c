"""What clients and watchers are told of speculation, by a server whose packaged model has its packaged drafter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import pytest

from tests.http.conftest import MakeServer
from tests.http.serving import Server
from tests.http.test_app_metrics import samples
from tests.http.window.browsing import browser, opened, shows

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

CODE = "def area(width, height):\n    return width * height\n"
COPY = f"Repeat this code exactly:\n```python\n{CODE}```"
MESSAGES = [{"role": "user", "content": COPY}]
DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 64, "temperature": 0},
    "/v1/completions": {"prompt": CODE + CODE[:16], "max_tokens": 32, "temperature": 0, "ignore_eos": True},
    "/v1/responses": {"input": COPY, "max_output_tokens": 64, "temperature": 0},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 64, "temperature": 0},
}
COUNTERS = {
    "drafted": "luce_http_drafted_tokens_total",
    "accepted": "luce_http_accepted_tokens_total",
    "steps": "luce_http_steps_total",
    "speculated_steps": "luce_http_speculated_steps_total",
    "draft_s": "luce_http_draft_seconds_total",
    "verify_s": "luce_http_verify_seconds_total",
}


@pytest.fixture(scope="module")
def speculating(tiny_model: Path) -> Iterator[Server]:
    """The gate is off, so that drafts are made whatever this machine gains by them."""
    running = Server(
        tiny_model, {"draft": tiny_model.with_name("luce-tiny-dflash-Q8_0.gguf"), "draft_gate": "off", "lanes": 2}
    )
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def client(speculating: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=speculating.url, timeout=120) as connected:
        yield connected


def check(told: dict[str, Any], n_generated: int) -> None:
    """The figures belong together. The first token may come of the prompt's own call."""
    assert told["drafted"] > 0
    assert 0 <= told["accepted"] <= told["drafted"]
    assert 0 < told["speculated_steps"] <= told["steps"] <= n_generated
    assert n_generated - 1 <= told["steps"] + told["accepted"] <= n_generated + 1
    assert told["acceptance"] == round(told["accepted"] / told["drafted"], 4)
    assert told["speculated_share"] == round(told["speculated_steps"] / told["steps"], 4)
    assert told["tokens_per_step"] == round(1 + told["accepted"] / told["steps"], 4)
    assert told["draft_s"] > 0
    assert told["verify_s"] > 0


@pytest.mark.parametrize("path", DIALECTS)
def test_each_dialect_tells_it_in_its_usage(client: httpx.Client, path: str) -> None:
    before = samples(client)
    answer = client.post(path, json={"model": "any", **DIALECTS[path]})
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    told = usage["luce"]["speculation"]
    check(told, usage.get("completion_tokens", usage.get("output_tokens")))
    if "timings" in answer.json():
        timings = answer.json()["timings"]
        assert (timings["draft_n"], timings["draft_n_accepted"]) == (told["drafted"], told["accepted"])
    after = samples(client)
    for figure, counter in COUNTERS.items():
        assert after[counter, ()] - before.get((counter, ()), 0.0) == pytest.approx(told[figure], abs=1e-6)
    for name in ("luce_http_draft_acceptance_ratio_count", "luce_http_tokens_per_step_count"):
        assert after[name, ()] - before[name, ()] == 1


def test_a_stream_tells_the_same(client: httpx.Client) -> None:
    body = {**DIALECTS["/v1/chat/completions"], "stream": True, "stream_options": {"include_usage": True}}
    lines = client.post("/v1/chat/completions", json=body).text.split("\n\n")
    (usage,) = (
        chunk["usage"]
        for chunk in (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {"))
        if chunk.get("usage")
    )
    check(usage["luce"]["speculation"], usage["completion_tokens"])


def test_choices_add_up(client: httpx.Client) -> None:
    body = {**DIALECTS["/v1/chat/completions"], "n": 2}
    usage = client.post("/v1/chat/completions", json=body).json()["usage"]
    told = usage["luce"]["speculation"]
    assert 0 < told["accepted"] <= told["drafted"]
    assert usage["completion_tokens"] - 2 <= told["steps"] + told["accepted"] <= usage["completion_tokens"] + 2


def test_the_engine_tells_what_it_has_done_so_far(client: httpx.Client) -> None:
    client.post("/v1/chat/completions", json=DIALECTS["/v1/chat/completions"])
    engine: dict[str, Any] = {"figures": {}}
    while not engine["figures"]:  # an engine that is busy for long has none
        (engine,) = client.get("/status.json").json()["engines"]
    assert engine["speculation"] == "ngram+dflash"
    engine_metrics = engine["figures"]
    assert 0 < engine_metrics["spec_accepted"] <= engine_metrics["spec_drafted"]
    assert engine_metrics["spec_tokens_per_step"] == pytest.approx(
        1 + engine_metrics["spec_accepted"] / engine_metrics["spec_steps"], abs=1e-4
    )
    assert 0 < engine_metrics["spec_share"] <= 1
    assert engine_metrics["spec_draft_s"] > 0
    assert client.get("/props").json()["speculation"] == "ngram+dflash"


async def test_without_speculation_nothing_is_told(make_server: MakeServer) -> None:
    async with make_server(draft_max=0) as server, httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        answer = (await client.post("/v1/chat/completions", json=DIALECTS["/v1/chat/completions"])).json()
        assert answer["usage"]["luce"]["speculation"] is None
        assert "draft_n" not in answer["timings"]
        lines = (await client.get("/metrics")).text.splitlines()
        assert [line for line in lines if line.startswith(tuple(COUNTERS.values()))] == []
        (engine,) = (await client.get("/status.json")).json()["engines"]
        assert engine["speculation"] == "none"
        assert [name for name in engine["figures"] if name.startswith("spec_")] == []


# In a browser, last: an event loop runs in this thread from here on


def test_the_page_shows_it(client: httpx.Client, browser: Browser, speculating: Server) -> None:
    client.post("/v1/chat/completions", json=DIALECTS["/v1/chat/completions"])
    said = r"drafts: ngram, dflash; [1-9]\.\d\d tokens per step, \d+ % of drafted tokens accepted"
    with opened(browser, f"{speculating.url}/#now") as page:
        shows(page.locator(".engine header"), re.compile(said))
