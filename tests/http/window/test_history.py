"""What is remembered of the last hour and of the last requests: in tables of fixed size, by a real server."""

from __future__ import annotations

import aiohttp
import pytest

from luce.supervisor import SupervisorStatus
from luce.supervisor.http.request_records import (
    N_RECORDS,
    RequestRecord,
    RequestRecords,
    agent_of,
    current_record,
)
from luce.supervisor.http.window.history import COLUMNS, History
from tests.http.conftest import MakeServer
from tests.http.serving import Server
from tests.http.statuses import engine_status

CHAT = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 8}


def status(n_tokens: int, n_deaths: int = 0) -> SupervisorStatus:
    return SupervisorStatus(
        engines=(engine_status(n_deaths=n_deaths),), n_waiting=3, n_requests=0, n_finished=0, n_failed=0,
        n_cancelled=0, n_resumes=0, n_tokens=n_tokens,
    )  # fmt: skip


def test_the_oldest_samples_make_room() -> None:
    history, records = History(n_samples=4), RequestRecords()
    assert history.after(0)["time"] == []
    for number in range(6):
        history.take(status(100 * number), [], records, time_s=1000.0 + number, now_s=2.0 * number)
        assert len(history.after(0)["time"]) == min(number + 1, 4)
    kept = history.after(0)
    assert set(kept) == set(COLUMNS)
    assert kept["time"] == [1002.0, 1003.0, 1004.0, 1005.0]
    assert kept["tokens_per_s"] == [50.0] * 4
    assert history.after(1003.0)["time"] == [1004.0, 1005.0]


def test_what_was_not_measured_is_nothing_and_zero_is_a_value() -> None:
    history, records = History(), RequestRecords()
    history.take(status(7), [{}], records, time_s=1.0, now_s=0.0)
    history.take(status(7), [{"pages_resident": 0}, {"pages_resident": 4}], records, time_s=2.0, now_s=5.0)
    kept = history.after(0)
    assert kept["tokens_per_s"] == [None, 0.0]
    assert kept["device_pages"] == [None, 4.0]
    assert kept["first_token_s"] == [None, None]
    assert kept["waiting"] == [3.0, 3.0]


def test_records_are_bounded_and_the_newest_first() -> None:
    records = RequestRecords()
    for number in range(N_RECORDS + 5):
        with records.noted(RequestRecord(api="completions", id=str(number))):
            record = current_record()
            assert record is not None
            assert record.seconds is None
    shown = list(records.newest_first())
    assert len(shown) == N_RECORDS
    assert [record.id for record in shown[:2]] == [str(N_RECORDS + 4), str(N_RECORDS + 3)]
    assert current_record() is None


@pytest.mark.parametrize(
    ("said", "agent"),
    [("claude-cli/2.1 (external, cli)", "claude-cli/2.1"), ("Mozilla/5.0 (X11)", "browser"), ("", ""), ("\x7f", "")],
)
def test_a_client_is_known_by_its_first_word(said: str, agent: str) -> None:
    assert agent_of(said) == agent


async def test_requests_are_remembered_with_the_source_of_their_prefix(server: Server) -> None:
    async with aiohttp.ClientSession(headers={"User-Agent": "my-agent/1.0 (x)"}) as session:
        url = f"{server.url}/v1/chat/completions"
        told = await (await session.post(url, json=CHAT)).json()
        await (await session.post(url, json=CHAT | {"stream": True}, headers={"x-request-id": "mine"})).read()
        assert (await session.post(url, json={"messages": "no"})).status == 400
        assert (await session.post(f"{url}/input_tokens", json=CHAT)).status == 200
        seen = (await (await session.get(f"{server.url}/requests.json")).json())["requests"]
    refused, second, first = seen[:3]
    assert (refused["status"], refused["prompt_tokens"]) == (400, None)
    assert (second["id"], second["api"], second["agent"]) == ("mine", "chat_completions", "my-agent/1.0")
    assert second["cached_tokens"] == second["prompt_tokens"] == first["prompt_tokens"]
    assert (first["status"], first["prompt_tokens"]) == (200, told["usage"]["prompt_tokens"])
    assert first["generated_tokens"] == told["usage"]["completion_tokens"]
    assert 0 < first["first_token_s"] <= first["seconds"]
    assert "Who are you" not in str(seen), "nothing of what was said is kept"


async def test_the_history_begins_with_the_server(make_server: MakeServer) -> None:
    async with make_server(ctx=512, pool=1024) as server, aiohttp.ClientSession() as session:
        told = await (await session.get(f"{server.url}/history.json")).json()
        while not told["time"]:
            told = await (await session.get(f"{server.url}/history.json")).json()
        assert told["deaths"] == [0.0]
        later = await (await session.get(f"{server.url}/history.json?after={told['time'][-1] + 3600}")).json()
        assert later["time"] == []
        for wrong in ("soon", "nan", "inf"):
            assert (await session.get(f"{server.url}/history.json?after={wrong}")).status == 400
