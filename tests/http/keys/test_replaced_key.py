"""A key made anew under an old name: whoever has it finds nothing that the old one has left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from luce.supervisor.http.keys.key_file import table_of
from luce.supervisor.http.keys.key_ring import KEY_RING, keys_of
from tests.http.serving import Server

SAID = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 8, "stream": True}
ANSWERED = {"input": "Tell a story.", "max_output_tokens": 8}


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(table_of("alice", "old", scope="infer"))
    running = Server(tiny_model, {"key_file": file})
    try:
        yield running.start()
    finally:
        running.stop()


def use_key(server: Server, name: str, key: str) -> None:
    """As SIGHUP has it."""
    assert server.settings.key_file is not None
    server.settings.key_file.write_text(table_of(name, key, scope="infer"))

    async def read() -> None:
        server.app[KEY_RING].replace(keys_of(server.settings))

    server.call(read)


def test_a_new_key_under_an_old_name_finds_nothing_of_the_old_one(server: Server) -> None:
    stream, named = {"conv_id": "mine"}, {"conversation_ids": ["mine"]}
    with httpx.Client(base_url=server.url, timeout=120, headers={"x-api-key": "old"}) as old:
        old.post("/v1/chat/completions", json=SAID, headers={"X-Conversation-Id": "mine"}).raise_for_status()
        kept: dict[str, Any] = old.post("/v1/responses", json=ANSWERED).raise_for_status().json()
        running = old.post("/v1/responses", json={**ANSWERED, "background": True}).raise_for_status().json()["id"]
        assert old.get("/v1/stream", params=stream).status_code == 200
    use_key(server, "alice", "new")
    with httpx.Client(base_url=server.url, timeout=120, headers={"x-api-key": "new"}) as new:
        assert new.get("/v1/stream", params=stream).status_code == 404
        assert new.post("/v1/streams/lookup", json=named).json() == []
        new.delete("/v1/stream", params=stream)
        for name in (kept["id"], running):
            assert new.get(f"/v1/responses/{name}").status_code == 404
            assert new.post(f"/v1/responses/{name}/cancel").status_code == 404
            follow_up = new.post("/v1/responses", json={**ANSWERED, "previous_response_id": name})
            assert follow_up.status_code in {400, 404}
        answer = new.post("/v1/chat/completions", json=SAID | {"stream": False}).raise_for_status().json()
        assert answer["usage"]["luce"]["key"] == "alice", "the name is what people read"
    use_key(server, "carol", "old")
    with httpx.Client(base_url=server.url, timeout=120, headers={"x-api-key": "old"}) as renamed:
        assert renamed.get("/v1/stream", params=stream).status_code == 200, "it is the same key"
        assert renamed.get(f"/v1/responses/{kept['id']}").status_code == 200
