"""Prompts of which only parts are read (`luce.prefill`), in each API, over a real engine with its small model: what is
asked for is found, `usage` says what was read, and whoever cannot have it is told why."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from luce.supervisor.evaluating.tasks.haystack import FILLER
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from tests.http.answering.answering_fixtures import READ
from tests.http.conftest import MakeServer
from tests.http.serving import Server
from tests.http.test_sampling_fields import text_of
from tests.pictures import png

CHAT, COMPLETIONS, LLAMA = "/v1/chat/completions", "/v1/completions", "/completion"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
PATHS = (CHAT, COMPLETIONS, LLAMA, RESPONSES, MESSAGES)
# Of long prompts: the others differ from these in what they are called.
IN_SHORT = [
    CHAT,
    LLAMA,
    *(pytest.param(path, marks=pytest.mark.full_only) for path in (COMPLETIONS, RESPONSES, MESSAGES)),
]
CODE = "73105"
FACT = f"The access code of the green owl is {CODE}."
ASKED = "What is the access code of the green owl?"
SPARSE, FULL = {"prefill": "sparse"}, {"prefill": "full"}
PAGE = 64


def filler(n_sentences: int, seed: int = 1) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(FILLER) for _ in range(n_sentences))


# Of some 3,000 tokens.
LONG = f"{filler(180)} {FACT} {filler(120, 2)}"


@pytest.fixture(scope="module")
def scorer(data_models: Path) -> Path:
    return data_models / "luce-tiny-scorer-Q8_0.gguf"


@pytest.fixture(scope="module")
def reader(tiny_model: Path, scorer: Path) -> Iterator[Server]:
    """It reads whole where nobody asks, and repairs nothing: each test finds what it has left behind."""
    running = Server(tiny_model, {"ctx": 8192, "prefill_scorer": scorer, "prefill_repair": "off"})
    try:
        yield running.start()
    finally:
        running.stop()


def body_of(path: str, text: str, **fields: Any) -> dict[str, Any]:
    """The question stands behind the text, as in what the packaged model has learnt to answer."""
    question = f"{text}\n\n{ASKED}"
    common = {"temperature": 0, **fields}
    match path:
        case "/v1/responses":
            return {"input": question, "max_output_tokens": 24, "store": False, **common}
        case "/v1/chat/completions" | "/v1/messages":
            return {"messages": [{"role": "user", "content": question}], "max_tokens": 24, **common}
        case _:
            turn = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            return {"prompt": turn, "max_tokens": 24, "stop": ["<|im_end|>"], **common}


def send(server: Server, path: str, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers=headers, timeout=120)


def ask(server: Server, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
    answer = send(server, path, body, headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def told_of(path: str, answer: Any) -> tuple[dict[str, Any], int, int]:
    """`usage.luce`, and how many tokens the prompt had and the cache served."""
    if path == LLAMA:
        return answer["luce"], answer["tokens_evaluated"], answer["tokens_cached"]
    usage = answer["usage"]
    match path:
        case "/v1/responses":
            counts = usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
        case "/v1/messages":
            n_cached = usage["cache_read_input_tokens"]
            counts = usage["input_tokens"] + n_cached, n_cached
        case _:
            counts = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    return usage["luce"], *counts


def refused(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("path", IN_SHORT)
def test_what_is_asked_for_is_found_in_a_part_of_the_prompt(reader: Server, path: str) -> None:
    answer = ask(reader, path, body_of(path, f"Text of {path}. {LONG}", luce=SPARSE))
    assert CODE in text_of(path, answer)
    luce, n_prompt, n_cached = told_of(path, answer)
    assert luce["prefill"] == "sparse"
    assert n_cached <= luce["read_tokens"] < 0.4 * n_prompt
    assert n_prompt > 2000


@pytest.mark.parametrize("path", [MESSAGES])  # one reads headers for all of them
def test_a_header_asks_for_it_too_and_the_body_comes_first(reader: Server, path: str) -> None:
    headers = {"X-Luce-Prefill": "sparse", "X-Luce-Prefill-Keep": "0.5"}
    text = f"Headers of {path}. {LONG}"
    half, n_prompt, _ = told_of(path, ask(reader, path, body_of(path, text), headers))
    assert 0.4 * n_prompt < half["read_tokens"] < 0.6 * n_prompt
    less, _, _ = told_of(path, ask(reader, path, body_of(path, f"And {text}", luce={"prefill_keep": 0.2}), headers))
    assert less["read_tokens"] < 0.35 * n_prompt


def test_where_nobody_asks_all_of_it_is_read(reader: Server) -> None:
    for fields in (None, {"prefill": "auto", "prefill_from": 100_000}):
        luce, _, _ = told_of(CHAT, ask(reader, CHAT, body_of(CHAT, f"Nobody asks. {filler(60)}", luce=fields)))
        assert (luce["prefill"], luce["read_tokens"]) == ("full", None)
    long_enough = {"prefill": "auto", "prefill_from": 1500}
    luce, _, _ = told_of(CHAT, ask(reader, CHAT, body_of(CHAT, f"Long enough. {LONG}", luce=long_enough)))
    assert luce["prefill"] == "sparse"


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_a_stream_says_so_at_its_end(reader: Server) -> None:
    told = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    events = events_of(send(reader, CHAT, body_of(CHAT, f"A stream. {LONG}", luce=SPARSE, **told)))
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    assert CODE in text
    usage = events[-1]["usage"]
    assert usage["luce"]["prefill"] == "sparse"
    n_read = usage["luce"]["read_tokens"]
    assert n_read < 0.4 * usage["prompt_tokens"]
    assert events[-1]["timings"]["prompt_n"] == n_read - usage["prompt_tokens_details"]["cached_tokens"]
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert len({each["total"] for each in progress}) == 1
    assert progress[-1]["processed"] == progress[-1]["total"]
    whole = events_of(send(reader, MESSAGES, body_of(MESSAGES, f"Another. {LONG}", luce=SPARSE, stream=True)))
    (end,) = (event for event in whole if event["type"] == "message_delta")
    assert end["usage"]["luce"]["prefill"] == "sparse"


def test_several_choices_share_what_is_read(reader: Server) -> None:
    answer = ask(reader, CHAT, body_of(CHAT, f"Two choices. {LONG}", luce=SPARSE, n=2))
    assert [CODE in choice["message"]["content"] for choice in answer["choices"]] == [True, True]
    assert answer["usage"]["luce"]["prefill"] == "sparse"


def owed(server: Server) -> int:
    (status,) = server.call(lambda: server.supervisor.engine_status(30.0))
    return int(status["prefill_repairs"])


@pytest.mark.parametrize("repair", [pytest.param("on", marks=pytest.mark.full_only), "off"])  # on: the daemon's tests
async def test_the_next_turn(make_server: MakeServer, scorer: Path, repair: str) -> None:
    """On what was read later, which is all of it, or on the parts: either way little is new."""
    async with make_server(ctx=8192, prefill_scorer=scorer, prefill_repair=repair) as server:
        body = body_of(CHAT, LONG, luce=SPARSE)
        first = ask(server, CHAT, body)
        while owed(server) > 0:
            pass
        said = {"role": "assistant", "content": text_of(CHAT, first)}
        asked = {"role": "user", "content": f"Thank you. And again: {ASKED}"}
        answer = ask(server, CHAT, {**body, "messages": [*body["messages"], said, asked]})
        luce, n_prompt, n_cached = told_of(CHAT, answer)
        before, n_before, _ = told_of(CHAT, first)
        if repair == "on":
            assert (luce["prefill"], luce["read_tokens"]) == ("full", None)
            assert n_cached >= n_before
        else:
            assert luce["prefill"] == "sparse"
            assert before["read_tokens"] < luce["read_tokens"] <= before["read_tokens"] + n_prompt - n_before
            assert before["read_tokens"] - PAGE <= n_cached <= luce["read_tokens"]
        assert CODE in text_of(CHAT, answer)


async def test_a_server_that_reads_in_parts_by_itself(make_server: MakeServer, scorer: Path) -> None:
    options = {"ctx": 8192, "prefill_scorer": scorer, "prefill_repair": "off", "prefill_keep": 0.3}
    async with make_server(prefill="sparse", **options) as server:
        luce, n_prompt, _ = told_of(CHAT, ask(server, CHAT, body_of(CHAT, LONG)))
        assert 0.2 * n_prompt < luce["read_tokens"] < 0.4 * n_prompt
        short = f"All. {filler(100)}"
        for whole, header in ((body_of(CHAT, short), "full"), (body_of(CHAT, short, luce=FULL), "sparse")):
            luce, _, _ = told_of(CHAT, ask(server, CHAT, whole, {"X-Luce-Prefill": header}))
            assert (luce["prefill"], luce["read_tokens"]) == ("full", None)


async def test_a_prompt_with_images_is_read_whole(make_server: MakeServer, test_models: Path, scorer: Path) -> None:
    projector = test_models / "mmproj" / "llava.gguf"
    options = {"mmproj": projector, "prefill_scorer": scorer, "prefill": "sparse", "ctx": 8192}
    url = f"data:image/png;base64,{base64.b64encode(png(40, 30, 1)).decode()}"
    content = [{"type": "text", "text": filler(300)}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"max_tokens": 4}
    async with make_server(model=test_models / "qwen3.gguf", **options) as server:
        for fields in ({}, {"luce": SPARSE}, {"luce": {"prefill": "auto", "prefill_from": 1}}):
            seen = {"messages": [{"role": "user", "content": content}], **body, **fields}
            assert told_of(CHAT, ask(server, CHAT, seen))[0]["prefill"] == "full"
        unseen = {"messages": [{"role": "user", "content": f"Nothing to see. {filler(300)}"}], **body}
        assert told_of(CHAT, ask(server, CHAT, unseen))[0]["prefill"] == "sparse"


# What does not fit the context


@pytest.fixture(scope="module")
def narrow(tiny_model: Path, scorer: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"ctx": 1536, "pool": 6144, "prefill_scorer": scorer})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.mark.parametrize("path", IN_SHORT)
@pytest.mark.parametrize("prefill", ["sparse", pytest.param("auto", marks=pytest.mark.full_only)])
def test_a_prompt_longer_than_the_context_fits_by_its_parts(narrow: Server, path: str, prefill: str) -> None:
    body = body_of(path, f"{prefill} {path} {LONG}")
    error = refused(send(narrow, path, body))
    assert "1536" in error["message"]
    answer = ask(narrow, path, {**body, "luce": {"prefill": prefill}})
    assert CODE in text_of(path, answer)
    luce, n_prompt, _ = told_of(path, answer)
    assert luce["read_tokens"] < 1536 < n_prompt


@pytest.mark.parametrize("streams", [False, True])
def test_parts_that_do_not_fit_either_are_refused_as_any_prompt_is(narrow: Server, *, streams: bool) -> None:
    """All of the system's text is read."""
    rules = {"role": "system", "content": filler(300, 5)}
    body = body_of(CHAT, LONG, luce=SPARSE, stream=streams)
    error = refused(send(narrow, CHAT, {**body, "messages": [rules, *body["messages"]]}))
    assert error["code"] == "context_length_exceeded"


def test_nothing_is_cut_off_before_parts_are_read(narrow: Server) -> None:
    """The fact stands in what `truncation` would leave out first."""
    told = [
        {"role": "user", "content": f"{filler(90, 6)} {FACT} {filler(70, 7)}"},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": filler(90, 8)},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": ASKED},
    ]
    body = {"input": told, "truncation": "auto", "max_output_tokens": 24, "temperature": 0, "store": False}
    cut, whole = ask(narrow, RESPONSES, body), ask(narrow, RESPONSES, {**body, "luce": {**SPARSE, "prefill_keep": 0.4}})
    luce, n_whole, _ = told_of(RESPONSES, whole)
    assert told_of(RESPONSES, cut)[1] < 1536 < n_whole
    assert luce["prefill"] == "sparse"
    assert CODE not in text_of(RESPONSES, cut)
    assert CODE in text_of(RESPONSES, whole)


def test_an_answer_has_room_beside_the_parts(narrow: Server) -> None:
    body = body_of(CHAT, LONG, luce={"prefill": "sparse", "prefill_keep": 0.1}, ignore_eos=True)
    body["max_tokens"] = None
    usage = ask(narrow, CHAT, body)["usage"]
    assert usage["luce"]["read_tokens"] + usage["completion_tokens"] == 1536


# Conversations with tools


def conversation(n_calls: int) -> list[dict[str, Any]]:
    """Long results behind small calls, an answer to all of them, and a question."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Read what you are told to."},
        {"role": "user", "content": "Read them."},
    ]
    for number in range(n_calls):
        function = {"name": "read_file", "arguments": '{"path": "README.md"}'}
        call = {"id": f"call{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": f"File {number}.", "tool_calls": [call]})
        result = f"Number {number}. {filler(50, number)}"
        messages.append({"role": "tool", "tool_call_id": f"call{number}", "content": result})
    return [*messages, {"role": "assistant", "content": "I have."}, {"role": "user", "content": "What did you read?"}]


def test_calls_are_read_in_any_case(reader: Server, tiny_model: Path) -> None:
    messages = conversation(6)
    with TextModel(tiny_model) as model:
        rendered = Renderer(model).render(ChatPrompt(messages=messages, tools=[READ]), parts_from=0)
        kept = [model.detokenize(rendered.ids[begin:end]).decode() for begin, end in rendered.reading.keep]
        rendered.close()
    text = " ".join(kept)
    for number in range(6):
        assert f"File {number}." in text
        assert f"Number {number}." in text
    assert "What did you read?" in text
    n_kept = sum(end - begin for begin, end in rendered.reading.keep)
    # So small a share that nothing else is read but whole pages of these, and luced's own.
    body = {
        "messages": messages,
        "tools": [READ],
        "max_tokens": 4,
        "luce": {"prefill": "sparse", "prefill_keep": 0.001},
    }
    luce, n_prompt, _ = told_of(CHAT, ask(reader, CHAT, body))
    n_pages = 2 * len(rendered.reading.keep) + 5
    assert n_kept <= luce["read_tokens"] <= n_kept + n_pages * PAGE < n_prompt + n_pages * PAGE
    assert luce["read_tokens"] < n_prompt


def test_what_is_pinned_is_read(reader: Server) -> None:
    text = body_of(COMPLETIONS, f"Pinned. {LONG}", luce={"prefill": "sparse", "prefill_keep": 0.001})
    plain, _, _ = told_of(COMPLETIONS, ask(reader, COMPLETIONS, text))
    pinned, _, _ = told_of(
        COMPLETIONS, ask(reader, COMPLETIONS, {**text, "prompt": f"And {text['prompt']}", "pin": [[640, 1280]]})
    )
    assert pinned["read_tokens"] - plain["read_tokens"] >= 640 - PAGE


# What is refused


BAD: dict[str, Any] = {
    "luce.prefil": {"prefil": "sparse"},
    "luce.prefill": {"prefill": "some"},
    "luce.prefill_keep": {"prefill": "sparse", "prefill_keep": 0},
    "luce.prefill_from": {"prefill": "auto", "prefill_from": -1},
    "luce": "sparse",
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("param", BAD)
def test_what_makes_no_sense_is_refused_by_its_name(reader: Server, path: str, param: str) -> None:
    assert param in refused(send(reader, path, body_of(path, "Hello.", luce=BAD[param])))["message"]


@pytest.mark.parametrize("value", [1.5, -0.2, "0.2", True])
def test_a_share_is_above_0_and_at_most_1(reader: Server, value: Any) -> None:
    error = refused(send(reader, CHAT, body_of(CHAT, "Hello.", luce={"prefill_keep": value})))
    assert error["param"] == "luce.prefill_keep"


@pytest.mark.parametrize("path", PATHS)
def test_headers_are_refused_by_their_names(reader: Server, path: str) -> None:
    bad = {"X-Luce-Prefill": "some", "X-Luce-Prefill-Keep": "much"}
    for name, value in [*bad.items(), ("X-Luce-Prefill-Keep", "2"), ("X-Luce-Prefill-Keep", "nan")]:
        assert name in refused(send(reader, path, body_of(path, "Hello."), {name: value}))["message"]
    assert ask(reader, path, body_of(path, "Hello.", luce={"prefill": "full", "prefill_keep": 0.2}), bad)


@pytest.mark.parametrize("path", PATHS)
def test_without_a_small_model_it_is_refused_with_the_option(server: Server, path: str) -> None:
    for prefill in ("sparse", "auto"):
        told = refused(send(server, path, body_of(path, "Hello.", luce={"prefill": prefill})))
        assert "--prefill-scorer" in told["message"]
        assert (
            "--prefill-scorer"
            in refused(send(server, path, body_of(path, "Hi."), {"X-Luce-Prefill": prefill}))["message"]
        )
    luce, _, _ = told_of(
        path, ask(server, path, body_of(path, "Hello.", luce={"prefill": "full", "prefill_keep": 0.5}))
    )
    assert (luce["prefill"], luce["read_tokens"]) == ("full", None)
