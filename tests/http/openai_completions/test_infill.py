"""/infill and `suffix`: what stands between two texts, asked for as editors' plugins do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.infill_models import MID, PRE, SUF, write_infill_model
from tests.http.serving import Server

BEFORE, AFTER = "def add(a, b):\n    ", "\n\nprint(add(1, 2))\n"
ASKED = {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 6, "temperature": 0}


@pytest.fixture(scope="module")
def client(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    model = write_infill_model(tiny_model, tmp_path_factory.mktemp("fim") / "fim.gguf", with_files=False)
    running = Server(model, {"lanes": 2, "ctx": 1024}).start()
    try:
        with httpx.Client(base_url=running.url, timeout=120) as connected:
            yield connected
    finally:
        running.stop()


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


def tokens(client: httpx.Client, text: str) -> list[int]:
    return list(ask(client, "/tokenize", {"content": text, "parse_special": False})["tokens"])


def test_infill_goes_on_from_the_prompt_that_is_built(client: httpx.Client) -> None:
    ids = [PRE, *tokens(client, BEFORE), SUF, *tokens(client, AFTER), MID]
    expected = ask(client, "/completion", {"prompt": ids, "n_predict": 6, "temperature": 0, "return_tokens": True})
    said = ask(client, "/infill", {**ASKED, "return_tokens": True})
    assert (said["content"], said["tokens"]) == (expected["content"], expected["tokens"])
    assert said["tokens_evaluated"] == len(ids)
    assert said["stop"] is True
    assert set(said) == set(expected)


def test_infill_streams(client: httpx.Client) -> None:
    whole = ask(client, "/infill", ASKED)
    lines = client.post("/infill", json={**ASKED, "stream": True}).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert events[-1]["stop"] is True


def test_further_files_and_a_beginning_count(client: httpx.Client) -> None:
    n_plain = ask(client, "/infill", ASKED)["tokens_evaluated"]
    files = [{"filename": "a.py", "text": "x = 1\n" * 20, "time": 3}, {"text": "y = 2\n"}]
    n_more = ask(client, "/infill", {**ASKED, "input_extra": files})["tokens_evaluated"]
    assert n_more > n_plain + 20
    n_begun = ask(client, "/infill", {**ASKED, "prompt": "return "})["tokens_evaluated"]
    assert n_begun == n_plain + len(tokens(client, "return "))


def test_what_is_too_long_for_the_context_is_cut(client: httpx.Client) -> None:
    files = [{"filename": f"{n}.py", "text": f"x{n} = {n}\n" * 200} for n in range(8)]
    long = {**ASKED, "input_prefix": BEFORE * 500, "input_suffix": AFTER * 500, "input_extra": files}
    assert ask(client, "/infill", long)["tokens_evaluated"] == 1024 - 6
    assert ask(client, "/infill", {**long, "n_predict": -1})["tokens_evaluated"] == 1024 - 256
    assert ask(client, "/infill", {**long, "n_predict": 4000, "stop": ["\n"]})["tokens_evaluated"] == 512


def test_what_an_editors_plugin_sends_is_taken(client: httpx.Client) -> None:
    """llama.vim's request."""
    body = {
        "id_slot": 0, "input_prefix": BEFORE, "input_suffix": AFTER, "input_extra": [{"text": "x", "filename": "a.py"}],
        "prompt": "return ", "n_predict": 6, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.9, "stream": False,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 100_000,
        "response_fields": ["content", "timings/prompt_n", "timings/predicted_n", "truncated", "tokens_cached"],
    }  # fmt: skip
    said = ask(client, "/infill", body)
    assert set(said) == set(body["response_fields"])  # type: ignore[call-overload]
    assert isinstance(said["content"], str)


def test_suffix_is_the_same_without_files(client: httpx.Client) -> None:
    expected = ask(client, "/infill", ASKED)["content"]
    body = {"model": "any", "prompt": BEFORE, "suffix": AFTER, "max_tokens": 6, "temperature": 0}
    assert ask(client, "/v1/completions", body)["choices"][0]["text"] == expected
    by_ids = {**body, "prompt": tokens(client, BEFORE)}
    assert ask(client, "/v1/completions", by_ids)["choices"][0]["text"] == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"input_prefix": None}, {"input_suffix": None}, {"input_prefix": 5}, {"prompt": ["a"]}, {"prompt": [1]},
        {"input_extra": "a"}, {"input_extra": [{}]}, {"input_extra": [{"text": 5}]}, {"input_extra": ["a"]},
        {"input_extra": [{"text": "a", "filename": 5}]}, {"n_predict": "a"},
    ],
)  # fmt: skip
def test_what_is_no_infill_is_refused(client: httpx.Client, fields: dict[str, Any]) -> None:
    body = {name: value for name, value in {**ASKED, **fields}.items() if value is not None}
    answer = client.post("/infill", json=body)
    assert answer.status_code == 400, answer.text


def test_a_model_without_such_tokens_says_so(server: Server) -> None:
    answer = httpx.post(server.url + "/infill", json=ASKED)
    assert answer.status_code == 501
    assert "Infill is not supported by this model" in answer.json()["error"]["message"]
    answer = httpx.post(server.url + "/v1/completions", json={"prompt": "a", "suffix": "b", "max_tokens": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "suffix")
