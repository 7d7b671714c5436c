"""A server with several models: each is asked by its name, and clients hear signs of life while theirs comes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from luce.supervisor import SupervisorConfig
from luce.supervisor.fleet.fleet import Fleet, FleetConfig, Member
from luce.supervisor.fleet.turns import TurnRules
from luce.supervisor.http.answer_defaults import AnswerDefaults
from luce.supervisor.http.app import create_app
from luce.supervisor.http.served_models import ServedFleet
from luce.supervisor.http.server import listening
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.scheduling.presence import PresenceState
from tests.http.window.browsing import counts, launched, opened
from tests.supervisor.streams import until

HELLO = [{"role": "user", "content": "Hello"}]


@dataclass
class Many:
    fleet: Fleet
    url: str
    http: aiohttp.ClientSession
    sdk: AsyncOpenAI


async def fetch(many: Many, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
    async with many.http.request("GET" if body is None else "POST", path, json=body) as response:
        return response.status, await response.read()


async def look(many: Many, path: str) -> Any:
    return json.loads((await fetch(many, path))[1])


@pytest.fixture
async def many(tiny_model: Path, tmp_path: Path) -> AsyncIterator[Many]:
    """Two that exclude each other."""
    config = SupervisorConfig(model=tiny_model, ctx=4096, lanes=2, threads=1, no_warmup=True, log_level="warn")
    (tmp_path / "right.gguf").symlink_to(tiny_model)
    members = [
        Member(name="left", config=config, aliases=("gauche",)),
        Member(name="right", config=dataclasses.replace(config, model=tmp_path / "right.gguf")),
    ]
    base = ServeSettings(port=0, keep_alive_s=0.05)
    of_left = ServeSettings(
        port=0, keep_alive_s=0.05, aliases=("left", "gauche"), profiles={"left-cold": AnswerDefaults(temperature=0.0)}
    )
    of_right = ServeSettings(port=0, keep_alive_s=0.05, aliases=("right",))
    rules = TurnRules(turn_s=0.2, linger_s=0.05)
    async with Fleet(FleetConfig(members=members, rules=rules)) as fleet:
        app = await create_app(ServedFleet(fleet, {"left": of_left, "right": of_right}), base)
        async with (
            listening(app, base) as (_, url),
            aiohttp.ClientSession(url) as http,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as sdk,
        ):
            yield Many(fleet, url, http, sdk)


async def test_each_api_finds_the_model_that_it_names(many: Many) -> None:
    bodies = {
        "/v1/chat/completions": {"messages": HELLO, "max_tokens": 4},
        "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
        "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
        "/v1/messages": {"messages": HELLO, "max_tokens": 4},
        "/completion": {"prompt": "Hello", "n_predict": 4},
    }
    for path, body in bodies.items():
        before = {name: supervisor.status().n_finished for name, supervisor in many.fleet.supervisors.items()}
        status, content = await fetch(many, path, {"model": "right", **body})
        assert status == 200, content
        after = {name: supervisor.status().n_finished for name, supervisor in many.fleet.supervisors.items()}
        assert (after["left"], after["right"]) == (before["left"], before["right"] + 1), path


async def test_what_is_listed_and_what_is_not_known(many: Many) -> None:
    listed = (await look(many, "/v1/models"))["data"]
    assert [(model["id"], model["state"], model["context_window"]) for model in listed] == [
        ("left", "away", 4096),
        ("gauche", "away", 4096),
        ("left-cold", "away", 4096),
        ("right", "away", 4096),
    ]
    answer = await many.sdk.chat.completions.create(model="gauche", messages=HELLO, max_tokens=4)
    assert answer.model == "gauche"
    states = {model["id"]: model["state"] for model in (await look(many, "/v1/models"))["data"]}
    assert (states["left"], states["right"]) == ("here", "away")
    status, content = await fetch(many, "/v1/chat/completions", {"model": "gpt-9", "messages": HELLO})
    assert (status, json.loads(content)["error"]["code"]) == (404, "model_not_found")
    assert b"left, gauche, left-cold, right" in content
    assert (await fetch(many, "/v1/models/gpt-9"))[0] == 404
    file = many.fleet.supervisors["right"].model
    file.rename(away := file.with_suffix(".away"))
    assert len((await look(many, "/v1/models"))["data"]) == 4
    status, content = await fetch(many, "/v1/chat/completions", {"model": "right", "messages": HELLO})
    assert (status, json.loads(content)["error"]["code"]) == (503, "engine_failed")
    away.rename(file)
    assert (await look(many, "/props?model=right"))["model_alias"] == "right"
    assert (await look(many, "/health"))["status"] == "ok"
    metrics = (await fetch(many, "/metrics"))[1]
    assert b'luce_supervisor_engines{state="away"} 1.0' in metrics
    assert b'engine="left engine 0"' in metrics


async def test_props_of_a_model_that_is_not_loaded(many: Many) -> None:
    """They are there without it: n_ctx is what it was asked to have."""
    props = await look(many, "/props?model=right")
    assert (props["model"], props["model_alias"], props["n_ctx"]) == ("right", "right", 4096)
    assert props["chat_template"]
    assert many.fleet.supervisors["right"].presence.state is PresenceState.AWAY
    assert (await fetch(many, "/props?model=gpt-9"))[0] == 404


async def test_a_benchmark_asks_for_a_model_that_is_there(many: Many) -> None:
    async def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = "from luce.supervisor.cli.app import main; main()"
        command = [sys.executable, "-c", code, "bench", "--url", many.url, "--depths", "32", "--rounds", "1", "-n", "2"]
        return await asyncio.to_thread(
            subprocess.run, [*command, *arguments], capture_output=True, text=True, timeout=120, check=False
        )

    first, right, unknown = [await bench(*words) for words in ((), ("--name", "right"), ("--name", "gpt-9"))]
    assert first.returncode == 0, first.stderr
    assert "is asked for left; --name chooses among left, gauche, left-cold, right" in first.stderr
    assert right.returncode == 0, right.stderr
    assert many.fleet.supervisors["right"].status().n_finished > 0
    assert unknown.returncode == 1
    assert "there is no model 'gpt-9' here, but left, gauche, left-cold, right" in unknown.stderr


async def test_a_client_hears_signs_of_life_while_its_model_comes(many: Many) -> None:
    body = {"model": "left", "messages": HELLO, "max_tokens": 600, "ignore_eos": True, "stream": True}

    long = asyncio.create_task(fetch(many, "/v1/chat/completions", body))
    await until(lambda: many.fleet.supervisors["left"].presence.n_running > 0, "it runs")
    _, other = await fetch(many, "/v1/chat/completions", {**body, "model": "right", "max_tokens": 4})
    assert other.count(b'"delta":{},') > 2, "empty chunks while it waits"
    assert other.rstrip().endswith(b"data: [DONE]")
    assert (await long)[1].rstrip().endswith(b"data: [DONE]")


async def test_one_that_starts_again_does_not_make_the_server_unready(many: Many) -> None:
    left = many.fleet.supervisors["left"]
    await fetch(many, "/v1/completions", {"model": "left", "prompt": "Hello", "max_tokens": 1})
    (pid,) = left.engine_pids()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: left.status().engines[0].n_deaths == 1, "it has died")
    assert (await fetch(many, "/readyz"))[0] == 200


async def test_a_conversation_goes_on_after_a_swap(many: Many) -> None:
    text = "This is a conversation that is long enough to be remembered. " * 20

    async def cached(name: str, *messages: str) -> tuple[int, int, str]:
        turns = [{"role": "user" if i % 2 == 0 else "assistant", "content": said} for i, said in enumerate(messages)]
        answer = await many.sdk.chat.completions.create(model=name, messages=turns, max_tokens=16)
        usage = answer.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        known = usage.prompt_tokens_details.cached_tokens or 0
        return usage.prompt_tokens, known, answer.choices[0].message.content or ""

    n_first, _, said = await cached("left", text)
    await cached("right", text)
    n_second, n_known, _ = await cached("left", text, said, "And then?")
    assert n_known >= 0.95 * n_first
    assert n_known < n_second


async def test_the_memory_of_each_is_shown_and_none_is_taken_back_out_of_turn(many: Many) -> None:
    text = "This is a conversation that is long enough to be remembered. " * 20
    body = {"prompt": text, "max_tokens": 1}
    assert (await fetch(many, "/v1/completions", {"model": "right", **body}))[0] == 200

    async def texts(query: str) -> list[list[Any]]:
        return [engine["runs"] for engine in (await look(many, f"/memory.json{query}"))["engines"]]

    assert await texts("") == await texts("?model=gauche") == [[]], "it was not here yet"
    assert len((await texts("?model=right"))[0]) == 1
    assert (await fetch(many, "/v1/completions", {"model": "left", **body}))[0] == 200
    status, content = await fetch(many, "/memory/park?model=right", {"on": False})
    assert (status, b"models take turns" in content) == (400, True), content
    await asyncio.to_thread(choose_in_the_page, many.url)


def choose_in_the_page(url: str) -> None:
    with launched() as browser, opened(browser, f"{url}/#memory") as page:
        counts(page.locator(".text"), 1)
        page.locator("#state.good").get_by_text("ready", exact=True).wait_for()
        page.get_by_label("Model").select_option("right")
        page.get_by_text("Parked: the texts are in host memory").wait_for()
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Forget").click()
        counts(page.locator(".text"), 0)
        page.get_by_label("Model").select_option("left")
        counts(page.locator(".text"), 1)
        page.get_by_role("link", name="Chat").click()
        page.get_by_role("button", name="Settings").click()
        page.locator("dialog [name=model]").select_option("gauche")
        page.get_by_role("button", name="Keep").click()
        page.locator("#prompt").fill("Hello")
        with page.expect_request("**/v1/chat/completions") as asked:
            page.get_by_role("button", name="Send").click()
        sent = asked.value.post_data_json
        assert sent is not None
        assert sent["model"] == "gauche"
