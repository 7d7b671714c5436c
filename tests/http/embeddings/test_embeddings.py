"""/v1/embeddings, and llama-server's names of it, over real engines: OpenAI's shapes, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.http.conftest import MakeServer
from tests.http.raw_client import post as post_bytes
from tests.http.raw_client import raw_client
from tests.http.serving import Server

N_VALUES, N_CTX = 64, 512
TEXTS = ["what is machine learning", "the city of paris", "a river in france", "12 mountains!", "x" * 40]
LONG = "the river " * N_CTX
ROUNDING = 1e-4  # of values of unit vectors, by what is read beside a text


@pytest.fixture(scope="module")
def server(tiny_model: Path, test_models: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"embedding_model": test_models / "embeddings" / "bert.gguf"})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as opened:
        yield opened


def post(client: httpx.Client, path: str = "/v1/embeddings", **body: Any) -> httpx.Response:
    return client.post(path, json=body)


def vectors(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return np.array([row["embedding"] for row in answer.json()["data"]])


def test_the_shape_is_openais(client: httpx.Client) -> None:
    answer = post(client, input=TEXTS, model="text-embedding-3-small", user="somebody", encoding_format="float")
    body = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert body.keys() == {"object", "data", "model", "usage"}
    assert (body["object"], body["model"]) == ("list", "text-embedding-3-small")
    assert [(row["object"], row["index"]) for row in body["data"]] == [("embedding", i) for i in range(len(TEXTS))]
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 2 * len(TEXTS)
    found = vectors(answer)
    assert found.shape == (len(TEXTS), N_VALUES)
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-6


def test_the_bytes_of_an_answer(server: Server) -> None:
    """One line of JSON in ASCII, whose numbers read back as the same single-precision ones."""
    with httpx.Client(base_url=server.url, timeout=120) as client:
        plain = post(client, input="paris", model="modèle").content
        coded = post(client, input="paris", encoding_format="base64").json()["data"][0]["embedding"]
    assert plain.startswith(b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[')
    assert plain.endswith(b']}],"model":"mod\\u00e8le","usage":{"prompt_tokens":3,"total_tokens":3}}')
    values = json.loads(plain)["data"][0]["embedding"]
    assert struct.pack(f"<{N_VALUES}f", *values) == base64.b64decode(coded, validate=True)


def test_a_batch_is_what_each_text_is_alone(client: httpx.Client) -> None:
    together = vectors(post(client, input=TEXTS * 30))
    alone = np.concatenate([vectors(post(client, input=text)) for text in TEXTS])
    assert np.abs(together - np.tile(alone, (30, 1))).max() < ROUNDING


@pytest.mark.parametrize(
    ("value", "n"),
    [
        ("string", 1),
        ("", 1),  # its special tokens are read
        ([12, 34, 56], 1),
        ([12, 34, "string", 56, 78], 1),
        (["string", "another"], 2),
        (["string", [12, 34, 56]], 2),
        ([[12, 34, 56], [12, 34, 56]], 2),
        ([[12], [12, "string", 34]], 2),
        ({"prompt_string": "string"}, 1),
        ({"content": [{"type": "text", "text": "string"}]}, 1),
        (["string", {"prompt_string": "another"}, {"content": [{"type": "text", "text": "third"}]}], 3),
        (["text"] * 2048, 2048),
    ],
)
def test_inputs_of_each_form(client: httpx.Client, value: Any, n: int) -> None:
    assert len(vectors(post(client, input=value))) == n


def test_texts_ids_and_objects_mean_the_same(client: httpx.Client, server: Server) -> None:
    async def ids() -> list[int]:
        text = await server.supervisor.embedding_model().text()
        return text.tokenize("the city", add_special=True)

    parts = {"content": [{"type": "text", "text": "the "}, {"type": "text", "text": "city"}]}
    found = vectors(post(client, input=["the city", server.call(ids), parts, {"prompt_string": "the city"}]))
    assert np.abs(found - found[0]).max() < ROUNDING


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": []}, "input", "empty_array"),
        ({"input": [[]]}, "input", "empty_array"),
        ({"input": [[1], []]}, "input", "empty_array"),
        ({"input": ["x"] * 2049}, "input", "array_above_max_length"),
        ({"input": True}, "input", "invalid_type"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": None}, "input", "invalid_type"),
        ({"input": [1.5]}, "input", "invalid_type"),
        ({"input": [True, 2]}, "input", "invalid_type"),
        ({"input": [["a", None]]}, "input", "invalid_type"),
        ({"input": [[["a"]]]}, "input", "invalid_type"),
        ({"input": [1, -2]}, "input", "token_out_of_range"),
        ({"input": [[5, 136]]}, "input", "token_out_of_range"),
        ({"input": [10**15]}, "input", "token_out_of_range"),
        ({"input": {"content": "string"}}, "input", "unsupported_content"),
        ({"input": {"content": [{"type": "unknown"}]}}, "input", "unsupported_content"),
        (
            {"input": {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}},
            "input",
            "unsupported_content",
        ),
        ({"input": {"prompt_string": "a", "multimodal_data": ["AAAA"]}}, "input", "unsupported_content"),
        ({"input": [{}]}, "input", "unsupported_content"),
        ({}, "input", "invalid_value"),
        ({"input": "a", "encoding_format": 1}, "encoding_format", "invalid_value"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"input": "a", "dimensions": 0}, "dimensions", "integer_below_min_value"),
        ({"input": "a", "dimensions": N_VALUES + 1}, "dimensions", "integer_above_max_value"),
        ({"input": "a", "dimensions": "4"}, "dimensions", "invalid_value"),
        ({"input": "a", "model": 3}, "model", "invalid_value"),
        ({"input": LONG}, "input", "context_length_exceeded"),
        ({"input": ["a", LONG]}, "input", "context_length_exceeded"),
        ({"input": [[9] * (N_CTX + 1)]}, "input", "context_length_exceeded"),
    ],
)
def test_what_is_refused(client: httpx.Client, body: dict[str, Any], param: str, code: str) -> None:
    answer = post(client, **body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert param in error["message"]


def test_a_text_that_is_too_long_is_told_its_length(client: httpx.Client) -> None:
    message = post(client, input=LONG).json()["error"]["message"]
    assert "too large" in message
    assert "1,026" in message
    assert str(N_CTX) in message
    assert message.startswith("'input':")
    assert len(vectors(post(client, input=[[9] * N_CTX]))) == 1


@pytest.mark.parametrize("long", [LONG, [9] * (N_CTX + 1)])
def test_a_text_of_several_that_is_too_long_is_named(client: httpx.Client, long: Any) -> None:
    others: list[Any] = ["a", "b"] if isinstance(long, str) else [[9], [9]]
    message = post(client, input=[*others, long]).json()["error"]["message"]
    assert message.startswith("'input[2]':")


def test_fewer_dimensions_are_the_first_ones_of_unit_length(client: httpx.Client) -> None:
    whole, cut = vectors(post(client, input=TEXTS)), vectors(post(client, input=TEXTS, dimensions=10))
    assert cut.shape == (len(TEXTS), 10)
    assert np.abs(np.linalg.norm(cut, axis=1) - 1).max() < 1e-6
    assert np.abs(cut - whole[:, :10] / np.linalg.norm(whole[:, :10], axis=1, keepdims=True)).max() < ROUNDING
    assert np.abs(vectors(post(client, input=TEXTS, dimensions=N_VALUES)) - whole).max() < ROUNDING


def test_openais_client(server: Server) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as sdk:
        answer = sdk.embeddings.create(model="any", input=TEXTS)  # which asks for base64 by itself
        plain = sdk.embeddings.create(model="any", input=TEXTS, encoding_format="float")
        one = sdk.embeddings.create(model="any", input=[5, 6, 7], dimensions=8)
    assert [len(row.embedding) for row in answer.data] == [N_VALUES] * len(TEXTS)
    decoded, told = (np.array([row.embedding for row in found.data]) for found in (answer, plain))
    assert np.abs(decoded - told).max() < ROUNDING
    assert len(one.data[0].embedding) == 8
    assert one.usage.total_tokens == 3


@pytest.fixture
async def async_sdk(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


async def test_many_requests_at_once(async_sdk: AsyncOpenAI) -> None:
    answers = await asyncio.gather(
        *(async_sdk.embeddings.create(model="any", input=[f"text {i}", "the same"]) for i in range(60))
    )
    firsts = np.array([answer.data[0].embedding for answer in answers])
    others = np.array([answer.data[1].embedding for answer in answers])
    assert np.abs(others - others[0]).max() < ROUNDING
    assert len({row.tobytes() for row in firsts.round(3)}) > 50


def test_llama_servers_names(client: httpx.Client) -> None:
    expected = vectors(post(client, input=["the city"]))[0]
    for path in ("/embedding", "/embeddings"):
        for body in ({"content": "the city"}, {"input": ["the city"]}):
            rows = post(client, path, **body).json()
            assert [row.keys() for row in rows] == [{"index", "embedding"}]
            assert np.abs(np.array(rows[0]["embedding"][0]) - expected).max() < ROUNDING
    assert post(client, "/embedding", content="a", embd_normalize=2).status_code == 200
    refused = post(client, "/embedding", content="a", embd_normalize=-1)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "embd_normalize")
    assert post(client, "/embedding").json()["error"]["param"] == "content"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'{"input": "a"', "invalid_json"),
        (b'{"input": NaN}', "invalid_json"),
        (b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}", "invalid_type"),
        (b'{"input": [' + b"9" * 400 + b"]}", "invalid_type"),
    ],
)
def test_hostile_bodies(client: httpx.Client, body: bytes, code: str) -> None:
    answer = client.post("/v1/embeddings", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_hostile_texts(client: httpx.Client) -> None:
    hostile = ["\0\0", "\ufeff\u2028\u202e", "\U0001f469\u200d\U0001f467" * 20, "[CLS][SEP]" * 20, "a\u0301" * 50]
    hostile += ["\u5b57" * 50, "\t\n " * 300]
    found = vectors(post(client, input=hostile))
    assert np.isfinite(found).all()
    assert post(client, input="[CLS] [SEP]").json()["usage"]["prompt_tokens"] == 4  # as the model's own tokenizer


async def test_a_client_that_goes_leaves_nothing_behind(server: Server) -> None:
    async with raw_client(server.url) as client:
        await client.send(post_bytes("/v1/embeddings", {"input": ["the river " * 200] * 2000}))
        queue = server.supervisor.embedding_model().queue
        await wait_until(lambda: bool(queue._running))
        client.vanish()
    await wait_until(lambda: not queue._running and not queue._requests)
    with httpx.Client(base_url=server.url, timeout=120) as other:
        assert len(vectors(post(other, input="still there"))) == 1
    assert server.supervisor.status().embeddings[0].n_deaths == 0


async def wait_until(holds: Any) -> None:
    async with asyncio.timeout(120):
        while not holds():  # noqa: ASYNC110  in the server's own loop, which tells nobody
            await asyncio.sleep(0.01)


def test_it_is_listed(client: httpx.Client) -> None:
    models = client.get("/v1/models").json()
    first, listed = models["data"]
    assert "task" not in first
    assert (listed["id"], listed["task"], listed["max_input_tokens"]) == ("bert", "embedding", N_CTX)
    assert listed["meta"]["n_embd"] == N_VALUES
    assert models["last_id"] == "bert"
    health = client.get("/health").json()
    assert (health["status"], health["embeddings"]) == ("ok", {"embedding": "ready"})
    metrics = client.get("/metrics").text
    assert 'luce_embedding_ready{task="embedding"} 1.0' in metrics
    assert 'luce_http_requests_total{api="embeddings",outcome="ok"}' in metrics


@pytest.mark.parametrize(
    ("path", "flag"),
    [("/v1/embeddings", "--embedding-model"), ("/embedding", "--embedding-model"), ("/rerank", "--rerank-model")],
)
async def test_without_a_model_the_option_is_named(make_server: MakeServer, path: str, flag: str) -> None:
    async with make_server() as plain, httpx.AsyncClient(base_url=plain.url, timeout=120) as client:
        answer = await client.post(path, json={"input": "a"})
        error = answer.json()["error"]
        assert answer.status_code == 501
        assert error["code"] in {"no_embedding_model", "no_rerank_model"}
        assert flag in error["message"]
        assert len((await client.get("/v1/models")).json()["data"]) == 1
        assert "embeddings" not in (await client.get("/health")).json()


async def test_a_decoders_vectors(make_server: MakeServer, test_models: Path) -> None:
    """Its texts end with their end token."""
    path = test_models / "embeddings" / "qwen3.gguf"
    async with (
        make_server(embedding_model=path, embedding_ctx=100) as server,
        httpx.AsyncClient(base_url=server.url, timeout=120) as client,
    ):
        answer = (await client.post("/v1/embeddings", json={"input": ["Hello world", "Hello world", "Bye"]})).json()
        first, same, other = (np.array(row["embedding"]) for row in answer["data"])
        assert np.abs(first - same).max() < ROUNDING
        assert np.abs(first - other).max() > 0.01
        text = await asyncio.to_thread(server.call, server.supervisor.embedding_model().text)
        lengths = [len(text.tokenize(words)) + 1 for words in ("Hello world", "Hello world", "Bye")]
        assert answer["usage"]["prompt_tokens"] == sum(lengths)
        assert text.tokenize("Bye", add_special=True)[-1] == text.info.eos
        refused = await client.post("/v1/embeddings", json={"input": "word " * 200})
        assert refused.json()["error"]["code"] == "context_length_exceeded"
