"""A prompt's own log-probabilities over HTTP: `echo` with `logprobs`, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from tests.http.serving import BOUNDED, Server

TEXT = "The sea is büg \U0001f642 wide"
NEAR = 1e-3


@pytest.fixture
def client(server: Server) -> Any:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


def complete(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def tokens_of(client: httpx.Client, text: str) -> list[int]:
    ids: list[int] = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return ids


def check_shape(choice: dict[str, Any]) -> None:
    told = choice["logprobs"]
    lengths = {len(told[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    assert len(lengths) == 1
    assert "".join(told["tokens"]) == choice["text"]
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        assert choice["text"][offset : offset + len(token)] == token
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    for token, logprob, top in zip(*(told[n][1:] for n in ("tokens", "token_logprobs", "top_logprobs")), strict=True):
        assert top[token] == logprob <= 0


@pytest.mark.parametrize("n_tokens", [0, 1, 4])
@pytest.mark.parametrize("n_likeliest", [0, 1, 5])
def test_echo(client: httpx.Client, n_tokens: int, n_likeliest: int) -> None:
    answer = complete(client, prompt=TEXT, max_tokens=n_tokens, echo=True, logprobs=n_likeliest)
    [choice] = answer["choices"]
    check_shape(choice)
    assert choice["text"].startswith(TEXT)
    ids = tokens_of(client, TEXT)
    assert len(choice["logprobs"]["tokens"]) == len(ids) + answer["usage"]["completion_tokens"]
    assert answer["usage"]["prompt_tokens"] == len(ids)
    for top in choice["logprobs"]["top_logprobs"][1:]:
        assert 1 <= len(top) <= n_likeliest + 1
    by_ids = complete(client, prompt=ids, max_tokens=n_tokens, echo=True, logprobs=n_likeliest)["choices"][0]
    assert by_ids["text"] == choice["text"]
    assert by_ids["logprobs"]["tokens"] == choice["logprobs"]["tokens"]
    assert by_ids["logprobs"]["token_logprobs"][1:] == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=NEAR)


def test_they_are_those_of_an_answer_of_the_same_tokens(client: httpx.Client) -> None:
    """What the model has written is read again: its tokens are as likely as when they were chosen."""
    written = complete(client, prompt=TEXT, max_tokens=12, echo=True, logprobs=1, ignore_eos=True)["choices"][0]
    ids = [*tokens_of(client, TEXT)]
    chosen = [
        token["id"]
        for token in client.post(
            "/completion", json={"prompt": TEXT, "n_predict": 12, "temperature": 0, "n_probs": 1, "ignore_eos": True}
        ).json()["completion_probabilities"]
    ]
    read = complete(client, prompt=[*ids, *chosen], max_tokens=0, echo=True, logprobs=1)["choices"][0]
    assert read["text"] == written["text"]
    assert read["logprobs"]["token_logprobs"][1:] == pytest.approx(written["logprobs"]["token_logprobs"][1:], abs=NEAR)


def test_an_answer_that_ends_at_once_has_its_end_token(client: httpx.Client) -> None:
    """Harnesses drop the last entry, which is the answer's one token."""
    end = tokens_of(client, "<|im_end|>")
    answer = complete(client, prompt=TEXT, max_tokens=1, echo=True, logprobs=1, logit_bias={str(end[0]): 100})
    [choice] = answer["choices"]
    assert (choice["text"], answer["usage"]["completion_tokens"]) == (TEXT, 1)
    check_shape(choice)
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"] + 1


@pytest.mark.parametrize("fields", [{}, {"n": 2, "temperature": 1.0, "seed": 3}])
def test_streams_say_the_same(client: httpx.Client, fields: dict[str, Any]) -> None:
    asked = {"prompt": [TEXT, "A", "Another one"], "max_tokens": 3, "echo": True, "logprobs": 2, **fields}
    whole = complete(client, **asked)["choices"]
    n_each = fields.get("n", 1)
    told: list[dict[str, Any]] = [
        {"text": "", "logprobs": {name: [] for name in whole[0]["logprobs"]}} for _ in range(3 * n_each)
    ]
    with client.stream("POST", "/v1/completions", json={"temperature": 0, **asked, "stream": True}) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in httpx.Response(200, content=line.removeprefix("data: ")).json()["choices"]:
                mine = told[choice["index"]]
                mine["text"] += choice["text"]
                for name, values in (choice["logprobs"] or {}).items():
                    mine["logprobs"][name] += values
    for streamed, given in zip(told, whole, strict=True):
        check_shape(streamed)
        assert streamed["text"] == given["text"]
        assert streamed["logprobs"]["text_offset"] == given["logprobs"]["text_offset"]
        assert streamed["logprobs"]["token_logprobs"][1:] == pytest.approx(
            given["logprobs"]["token_logprobs"][1:], abs=NEAR
        )


def test_vllms_field(client: httpx.Client) -> None:
    ids = tokens_of(client, TEXT)
    choice = complete(client, prompt=TEXT, max_tokens=1, prompt_logprobs=2)["choices"][0]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert len(others) == len(ids) - 1
    for token, told in zip(ids[1:], others, strict=True):
        assert told[str(token)]["logprob"] <= 0
        assert sorted(entry["rank"] for entry in told.values() if entry["rank"] is not None) == [1, 2]
        assert len(told) in {2, 3}
    assert choice["logprobs"] is None
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "prompt_logprobs": 0}
    chat = client.post("/v1/chat/completions", json=body).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert all(len(told) == 1 for told in chat["prompt_logprobs"][1:])
    streamed = client.post("/v1/chat/completions", json={**body, "stream": True})
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "prompt_logprobs")


def test_what_does_not_go_with_them(client: httpx.Client) -> None:
    refused = client.post("/v1/completions", json={"prompt": TEXT, "prompt_logprobs": -1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")


async def test_a_bounded_pool_refuses_them(make_server: Any) -> None:
    async with make_server(**BOUNDED) as server, httpx.AsyncClient(base_url=server.url, timeout=120) as c:
        for stream in (False, True):
            body = {"prompt": TEXT, "max_tokens": 0, "echo": True, "logprobs": 1, "stream": stream}
            refused = await c.post("/v1/completions", json=body)
            assert refused.status_code in {400, 501}, refused.text
            assert "kvflash" in refused.json()["error"]["message"]


def test_a_server_says_how_its_texts_are_read(client: httpx.Client) -> None:
    """lm-eval asks for this, and leaves its texts to the server then."""
    told = client.get("/tokenizer_info").json()
    assert told["eos_token"] == "<|im_end|>"
    assert told["chat_template"]
    plain = client.post("/tokenize", json={"prompt": TEXT, "add_special_tokens": False}).json()
    assert plain["count"] == len(plain["tokens"]) > 0
    assert client.post("/detokenize", json={"tokens": plain["tokens"]}).json()["prompt"] == TEXT
