"""Legacy completions through the official SDK and as raw HTTP, over the packaged model and the real engine."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.http.conftest import MakeServer
from tests.http.serving import Server

CODE = "def add(a, b):\n"


def ask(sdk: OpenAI, prompt: Any = CODE, **fields: Any) -> Any:
    return sdk.completions.create(**{"model": "davinci", "prompt": prompt, "temperature": 0, **fields})


def post(server: Server, path: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(server.url + path, json.dumps(body).encode())  # noqa: S310  our own server
    try:
        with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_answer(sdk: OpenAI) -> None:
    answer = ask(sdk)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == "davinci"
    assert answer.choices[0].text
    assert answer.usage.completion_tokens <= 16
    assert ask(sdk, max_tokens=3).choices[0].finish_reason == "length"


def test_stream_says_the_same(sdk: OpenAI) -> None:
    whole = ask(sdk, max_tokens=12)
    chunks = list(ask(sdk, max_tokens=12, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][:-1] == [None] * (len(chunks) - 2)
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_async(async_sdk: AsyncOpenAI) -> None:
    stream = await async_sdk.completions.create(model="m", prompt=CODE, temperature=0, max_tokens=5, stream=True)
    text = "".join([chunk.choices[0].text async for chunk in stream])
    answer = await async_sdk.completions.create(model="m", prompt=CODE, temperature=0, max_tokens=5)
    assert text == answer.choices[0].text


def test_ids_are_their_text(sdk: OpenAI, server: Server) -> None:
    _, told = post(server, "/tokenize", {"content": CODE})
    from_text, from_ids = ask(sdk, [CODE, told["tokens"]]).choices
    assert from_ids.text == from_text.text
    assert ask(sdk, told["tokens"]).choices[0].text == from_text.text


@pytest.mark.parametrize("streams", [False, True])
def test_several_prompts_and_choices(sdk: OpenAI, streams: bool) -> None:
    prompts = [CODE, "import os\n", CODE]
    fields: dict[str, Any] = {"n": 2, "max_tokens": 5}
    texts = [""] * 6
    if streams:
        for chunk in ask(sdk, prompts, stream=True, **fields):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    else:
        answer = ask(sdk, prompts, **fields)
        assert [choice.index for choice in answer.choices] == list(range(6))
        texts = [choice.text for choice in answer.choices]
        assert answer.usage.completion_tokens <= 30
    assert texts[0] == texts[4]  # the same prompt, greedily
    assert texts[0] != texts[2]
    assert all(texts)


@pytest.mark.parametrize("streams", [False, True])
def test_echo(sdk: OpenAI, streams: bool) -> None:
    answer = ask(sdk, [CODE, [72, 101]], echo=True, max_tokens=2, stream=streams)
    texts = ["", ""]
    for chunk in answer if streams else [answer]:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts[0].startswith(CODE)
    assert texts[1]


def test_logprobs(sdk: OpenAI) -> None:
    choice = ask(sdk, logprobs=2, max_tokens=6).choices[0]
    told = choice.logprobs
    assert "".join(told.tokens) == choice.text
    assert told.text_offset[0] == 0
    assert [
        choice.text[at : at + len(token)] for at, token in zip(told.text_offset, told.tokens, strict=True)
    ] == told.tokens
    assert all(logprob <= 0 for logprob in told.token_logprobs)
    assert all(0 < len(likeliest) <= 3 for likeliest in told.top_logprobs)
    assert ask(sdk, max_tokens=1).choices[0].logprobs is None


def test_stop(sdk: OpenAI) -> None:
    text = ask(sdk, max_tokens=12).choices[0].text
    stop = text[3:7]
    answer = ask(sdk, max_tokens=12, stop=stop)
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": None},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [10**6]},
        {"prompt": {"prompt_string": "x", "multimodal_data": ["y"]}},
        {"prompt": "x", "suffix": "y"},
        {"prompt": "x", "best_of": 3},
        {"prompt": "x", "prompt_logprobs": 1, "stream": True},
        {"prompt": "x", "prompt_logprobs": 21},
        {"prompt": "x " * 5000},
        {"prompt": "x " * 5000, "stream": True},
        {},
    ],
)
def test_refusals(server: Server, fields: dict[str, Any]) -> None:
    status, answer = post(server, "/v1/completions", {"max_tokens": 2, **fields})
    assert status == 400, answer
    assert answer["error"]["message"]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_llama_servers_own_words(server: Server, path: str) -> None:
    fields = {"prompt": CODE, "n_predict": 8, "temperature": 0}
    status, answer = post(server, path, {**fields, "return_tokens": True})
    assert status == 200, answer
    assert answer["content"]
    assert answer["stop"] is True
    assert answer["stop_type"] == "limit"
    assert answer["prompt"] == CODE
    assert len(answer["tokens"]) == answer["tokens_predicted"] == answer["timings"]["predicted_n"] == 8
    assert answer["timings"]["prompt_n"] + answer["timings"]["cache_n"] == answer["tokens_evaluated"]
    assert post(server, path, fields)[1]["tokens"] == []


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_constraints(server: Server, path: str) -> None:
    def text(**fields: Any) -> str:
        status, answer = post(server, path, {"prompt": CODE, "max_tokens": 16, **fields})
        assert status == 200, answer
        return str(answer["content"] if path == "/completion" else answer["choices"][0]["text"])

    assert text(grammar='root ::= "a"{5}') == "aaaaa"
    assert text(json_schema={"const": 42}) == "42"
    tokens = post(server, "/tokenize", {"content": CODE})[1]["tokens"]
    assert text(prompt=tokens, grammar='root ::= "ids"') == "ids"


@pytest.mark.parametrize("grammar", ["root ::= this is (not GBNF", "root ::= root", "x ::= y"])
@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_a_bad_grammar_is_refused_before_a_stream_begins(server: Server, path: str, grammar: str) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    for streams in (False, True):
        body = {"prompt": CODE, "messages": messages, "max_tokens": 8, "grammar": grammar, "stream": streams}
        status, answer = post(server, path, body)
        assert status == 400, answer
        assert "grammar" in answer["error"]["message"]


async def test_a_server_with_a_seed_and_a_small_context(make_server: MakeServer) -> None:
    async with make_server(seed=42, ctx=256, pool=1024) as server:
        asked = {"prompt": CODE, "n_predict": 12, "temperature": 1.5, "n": 2}
        (first, other), again = [post(server, "/completion", asked)[1] for _ in range(2)]
        assert [first["content"], other["content"]] == [answer["content"] for answer in again]
        assert first["content"] != other["content"]
        assert post(server, "/completion", {**asked, "seed": 43})[1][0]["content"] != first["content"]
        # A small context, for llama-server's word for one that the answer has filled.
        prompt = [72] * 253
        for n_predict, truncated in ((2, False), (3, True), (-1, True)):
            answer = post(server, "/completion", {"prompt": prompt, "n_predict": n_predict, "ignore_eos": True})[1]
            assert answer["truncated"] is truncated
            assert answer["tokens_predicted"] == (2 if n_predict == 2 else 3)


def test_llama_servers_lists_and_fields(server: Server) -> None:
    tokens = post(server, "/tokenize", {"content": CODE})[1]["tokens"]
    fields = {"n_predict": 4, "temperature": 0}
    status, answers = post(server, "/completion", {"prompt": [tokens, CODE, {"prompt_string": CODE}], **fields})
    assert status == 200, answers
    assert [answer["content"] for answer in answers] == [answers[0]["content"]] * 3
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    named = ["content", "timings/predicted_n", "no/such", "content/more"]
    status, answer = post(server, "/completion", {"prompt": CODE, "response_fields": named, **fields})
    assert (status, answer) == (200, {"content": answers[0]["content"], "timings/predicted_n": 4})
    status, error = post(server, "/completion", {"prompt": CODE, "response_fields": "content"})
    assert (status, error["error"]["param"]) == (400, "response_fields")


def test_llama_servers_probabilities(server: Server) -> None:
    status, answer = post(server, "/completion", {"prompt": CODE, "n_predict": 3, "n_probs": 5, "temperature": 0})
    assert status == 200, answer
    told = answer["completion_probabilities"]
    assert len(told) == 3
    assert all(len(token["top_logprobs"]) == 5 and token["logprob"] <= 0 for token in told)
    assert "".join(token["token"] for token in told) == answer["content"]
    status, error = post(server, "/completion", {"prompt": CODE, "n_probs": 5, "post_sampling_probs": True})
    assert (status, error["error"]["param"]) == (400, "post_sampling_probs")


def test_llama_servers_stream(server: Server) -> None:
    fields = {"prompt": CODE, "n_predict": 6, "temperature": 0, "ignore_eos": True}
    whole = post(server, "/completion", fields)[1]
    request = urllib.request.Request(  # noqa: S310  our own server
        f"{server.url}/completion", json.dumps({**fields, "stream": True}).encode()
    )
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
        lines = response.read().decode().split("\n\n")
    *pieces, last = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert sum(len(piece["tokens"]) for piece in pieces) == 6
    assert not any(piece["stop"] for piece in pieces)
    assert last["stop"] is True
    assert last["content"] == ""
    assert last["tokens_predicted"] == 6


def llama_events(server: Server, **fields: Any) -> list[Any]:
    body = {"prompt": CODE, "temperature": 0, "stream": True, "ignore_eos": True, **fields}
    request = urllib.request.Request(f"{server.url}/completion", json.dumps(body).encode())  # noqa: S310
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
        lines = response.read().decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_llama_servers_probabilities_come_token_by_token(server: Server) -> None:
    *pieces, last = llama_events(server, n_predict=12, n_probs=3)
    assert [len(piece["completion_probabilities"]) for piece in pieces] == [1] * 12
    assert all(piece["content"] == piece["completion_probabilities"][0]["token"] for piece in pieces)
    assert [piece["tokens_predicted"] for piece in pieces] == list(range(1, 13))
    assert "completion_probabilities" not in last


def test_llama_servers_progress(server: Server) -> None:
    events = llama_events(server, prompt="one two three " * 300, n_predict=2, return_progress=True)
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert told[0]["cache"] == told[0]["processed"]
    assert told[-1]["processed"] == told[-1]["total"] == events[-1]["tokens_evaluated"]
    assert all("stop" in event for event in events)


def test_llama_servers_rates(server: Server) -> None:
    """The first token comes with the prompt's end: it is no step of decoding."""
    for n_predict in (1, 9):
        told = post(server, "/completion", {"prompt": CODE, "n_predict": n_predict, "ignore_eos": True})[1]["timings"]
        assert told["predicted_n"] == n_predict
        if n_predict == 1:
            assert told["predicted_per_second"] == 0
        else:
            assert told["predicted_per_second"] == pytest.approx(8e3 / told["predicted_ms"])


def test_llama_servers_temperatures(server: Server) -> None:
    asked = {"prompt": CODE, "max_tokens": 2, "temperature": 5}
    assert post(server, "/completion", asked)[0] == 200
    assert post(server, "/v1/completions", asked)[0] == 400
    assert post(server, "/completion", {**asked, "temperature": 101})[0] == 400


@pytest.mark.parametrize("streams", [False, True])
def test_each_of_llama_servers_objects_has_its_own_counts(server: Server, streams: bool) -> None:
    """What several choices took together stood in each of them."""
    body = {"prompt": CODE, "n": 3, "n_predict": 7, "ignore_eos": True, "return_tokens": True, "stream": streams}
    request = urllib.request.Request(server.url + "/completion", json.dumps(body).encode())  # noqa: S310
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
        data = response.read()
    if streams:
        chunks = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]
        answers = [chunk for chunk in chunks if chunk["stop"]]
    else:
        answers = json.loads(data)
    assert len(answers) == 3
    for answer in answers:
        assert answer["tokens_predicted"] == 7
        assert answer["timings"]["predicted_n"] == 7
