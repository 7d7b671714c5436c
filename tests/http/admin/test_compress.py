"""POST /compress over a real engine: the shape, what is found, what is refused, and what becomes of it when the client
goes or the engine dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from luce.supervisor.text import TextModel
from tests.http.conftest import MakeServer
from tests.http.raw_client import RawAnswer, post, raw_client
from tests.http.serving import Server
from tests.needles import CODE, QUESTION, SCORER, text_with_fact

TEXT = text_with_fact()
ENDLESS = [3 + i * 11 % 8000 for i in range(400_000)]
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"prefill_scorer": SCORER, "prefill": "auto", "prefill_keep": 0.25})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def text(tiny_model: Path) -> TextModel:
    return TextModel(tiny_model)


async def ask(server: Server, body: Any, path: str = "/compress") -> RawAnswer:
    async with raw_client(server.url) as client:
        await client.send(post(path, body))
        return await client.read_answer()


async def done(server: Server, **body: Any) -> dict[str, Any]:
    answer = await ask(server, body)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json"
    said: dict[str, Any] = answer.json()
    assert said.keys() == {"content", "tokens", "parts", "input_tokens", "output_tokens"}
    assert len(said["tokens"]) == said["output_tokens"] == sum(end - begin for begin, end in said["parts"])
    return said


def n_scored(server: Server) -> int:
    (said,) = server.call(lambda: server.supervisor.engine_status(DEADLINE_S))
    return int(said["prefill_scored"])


async def test_what_matters_to_the_question_is_kept(server: Server, text: TextModel) -> None:
    said = await done(server, content=TEXT, share=0.2, question=QUESTION)
    ids = text.tokenize(TEXT)
    assert 1500 < said["input_tokens"] == len(ids) < 2100
    assert said["output_tokens"] <= round(0.2 * len(ids))
    assert said["tokens"] == [token for begin, end in said["parts"] for token in ids[begin:end]]
    assert CODE in said["content"]
    assert QUESTION not in said["content"]
    pieces = said["content"].split(" […] ")
    assert len(pieces) == len(said["parts"]) > 1
    assert all(piece in TEXT for piece in pieces)


async def test_ids_are_a_text_too_and_either_path_will_do(server: Server, text: TextModel) -> None:
    body = {"content": text.tokenize(TEXT), "share": 0.2, "question": QUESTION, "model": "any"}
    as_text = await ask(server, {**body, "content": TEXT})
    assert (await ask(server, body)).json() == as_text.json()
    assert (await ask(server, body, "/v1/compress")).json() == as_text.json()


async def test_a_number_of_tokens_holds(server: Server) -> None:
    said = await done(server, content=TEXT, max_tokens=500, question=QUESTION)
    assert said["output_tokens"] <= 500
    assert CODE in said["content"]
    short = await ask(server, {"content": TEXT, "max_tokens": 20})
    assert (short.status, short.json()["error"]["param"]) == (400, "max_tokens")
    assert "its end" in short.json()["error"]["message"]


async def test_a_share_of_one_is_the_text(server: Server) -> None:
    spelled = f"{TEXT} <|im_end|> naïve 🙂"
    said = await done(server, content=spelled, share=1, question=QUESTION)
    assert said["content"] == spelled
    assert said["parts"] == [[0, said["input_tokens"]]]
    tiny = await done(server, content="x", max_tokens=9, share=None, question="", keep=None, separator=None)
    assert (tiny["content"], tiny["parts"]) == ("x", [[0, 1]])


async def test_what_is_named_is_kept_and_the_separator_is_the_clients(server: Server) -> None:
    said = await done(server, content=TEXT, share=0.15, keep=[[640, 700], [1000, 1001]], separator="\n---\n")
    for begin, end in ((640, 700), (1000, 1001)):
        assert any(first <= begin and end <= last for first, last in said["parts"])
    assert said["content"].count("\n---\n") == len(said["parts"]) - 1


async def test_characters_stay_whole(server: Server) -> None:
    said = await done(server, content="東京は雨です。🙂👩‍🌾 é" * 60, share=0.2)
    assert len(said["parts"]) > 2
    assert "\ufffd" not in said["content"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"share": 0.2}, "content"),
        ({"content": "", "share": 0.2}, "content"),
        ({"content": [], "share": 0.2}, "content"),
        ({"content": {"a": 1}, "share": 0.2}, "content"),
        ({"content": [1, "a"], "share": 0.2}, "content"),
        ({"content": [1, True], "share": 0.2}, "content"),
        ({"content": [10**6], "share": 0.2}, "content"),
        ({"content": [-1], "share": 0.2}, "content"),
        ({"content": "x"}, "share"),
        ({"content": "x", "share": 0.2, "max_tokens": 5}, "max_tokens"),
        ({"content": "x", "share": 0}, "share"),
        ({"content": "x", "share": 1.01}, "share"),
        ({"content": "x", "share": "0.2"}, "share"),
        ({"content": "x", "share": True}, "share"),
        ({"content": "x", "max_tokens": 0}, "max_tokens"),
        ({"content": "x", "max_tokens": 2.5}, "max_tokens"),
        ({"content": "x", "max_tokens": 2**40}, "max_tokens"),
        ({"content": "x", "share": 1, "question": 5}, "question"),
        ({"content": "x", "share": 1, "separator": ["a"]}, "separator"),
        ({"content": "x", "share": 1, "separator": "a" * 2000}, "separator"),
        ({"content": "x", "share": 1, "keep": 5}, "keep"),
        ({"content": "x", "share": 1, "keep": [5]}, "keep"),
        ({"content": "x", "share": 1, "keep": [[0]]}, "keep"),
        ({"content": "x", "share": 1, "keep": [[0, 0]]}, "keep"),
        ({"content": "x", "share": 1, "keep": [[1, 0]]}, "keep"),
        ({"content": "x", "share": 1, "keep": [[0, 2]]}, "keep"),
        ({"content": "x", "share": 1, "keep": [[-1, 1]]}, "keep"),
        ({"content": "x", "share": 1, "keep": [[False, 1]]}, "keep"),
        ({"content": "x", "share": 1, "keep": [[0, 1]] * 5000}, "keep"),
    ],
)
async def test_what_is_wrong_is_named(server: Server, body: dict[str, Any], param: str) -> None:
    answer = await ask(server, body)
    assert answer.status == 400, answer.body
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param in error["message"]


async def test_a_text_that_no_engine_takes(server: Server) -> None:
    answer = await ask(server, {"content": "1 " * (9 << 18), "share": 0.1})
    assert answer.status == 400, answer.body
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("content", "context_length_exceeded")


async def test_without_a_scorer_the_option_is_named(make_server: MakeServer) -> None:
    async with make_server() as server:
        answer = await ask(server, {"content": TEXT, "share": 0.2})
        assert answer.status == 501
        assert answer.json()["error"]["code"] == "no_prefill_scorer"
        assert "--prefill-scorer" in answer.json()["error"]["message"]
        assert httpx.get(f"{server.url}/props", timeout=120).json()["prefill"] is None


async def test_a_client_that_goes_ends_it(server: Server) -> None:
    before = n_scored(server)
    async with raw_client(server.url) as client:
        await client.send(post("/compress", {"content": ENDLESS, "share": 0.1}))
        await asyncio.sleep(1)
        client.vanish()
    assert (await done(server, content=TEXT, share=0.2))["output_tokens"] > 0
    assert n_scored(server) - before < len(ENDLESS) / 2
    counted = httpx.get(f"{server.url}/metrics", timeout=120).text
    assert 'luce_http_requests_total{api="compress",outcome="gone"} 1.0' in counted


async def test_an_engine_that_dies_meanwhile_is_not_seen(make_server: MakeServer) -> None:
    async with make_server(prefill_scorer=SCORER) as server:
        asking = asyncio.create_task(done(server, content=ENDLESS[:1500], share=0.2))
        handle = server.supervisor._multiplexer.handles[0]
        async with asyncio.timeout(DEADLINE_S):
            while not handle.compressing.locked():  # noqa: ASYNC110  the state is the server's
                await asyncio.sleep(0.001)
        (pid,) = server.supervisor.engine_pids()
        os.kill(pid, signal.SIGKILL)
        assert (await asking)["input_tokens"] == 1500
        assert server.supervisor.status().engines[0].n_deaths == 1


async def test_a_request_takes_so_long_and_no_longer(make_server: MakeServer) -> None:
    async with make_server(prefill_scorer=SCORER, request_timeout_s=0.5) as server:
        answer = await ask(server, {"content": ENDLESS, "share": 0.2})
        assert (answer.status, answer.json()["error"]["code"]) == (408, "deadline")


async def test_too_many_are_told_to_come_back(make_server: MakeServer) -> None:
    async with make_server(prefill_scorer=SCORER, max_queue=0) as server, raw_client(server.url) as first:
        await first.send(post("/compress", {"content": ENDLESS, "share": 0.1}))
        async with asyncio.timeout(DEADLINE_S):
            while not server.supervisor._multiplexer.handles[0].compressing.locked():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        answer = await ask(server, {"content": TEXT, "share": 0.2})
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) > 0
        first.vanish()


async def test_props_and_metrics_tell_of_the_scorer(server: Server) -> None:
    await done(server, content=TEXT, share=0.2)
    props = httpx.get(f"{server.url}/props", timeout=120)
    assert props.json()["prefill"] == {
        "scorer": SCORER.name, "reading": "auto", "keep": 0.25, "from": None, "repair": None,
    }  # fmt: skip
    assert str(SCORER.parent) not in props.text
    figures = dict(
        line.rsplit(" ", 1)
        for line in httpx.get(f"{server.url}/metrics", timeout=120).text.splitlines()
        if line.startswith("luce_engine_prefill_")
    )
    of_engine = '{engine="engine 0"}'
    assert float(figures[f"luce_engine_prefill_scored_tokens_total{of_engine}"]) > 1700
    assert float(figures[f"luce_engine_prefill_scorer_bytes{of_engine}"]) > SCORER.stat().st_size / 2
    assert float(figures[f"luce_engine_prefill_keys_bytes{of_engine}"]) > 0
    for name in ("sparse_total", "sparse_tokens_total", "left_out_tokens_total", "repaired_tokens_total", "repairs"):
        assert float(figures[f"luce_engine_prefill_{name}{of_engine}"]) == 0, "a compress is no prompt"
