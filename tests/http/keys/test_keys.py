"""Keys with names, scopes and limits, through the server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from luce.supervisor.http.keys.key_file import table_of
from tests.http.serving import Server

CHAT = "/v1/chat/completions"
WINDOW_FIELDS = ("max_input_tokens", "max_tokens", "max_model_len", "context_length", "context_window")
HELLO = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
START_S = 120.0


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(
        table_of("root", "root-key", scope="admin")
        + table_of("alice", "alice-key", scope="infer")
        + table_of("few", "few-key", scope="infer", requests_per_minute=2)
        + table_of("cutter", "cutter-key", scope="infer", requests_per_minute=2)
        + table_of("short", "short-key", scope="infer", max_context=100)
        + table_of("roomy", "roomy-key", scope="infer", max_context=1_000_000)
        + table_of("narrow", "narrow-key", scope="infer", max_lanes=1)
        + table_of("spent", "spent-key", scope="infer", tokens_per_minute=1)
    )
    running = Server(tiny_model, {"key_file": file, "api_keys": ("plain",)})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        yield client


def by(name: str) -> dict[str, str]:
    return {"x-api-key": f"{name}-key"}


async def test_scopes(client: httpx.AsyncClient) -> None:
    for method, path in (
        ("GET", "/metrics"),
        ("GET", "/status.json"),
        ("GET", "/slots"),
        ("POST", "/slots/0?action=erase"),
    ):
        answer = await client.request(method, path, headers=by("alice"))
        assert answer.status_code == 403, path
        assert answer.json()["error"]["code"] == "scope"
        assert (await client.request(method, path, headers=by("root"))).status_code != 403, path
        assert (await client.request(method, path, headers={"x-api-key": "plain"})).status_code != 403, path
    for path in ("//metrics", "/%6detrics", "/./metrics", "/v1/../metrics", "/metrics/", "/metrics%2f", "/METRICS"):
        answer = await client.get(str(client.base_url).rstrip("/") + path, headers=by("alice"))
        assert answer.status_code in {403, 404}, path
    for path in ("/", "/v1/models", "/props", "/openapi.json", "/nowhere", "/v1/responses/none"):
        assert (await client.get(path, headers=by("alice"))).status_code in {200, 404}, path
    assert (await client.post("/tokenize", json={"content": "Hi"}, headers=by("alice"))).status_code == 200
    assert (await client.post(CHAT, json=HELLO, headers=by("alice"))).status_code == 200


async def test_making_tokens_counts_among_a_keys_requests(client: httpx.AsyncClient) -> None:
    paths = ("/tokenize", "/apply-template", "/detokenize")
    answers = [await client.post(path, json={**HELLO, "tokens": [1]}, headers=by("cutter")) for path in paths]
    assert [answer.status_code for answer in answers] == [200, 200, 429]


async def test_names_in_usage_metrics_and_log(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "luce.http")
    answer = (await client.post(CHAT, json=HELLO, headers=by("alice"))).json()
    assert answer["usage"]["luce"]["key"] == "alice"
    answer = (await client.post("/v1/messages", json=HELLO, headers={"x-api-key": "plain"})).json()
    assert answer["usage"]["luce"]["key"] == "key-1"
    metrics = (await client.get("/metrics", headers=by("root"))).text
    assert 'luce_http_key_requests_total{key="alice",outcome="ok"}' in metrics
    assert 'luce_http_key_tokens_total{key="alice",kind="generated"}' in metrics
    lines = [record.getMessage() for record in caplog.records if record.name == "luce.http.access"]
    assert any(" alice POST /v1/chat/completions 200 ok " in line for line in lines)
    assert "alice-key" not in caplog.text
    assert "alice-key" not in metrics


async def test_too_many_requests(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        assert (await client.post(CHAT, json=HELLO, headers=by("few"))).status_code == 200
    refused = await client.post(CHAT, json=HELLO, headers=by("few"))
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "key_requests"
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert (await client.get("/v1/models", headers=by("few"))).status_code == 200, "what is no answer costs nothing"
    assert (await client.post(CHAT, json=HELLO, headers=by("alice"))).status_code == 200, "another key's are its own"


async def test_too_many_tokens(client: httpx.AsyncClient) -> None:
    assert (await client.post(CHAT, json=HELLO, headers=by("spent"))).status_code == 200, "known only afterwards"
    refused = await client.post("/v1/messages", json=HELLO, headers=by("spent"))
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert int(refused.headers["Retry-After"]) > 60


async def test_the_context_of_a_key(client: httpx.AsyncClient) -> None:
    asked: dict[str, Any] = {**HELLO, "max_tokens": 1000, "ignore_eos": True}
    usage = (await client.post(CHAT, json=asked, headers=by("short"))).json()["usage"]
    assert usage["total_tokens"] == 100
    long = {**HELLO, "messages": [{"role": "user", "content": "word " * 200}]}
    refused = await client.post(CHAT, json=long, headers=by("short"))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert refused.json()["error"]["n_ctx"] == 100, "agents compact by it"
    assert (await client.post(CHAT, json=long, headers=by("alice"))).status_code == 200


@pytest.mark.parametrize(("name", "window"), [("short", 100), ("alice", 4096), ("roomy", 4096)])
async def test_a_client_learns_the_window_of_its_key(client: httpx.AsyncClient, name: str, window: int) -> None:
    """Wherever it looks, and whatever the model's own is."""
    headers = by(name)
    listed = (await client.get("/v1/models", headers=headers)).json()["data"][0]
    asked = await client.get(f"/v1/models/{listed['id']}", headers=headers | {"anthropic-version": "2023-06-01"})
    for model in (listed, asked.json()):
        assert {model[field] for field in WINDOW_FIELDS} == {window}
        assert model["meta"]["n_ctx"] == window
    props = (await client.get("/props", headers=headers)).json()
    assert props["n_ctx"] == props["default_generation_settings"]["n_ctx"] == window
    answer = await client.post("/v1/messages", json=HELLO, headers=headers)
    assert answer.headers["luce-context-window"] == str(window)
    turns = [{"role": role, "content": "word"} for role in ("user", "assistant")]
    long = {"max_tokens": 4, "messages": [*turns * 2500, turns[0]]}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        refused = await client.post(path, json=long, headers=headers)
        assert f"tokens > {window} maximum" in refused.json()["error"]["message"], path
    assert refused.status_code == 400


async def test_what_a_client_may_have_cut_is_cut_to_the_window_of_its_key(client: httpx.AsyncClient) -> None:
    turns = [{"role": role, "content": "word " * 20} for role in ("user", "assistant")] * 8
    asked = {"input": [*turns, {"role": "user", "content": "And?"}], "max_output_tokens": 4}
    refused = await client.post("/v1/responses", json=asked, headers=by("short"))
    assert refused.json()["error"]["n_ctx"] == 100
    cut = await client.post("/v1/responses", json={**asked, "truncation": "auto"}, headers=by("short"))
    assert cut.json()["usage"]["total_tokens"] <= 100


@pytest.mark.parametrize("betas", ["", "model-context-window-exceeded-2025-08-26"])
async def test_an_answer_that_fills_the_window_of_its_key(client: httpx.AsyncClient, betas: str) -> None:
    endless = {**HELLO, "max_tokens": 1000, "grammar": "root ::= [a-z ] root"}
    answer = await client.post("/v1/messages", json=endless, headers=by("short") | {"anthropic-beta": betas})
    assert answer.json()["stop_reason"] == ("model_context_window_exceeded" if betas else "max_tokens")
    truncated = await client.post("/completion", json={"prompt": "a", "ignore_eos": True}, headers=by("short"))
    assert truncated.json()["truncated"]


async def test_the_lanes_of_a_key(client: httpx.AsyncClient) -> None:
    asked = {**HELLO, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    async with client.stream("POST", CHAT, json=asked, headers=by("narrow")) as first:
        assert first.status_code == 200
        lines = first.aiter_lines()  # held: when it goes, the stream is closed
        await anext(lines)
        refused = await client.post(CHAT, json=HELLO, headers=by("narrow"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "key_lanes")
        assert "Retry-After" in refused.headers
        assert (await client.post(CHAT, json=HELLO, headers=by("alice"))).status_code == 200
    async with asyncio.timeout(120):
        while (await client.post(CHAT, json=HELLO, headers=by("narrow"))).status_code == 429:
            pass
    assert (await client.post(CHAT, json={**HELLO, "n": 2}, headers=by("narrow"))).status_code == 400


def test_hangup_reads_the_file_anew_and_a_slip_changes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    file, log = tmp_path / "keys.toml", tmp_path / "log"
    file.write_text(table_of("alice", "first", scope="infer"))
    code = "from luce.supervisor.cli.app import main; main()"
    command = [sys.executable, "-c", code, "serve", "--model", str(tiny_model), "--ctx", "512"]
    command += ["--threads", "1", "--no-warmup"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LUCE_API")}
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [*command, "--port", "0", "--api-keys", str(file)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
    try:
        assert child.stdout is not None
        url = next(word for line in child.stdout for word in line.split() if word.startswith("http://"))

        def status(key: str) -> int:
            return httpx.get(f"{url}/v1/models", headers={"x-api-key": key}, timeout=120).status_code

        def hang_up(told: str) -> None:
            n_told = log.read_text().count(told)
            child.send_signal(signal.SIGHUP)
            end_s = time.monotonic() + START_S
            while log.read_text().count(told) == n_told:
                assert time.monotonic() < end_s, log.read_text()
                status("nobody")

        assert (status("first"), status("second")) == (200, 401)
        file.write_text("[alice")
        hang_up("the keys are unchanged")
        assert (status("first"), status("second")) == (200, 401)
        file.write_text(table_of("alice", "second", scope="infer"))
        hang_up("SIGHUP: 1 API keys")
        assert (status("first"), status("second")) == (401, 200)
    finally:
        child.terminate()
        if child.stdout is not None:
            child.stdout.close()
        assert child.wait(START_S) == 0
