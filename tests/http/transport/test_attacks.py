"""None of the attacks gets through, and the stream of another client is the same beside them."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2 as httpx
import pytest

from luce.supervisor.http.keys.key_file import table_of
from tests.http.raw_client import raw_client
from tests.http.serving import Server
from tests.http.transport.attacks import ATTACKS, CHAT, KEY, MAX_BODY, Attack

_STREAM = {"max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
_ANSWER = re.compile(rb"^HTTP/1\.[01] (\d{3}) ", re.MULTILINE)
_TEXT = re.compile(r'"content":("(?:[^"\\]|\\.)*")')
_STREAM_S = 120.0


class OtherClient:
    """Streams one answer again and again, beside what the tests do."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ends = threading.Event()
        self._has_more = threading.Condition()
        self.texts: list[str] = []
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._stream, daemon=True)
        self._thread.start()

    def wait_for_another(self) -> None:
        """Of which the tests so far have seen all or a part, and one that begins after them."""
        with self._has_more:
            n_wanted = len(self.texts) + 2
            self._has_more.wait_for(lambda: len(self.texts) >= n_wanted or self.failure is not None, _STREAM_S)

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(_STREAM_S)

    def _stream(self) -> None:
        body = {**_STREAM, "messages": [{"role": "user", "content": "Tell me a long story."}]}
        with httpx.Client(base_url=self._url, headers={"x-api-key": "other"}, timeout=_STREAM_S) as client:
            while not self._ends.is_set() and self.failure is None:
                try:
                    answer = client.post(CHAT, json=body)
                    assert answer.status_code == 200, answer.text
                    assert answer.text.endswith("data: [DONE]\n\n")
                    text = "".join(map(json.loads, _TEXT.findall(answer.text)))
                except Exception as error:  # noqa: BLE001  told where it is looked at
                    self.failure = error
                    text = ""
                with self._has_more:
                    self.texts.append(text)
                    self._has_more.notify_all()


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "keys.toml").write_text(table_of("owner", KEY, scope="admin") + table_of("other", "other"))
    options = {"key_file": folder / "keys.toml", "max_body_bytes": MAX_BODY, "slot_save_path": folder}
    running = Server(tiny_model, options)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def other(server: Server) -> Iterator[OtherClient]:
    client = OtherClient(server.url)
    yield client
    client.stop()


def test_there_are_enough() -> None:
    assert len(ATTACKS) >= 40
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_it_does_not_get_through(server: Server, other: OtherClient, attack: Attack) -> None:
    answer = await said_to(server.url, attack.request)
    statuses = [int(status) for status in _ANSWER.findall(answer)]
    assert len(statuses) <= attack.n_answers, answer[:2000]
    assert (statuses or [0])[0] in attack.statuses, answer[:2000]
    assert b"evil" not in answer.partition(b"\r\n\r\n")[0].lower(), "nothing of it comes back in a header"
    assert b"SECRET" not in answer, "nor what could not be read"
    assert KEY.encode() not in answer
    assert other.failure is None


async def said_to(url: str, request: bytes) -> bytes:
    """All that comes back. A server that has heard enough closes, also before it has read all."""
    async with raw_client(url) as client:
        with suppress(ConnectionError):
            await client.send(request)
        received = b""
        with suppress(ConnectionError):
            async with asyncio.timeout(_STREAM_S):
                while piece := await client.reader.read(1 << 16):
                    received += piece
        return received


def test_the_other_client_has_noticed_nothing(server: Server, other: OtherClient) -> None:
    other.wait_for_another()
    assert other.failure is None
    assert len(other.texts[0]) > 400
    assert set(other.texts) == {other.texts[0]}
    status = server.supervisor.status()
    assert status.engines[0].n_deaths == 0
    assert httpx.get(f"{server.url}/health", timeout=_STREAM_S).json()["status"] == "ok"
