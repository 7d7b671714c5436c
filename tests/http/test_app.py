"""What every route has: errors in the shape of the API that is spoken, ids, methods, limits. Our own routes too."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import httpx2 as httpx
import openai
import pytest
from aiohttp import web

from luce.supervisor import Supervisor, SupervisorConfig
from luce.supervisor.http.app import create_app
from tests.http.conftest import MakeServer
from tests.http.raw_client import get, post, raw_client
from tests.http.serving import BOUNDED, Server

CHAT = "/v1/chat/completions"
HELLO = {"model": "any", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
POSTS = (
    CHAT,
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/apply-template",
)


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as connected:
        yield connected


def assert_error(answer: httpx.Response, status: int, *, anthropic_shape: bool) -> dict[str, Any]:
    """Its `error`, in the right shape."""
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    error: dict[str, Any] = body["error"]
    assert error["message"]
    if anthropic_shape:
        assert body["type"] == "error"
        assert body["request_id"] == answer.headers["request-id"]
        assert set(error) == {"type", "message"}
    else:
        assert set(body) == {"error"}
        assert {"message", "type", "param", "code"} <= set(error)
    return error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1/nowhere", 404),
        ("GET", "/v1/messages/batches", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/health", 405),
        ("GET", "/v1/messages", 405),
        ("PUT", "/v1/messages/count_tokens?beta=true", 405),
        ("OPTIONS", CHAT, 405),
        ("PROPFIND", "/v1/models", 405),
    ],
)
def test_what_is_not_there(client: httpx.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert_error(answer, status, anthropic_shape="/v1/messages" in path)
    assert ("Allow" in answer.headers) == (status == 405)


def test_head_has_headers_and_no_body(client: httpx.Client) -> None:
    for path, status in (("/health", 200), ("/v1/models", 200), ("/nowhere", 404), (CHAT, 405)):
        answer = client.head(path)
        assert answer.status_code == status
        assert answer.content == b""


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"a": NaN}', b"[" * 100_000, b'{"a":' * 50_000],
    ids=["empty", "cut", "list", "nan", "deep", "deeper"],
)
def test_a_body_that_is_no_json(client: httpx.Client, path: str, body: bytes) -> None:
    answer = client.post(path, content=body)
    error = assert_error(answer, 400, anthropic_shape=path.startswith("/v1/messages"))
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "", "application/x-www-form-urlencoded", "Application/JSON; x=y"]
)
def test_any_content_type_is_taken(client: httpx.Client, content_type: str) -> None:
    answer = client.post("/tokenize", content=b'{"content": "a"}', headers={"Content-Type": content_type})
    assert answer.json()["tokens"]


def test_a_query_is_tolerated(client: httpx.Client) -> None:
    answer = client.post("/v1/messages?beta=true&x=%ff", json=HELLO, headers={"anthropic-beta": "a,b"})
    assert answer.status_code == 200
    assert answer.json()["usage"]["output_tokens"] <= 4


def test_request_ids(client: httpx.Client) -> None:
    first, second = client.get("/health"), client.get("/health")
    assert first.headers["x-request-id"] == first.headers["request-id"] != second.headers["request-id"]
    assert client.get("/health", headers={"x-request-id": "mine-1"}).headers["request-id"] == "mine-1"
    for bad in ("a b", "x" * 200, "é", "a;b"):
        assert client.get("/health", headers={b"x-request-id": bad.encode()}).headers["request-id"] != bad
    stream = client.post(CHAT, json={**HELLO, "stream": True})
    assert stream.headers["x-request-id"].startswith("req_")


def test_a_prompt_that_does_not_fit_is_told_so_that_agents_compact(client: httpx.Client) -> None:
    long = {**HELLO, "messages": [{"role": "user", "content": "word " * 9000}]}
    for stream in (False, True):
        answer = client.post(CHAT, json={**long, "stream": stream})
        error = assert_error(answer, 400, anthropic_shape=False)
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith(
            "This model's maximum context length is 4096 tokens. However, your messages "
        )
        assert error["n_ctx"] == 4096 < error["n_prompt_tokens"]
        assert error["type"] == "invalid_request_error"
        # Under the paths that are llama-server's, its word; and its phrase in the text, for agents that look for that.
        told = assert_error(
            client.post("/chat/completions", json={**long, "stream": stream}), 400, anthropic_shape=False
        )
        assert told == {**error, "type": "exceed_context_size_error"}
        assert "exceeds the available context size" in told["message"]
        answer = client.post("/v1/messages", json={**long, "stream": stream})
        message = assert_error(answer, 400, anthropic_shape=True)["message"]
        assert message == f"prompt is too long: {error['n_prompt_tokens']} tokens > 4096 maximum"


def test_anthropics_shape_elsewhere_for_their_sdk(client: httpx.Client) -> None:
    answer = client.get("/v1/nowhere", headers={"anthropic-version": "2023-06-01"})
    assert_error(answer, 404, anthropic_shape=True)


async def test_limits_of_size(make_server: MakeServer, caplog: pytest.LogCaptureFixture) -> None:
    async with make_server(max_body_bytes=10_000) as server, httpx.AsyncClient(timeout=120) as client:
        answer = await client.post(server.url + CHAT, content=b"x" * 20_000)
        assert_error(answer, 413, anthropic_shape=False)

        async def pieces() -> Any:
            for _ in range(20):
                yield b"x" * 1000

        answer = await client.post(server.url + "/v1/messages", content=pieces())
        assert assert_error(answer, 413, anthropic_shape=True)["type"] == "request_too_large"
        bomb = gzip.compress(b'{"content": "' + b" " * 5_000_000 + b'"}')
        assert len(bomb) < 10_000
        answer = await client.post(server.url + "/tokenize", content=bomb, headers={"Content-Encoding": "gzip"})
        assert_error(answer, 413, anthropic_shape=False)
        for encoding in ("gzip", "deflate", "br", "zstd", "made-up"):
            answer = await client.post(
                server.url + "/tokenize", content=b"no such thing", headers={"Content-Encoding": encoding}
            )
            assert answer.status_code == 400, encoding
        async with raw_client(server.url) as large:
            await large.send(get("/health", headers=f"X-Long: {'a' * 100_000}\r\n"))
            assert (await large.read_answer()).status == 400
        async with raw_client(server.url) as many:
            await many.send(get("/health", headers="".join(f"X-{n}: a\r\n" for n in range(1000))))
            assert (await many.read_answer()).status == 400
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_body_that_never_ends(make_server: MakeServer) -> None:
    async with make_server(body_timeout_s=0.3) as server, raw_client(server.url) as slow:
        await slow.send(post(CHAT, b"{}").replace(b"Content-Length: 2", b"Content-Length: 200"))
        told = await slow.read_answer()
        assert told.status == 408
        assert "not complete" in told.json()["error"]["message"]


async def test_a_head_that_never_ends(make_server: MakeServer) -> None:
    async with make_server(idle_timeout_s=0.3) as server, raw_client(server.url) as slow:
        await slow.send(b"GET /health HTTP/1.1\r\nX-Slow: ")
        assert await slow.read_to_end() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /%00%ff%2e%2e/../../etc/passwd HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /v1/models/..%2f..%2fetc%2fpasswd%00 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ],
)
async def test_what_is_hardly_http(server: Server, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with raw_client(server.url) as client:
        await client.send(data)
        client.writer.write_eof()
        answer = await client.read_to_end()
    assert b" 500 " not in answer.split(b"\r\n")[0]
    assert b"Traceback" not in answer
    assert [record for record in caplog.records if record.exc_info] == []
    async with raw_client(server.url) as client:
        await client.send(get("/health"))
        assert (await client.read_answer()).status == 200


async def test_two_requests_over_one_connection_at_once(server: Server) -> None:
    async with raw_client(server.url) as client:
        await client.send(post(CHAT, HELLO) + get("/health") + post("/tokenize", {"content": "a"}))
        assert (await client.read_answer()).json()["object"] == "chat.completion"
        assert (await client.read_answer()).json()["status"] == "ok"
        assert (await client.read_answer()).json()["tokens"]


def test_health(client: httpx.Client) -> None:
    for path in ("/health", "/v1/health"):
        assert client.get(path).json() == {"status": "ok", "live": True, "ready": True, "engines": ["ready"]}


def test_probes(client: httpx.Client) -> None:
    """That it is to stop is said by a server of its own (tests/cli/test_serve.py)."""
    for path in ("/livez", "/readyz"):
        assert client.get(path).json() == {"status": "ok"}


def test_models_by_either_sdk(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
        models = list(client.models.list())
        assert [model.id for model in models] == ["luce-tiny-Q8_0"]
        assert models[0].object == "model"
        assert client.models.retrieve("gpt-x/y").id == "gpt-x/y"
    with anthropic.Anthropic(base_url=server.url, api_key="k") as other:
        page = other.models.list()
        assert [model.display_name for model in page] == ["luce-tiny-Q8_0"]
        assert page.data[0].created_at.year >= 2020
        assert page.data[0].max_input_tokens == 4096
        assert other.models.retrieve("claude-x").type == "model"


async def test_aliases_stand_for_the_model(make_server: MakeServer) -> None:
    async with make_server(aliases=("one", "two", "one")) as server, httpx.AsyncClient(timeout=120) as client:
        listed = (await client.get(f"{server.url}/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["one", "two"]
        assert all(model["aliases"] == ["one", "two"] for model in listed["data"])
        assert listed["first_id"] == "one"
        props = (await client.get(f"{server.url}/props")).json()
        assert props["model_alias"] == "one"
        for path, body in (("responses", {"input": "x", "max_output_tokens": 1}), ("completions", {"prompt": "x"})):
            answer = await client.post(f"{server.url}/v1/{path}", json=body)
            assert answer.json()["model"] == "one", path


def test_props_show_a_bounded_pool(tiny_model: Path) -> None:
    pool = {**BOUNDED, "kvflash": "auto", "kvflash_tau": 32, "kvflash_pin": ("0:64",), "ctx": 1000}
    running = Server(tiny_model, pool).start()
    try:
        with httpx.Client(base_url=running.url, timeout=120) as client:
            shown = client.get("/props").json()["kvflash"]
    finally:
        running.stop()
    assert shown == {
        "asked": "auto", "tokens": 1024, "tau": 32, "policy": None, "layer": None, "scorer": None, "pin": ["0:64"],
    }  # fmt: skip


def test_props(client: httpx.Client, server: Server) -> None:
    props = client.get("/props").json()
    assert props["n_ctx"] == props["default_generation_settings"]["n_ctx"] == 4096
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["params"]["top_k"] == 40
    assert "<|im_start|>" in props["chat_template"]
    assert props["model_path"] == "luce-tiny-Q8_0.gguf"
    assert props["kvflash"] is None
    assert str(server.config.model.parent) not in json.dumps(props)


def test_lanes(client: httpx.Client) -> None:
    lanes = client.get("/slots").json()
    assert lanes == [{"id": number, "n_ctx": 4096, "is_processing": False} for number in range(4)]


async def test_lanes_at_work_say_what_they_do(make_server: MakeServer) -> None:
    body = {"prompt": "one two", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with make_server(lanes=2) as server, aiohttp.ClientSession(server.url) as session:
        async with session.post("/v1/completions", json=body) as answer:
            for _ in range(5):
                await answer.content.readuntil(b"\n\n")
            lanes = await (await session.get("/slots")).json()
        assert [lane["is_processing"] for lane in lanes] == [True, False]
        assert lanes[0]["n_prompt_tokens"] == lanes[0]["n_prompt_tokens_processed"] > 0
        assert lanes[0]["next_token"][0]["n_decoded"] >= 3
        assert "next_token" not in lanes[1]


@pytest.mark.parametrize("text", ["", "Hello world", "€ \U0001f600 日本", "\0\n\t", "<|im_start|>user"])
def test_tokens_and_back(client: httpx.Client, text: str) -> None:
    for parse_special in (True, False):
        tokens = client.post("/tokenize", json={"content": text, "parse_special": parse_special}).json()["tokens"]
        assert client.post("/detokenize", json={"tokens": tokens}).json() == {"content": text, "prompt": text}
    pieces = client.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    spelled = b"".join(
        piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"]) for piece in pieces
    )
    assert spelled == text.encode()


def test_special_tokens_are_parsed_if_wanted(client: httpx.Client) -> None:
    def n_tokens(**options: Any) -> int:
        return len(client.post("/tokenize", json={"content": "<|im_start|>", **options}).json()["tokens"])

    assert n_tokens() == n_tokens(parse_special=True) == 1 < n_tokens(parse_special=False)


def test_tokenize_takes_what_llama_server_does(client: httpx.Client) -> None:
    whole = client.post("/tokenize", json={"content": "a"}).json()["tokens"]
    assert client.post("/tokenize", json={"content": ["a", 5, "a"]}).json()["tokens"] == [*whole, 5, *whole]
    assert client.post("/tokenize", json={}).json() == {"tokens": []}
    assert client.post("/detokenize", json={}).json() == {"content": "", "prompt": ""}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/detokenize", {"tokens": [8192]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [2**31]}),
        ("/detokenize", {"tokens": [1.5]}),
        ("/detokenize", {"tokens": [True]}),
        ("/detokenize", {"tokens": "1"}),
        ("/detokenize", {"tokens": {"0": 1}}),
        ("/tokenize", {"content": 5}),
        ("/tokenize", {"content": [8192]}),
        ("/tokenize", {"content": [[]]}),
        ("/tokenize", {"content": "a", "with_pieces": 1}),
        ("/apply-template", {}),
        ("/apply-template", {"messages": 5}),
        ("/apply-template", {"messages": [5]}),
    ],
)
def test_hostile_texts_and_tokens(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    assert_error(client.post(path, content=json.dumps(body)), 400, anthropic_shape=False)


def test_apply_template_is_what_the_model_reads(client: httpx.Client) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt.startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n")
    assert prompt.endswith("<|im_start|>assistant\n")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    assert "look" in client.post("/apply-template", json={"messages": messages, "tools": tools}).json()["prompt"]


async def test_mounted_in_another_server(tiny_model: Any, caplog: pytest.LogCaptureFixture) -> None:
    config = SupervisorConfig(model=tiny_model, ctx=1024, lanes=1, threads=1, no_warmup=True, log_level="warn")
    async with Supervisor(config) as supervisor:

        async def fail(_: web.Request) -> web.Response:
            raise RuntimeError("secret")

        inner = await create_app(supervisor)
        inner.router.add_get("/fail", fail)
        outer = web.Application()
        outer.add_subapp("/luce", inner)
        runner = web.AppRunner(outer, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with aiohttp.ClientSession() as session:
                async with session.post(f"{url}/luce{CHAT}", json=HELLO) as answer:
                    assert (await answer.json())["object"] == "chat.completion"
                async with session.post(f"{url}/luce/v1/messages", data=b"{") as answer:
                    assert (await answer.json())["type"] == "error"
                async with session.get(f"{url}/luce/fail") as answer:
                    assert answer.status == 500
                    told = await answer.json()
                    assert answer.headers["request-id"] in told["error"]["message"]
                    assert "secret" not in str(told), "that is for the log"
                assert "secret" in caplog.text
                async with session.get(f"{url}/luce/nowhere") as answer:
                    assert (await answer.json())["error"]["code"] == "unknown_url"
                async with session.get(f"{url}/health") as answer:
                    assert answer.status == 404
                    assert "request-id" not in answer.headers
        finally:
            await runner.cleanup()
