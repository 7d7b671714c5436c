"""POST /slots/{id}: what a lane computed goes to a file and comes back, and names lead nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.conftest import MakeServer
from tests.http.serving import Server

PROMPT = [2 + i * 7 % 8000 for i in range(700)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("above") / "slots"


@pytest.fixture(scope="module")
def saving(tiny_model: Path, folder: Path) -> Iterator[httpx.Client]:
    folder.mkdir()
    running = Server(tiny_model, {"lanes": 2, "slot_save_path": folder}).start()
    try:
        with httpx.Client(base_url=running.url, timeout=120) as connected:
            yield connected
    finally:
        running.stop()


def complete(client: httpx.Client, prompt: list[int], **more: Any) -> dict[str, Any]:
    body = {"model": "any", "prompt": prompt, "max_tokens": 5, "temperature": 0, **more}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


def act(client: httpx.Client, action: str, name: str | None = "a.bin", lane: object = 0) -> httpx.Response:
    body = None if name is None else {"filename": name}
    return client.post(f"/slots/{lane}", params={"action": action}, json=body)


async def test_a_text_comes_back_in_another_server(make_server: MakeServer, tmp_path: Path) -> None:
    async with make_server(slot_save_path=tmp_path) as server, httpx.AsyncClient(base_url=server.url) as client:
        with httpx.Client(base_url=server.url, timeout=120) as connected:
            first = complete(connected, PROMPT)
            saved = act(connected, "save").json()
        n_bytes = (tmp_path / "a.bin").stat().st_size
        assert set(saved) == {"id_slot", "filename", "n_saved", "n_written", "timings"}
        assert (saved["id_slot"], saved["filename"], saved["n_written"]) == (0, "a.bin", n_bytes)
        assert saved["n_saved"] == first["usage"]["total_tokens"] - 1
        assert saved["timings"]["save_ms"] > 0
        assert (await client.get("/slots")).status_code == 200
    async with make_server(slot_save_path=tmp_path) as server:
        with httpx.Client(base_url=server.url, timeout=120) as connected:
            restored = act(connected, "restore", lane=1).json()
            assert {**restored, "timings": None} == {
                "id_slot": 1, "filename": "a.bin", "n_restored": saved["n_saved"], "n_read": n_bytes, "timings": None,
            }  # fmt: skip
            assert restored["timings"]["restore_ms"] > 0
            answer = connected.post("/completion", json={"prompt": PROMPT, "n_predict": 5, "temperature": 0})
            assert answer.json()["content"] == first["choices"][0]["text"]


@pytest.mark.parametrize("model", ["qwen35", "gemma4"], ids=["hybrid", "sliding window"])
def test_the_prompt_of_a_saved_text_is_known_too(test_models: Path, tmp_path: Path, model: str) -> None:
    """A model whose state goes on from checkpoints alone: the file has one at the prompt's end."""
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "ignore_eos": True}

    @contextmanager
    def connected() -> Iterator[httpx.Client]:
        running = Server(test_models / f"{model}.gguf", {"lanes": 1, "slot_save_path": tmp_path}).start()
        try:
            with httpx.Client(base_url=running.url, timeout=120) as client:
                yield client
        finally:
            running.stop()

    with connected() as client:
        first = client.post("/completion", json=body).raise_for_status().json()
        assert act(client, "save").json()["n_saved"] == len(PROMPT) + 7
    with connected() as client:
        assert act(client, "restore").json()["n_restored"] == len(PROMPT) + 7
        again = client.post("/completion", json=body).raise_for_status().json()
        assert again["timings"]["cache_n"] == len(PROMPT)
        assert again["content"] == first["content"]


def test_a_conversation_goes_on_from_its_file(saving: httpx.Client) -> None:
    said = complete(saving, PROMPT, logprobs=0)
    # The ids of the answer, as the engine gave them.
    body = {"prompt": PROMPT, "n_predict": 5, "temperature": 0, "return_tokens": True}
    tokens = saving.post("/completion", json=body).json()["tokens"]
    assert len(tokens) == said["usage"]["completion_tokens"]
    n_saved = act(saving, "save", "on.bin").json()["n_saved"]
    assert act(saving, "restore", "on.bin").json()["n_restored"] == n_saved == len(PROMPT) + len(tokens) - 1
    again = complete(saving, [*PROMPT, *tokens, 5, 6, 7])
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= n_saved


def test_erase_forgets_what_could_be_saved(saving: httpx.Client) -> None:
    n_text = complete(saving, PROMPT)["usage"]["total_tokens"] - 1
    assert act(saving, "erase", None).json() == {"id_slot": 0, "n_erased": n_text}
    assert act(saving, "erase", None).json() == {"id_slot": 0, "n_erased": 0}
    answer = act(saving, "save")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "id")


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../a.bin", "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "..\\a", "C:a", ".hidden", " a",
        "a ", "a\n", "a\0", "a\u202eb", "x" * 201, "\u20ac" * 100,
    ],
)  # fmt: skip
@pytest.mark.parametrize("action", ["save", "restore"])
def test_names_lead_nowhere_else(saving: httpx.Client, folder: Path, action: str, name: str) -> None:
    complete(saving, PROMPT)
    before = sorted(folder.parent.rglob("*"))
    escaped = "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\u{ord(c):04x}" for c in name)
    answer = saving.post(f"/slots/0?action={action}", content=f'{{"filename": "{escaped}"}}'.encode())
    assert answer.status_code == 400, answer.text
    assert sorted(folder.parent.rglob("*")) == before


def test_links_are_not_followed_out_of_the_folder(saving: httpx.Client, folder: Path) -> None:
    complete(saving, PROMPT)
    assert act(saving, "save", "there.bin").status_code == 200
    outside = folder.parent / "outside.bin"
    (folder / "there.bin").rename(outside)
    (folder / "link.bin").symlink_to(outside)
    before = outside.read_bytes()
    assert act(saving, "restore", "link.bin").status_code == 400
    assert act(saving, "save", "link.bin").status_code == 400
    assert outside.read_bytes() == before


def test_what_is_no_file_of_a_text_is_refused(saving: httpx.Client, folder: Path) -> None:
    (folder / "damaged.bin").write_bytes(b"LUCE" * 100)
    (folder / "folder.bin").mkdir()
    for name in ("missing.bin", "damaged.bin", "folder.bin"):
        answer = act(saving, "restore", name)
        assert answer.status_code == 400, (name, answer.text)
    assert complete(saving, PROMPT)["choices"][0]["finish_reason"] in {"stop", "length"}


def test_what_is_no_slot_or_action_is_refused(saving: httpx.Client) -> None:
    for lane in ("2", "-1", "a", "\u0663", "9" * 30):
        answer = act(saving, "save", lane=lane)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "id")
    for action in ("", "drop", "SAVE"):
        answer = act(saving, action)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "action")
    assert saving.post("/slots/0?action=save", json={}).status_code == 400
    assert saving.post("/slots/0?action=save", json={"filename": 5}).status_code == 400


async def test_without_a_folder_there_are_no_files(make_server: MakeServer, tmp_path: Path) -> None:
    for options in ({}, {"slot_save_path": tmp_path, "cache_isolation": "key"}):
        async with make_server(**options) as server:
            with httpx.Client(base_url=server.url, timeout=120) as client:
                for action in ("save", "restore", "erase"):
                    answer = act(client, action)
                    assert answer.status_code == 501, answer.text
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240


async def test_a_server_that_sleeps_says_so_and_wakes(make_server: MakeServer) -> None:
    async with make_server(sleep_idle_s=0.2) as server, httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        while not (await client.get("/props")).json()["is_sleeping"]:
            pass
        assert (await client.get("/health")).json()["status"] == "ok"
        assert "luce_supervisor_parked_engines 1.0" in (await client.get("/metrics")).text
        body = {"model": "any", "prompt": PROMPT, "max_tokens": 5}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
