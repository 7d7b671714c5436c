"""Images through the three dialects, over a real engine with a projector: shown to the model, counted, found again in
memory; refused or put in words where there is no projector; never fetched."""

from __future__ import annotations

import base64
import json
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.asking import answered, ask
from tests.http.serving import Server
from tests.pictures import HOSTILE, png

FIRST, SECOND, THIRD = png(40, 30, 1), png(40, 30, 2), png(40, 30, 3)
N_ROWS = 100  # of each, by the projector


@pytest.fixture(scope="module")
def eyes(test_models: Path) -> Iterator[Server]:
    running = Server(test_models / "qwen3.gguf", {"mmproj": test_models / "mmproj" / "llava.gguf"})
    try:
        yield running.start()
    finally:
        running.stop()


def post(server: Server, path: str, body: Any, key: str = "") -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json", "x-api-key": key}
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode(), headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def data_url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def chat_body(*images: bytes | str, text: str = "What is this?", **fields: Any) -> dict[str, Any]:
    urls = [image if isinstance(image, str) else data_url(image) for image in images]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [{"type": "text", "text": text}, *parts]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 6, "temperature": 0, **fields}


def chat(server: Server, *images: bytes, **fields: Any) -> tuple[str, dict[str, Any]]:
    status, answer = post(server, "/v1/chat/completions", chat_body(*images, **fields))
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    return (message.get("reasoning_content") or "") + (message["content"] or ""), answer["usage"]


def n_cached(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def n_encoded(server: Server) -> int:
    (figures,) = server.call(lambda: server.supervisor.engine_status(120))
    return int(figures["images_encoded"])


def anthropic_image(image: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(image).decode()}
    return {"type": "image", "source": source}


def messages_body(*content: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 6, "temperature": 0, "messages": [{"role": "user", "content": list(content)}]}


# As Claude Code's Read tool sends a screenshot.
READ_A_PICTURE: list[dict[str, Any]] = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [anthropic_image(FIRST)]}]},
]


def test_the_same_image_comes_from_memory_and_another_answers_otherwise(eyes: Server) -> None:
    first, usage = chat(eyes, FIRST)
    again, usage_again = chat(eyes, FIRST)
    other, usage_other = chat(eyes, SECOND)
    assert first == again != other
    assert usage["prompt_tokens"] == usage_other["prompt_tokens"]
    assert n_cached(usage) == 0
    assert n_cached(usage_again) > N_ROWS > n_cached(usage_other)
    _, without = chat(eyes)
    assert usage["prompt_tokens"] - without["prompt_tokens"] == N_ROWS
    both, usage_both = chat(eyes, FIRST, SECOND)
    assert usage_both["prompt_tokens"] - without["prompt_tokens"] == 2 * N_ROWS
    assert chat(eyes, SECOND, FIRST)[0] != both


def test_a_conversation_goes_on_behind_an_image(eyes: Server) -> None:
    body = chat_body(FIRST, text="And this?")
    _, first = post(eyes, "/v1/chat/completions", body)
    answer = first["choices"][0]["message"]
    body["messages"] += [answer, {"role": "user", "content": "Are you sure?"}]
    status, second = post(eyes, "/v1/chat/completions", body)
    assert status == 200
    assert n_cached(second["usage"]) >= first["usage"]["prompt_tokens"]


def test_what_tools_show_is_seen(eyes: Server) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    asked = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    shown = {"role": "tool", "tool_call_id": "c1", "content": chat_body(FIRST)["messages"][0]["content"]}
    status, answer = post(eyes, "/v1/chat/completions", {"messages": [*asked, shown], "max_tokens": 2})
    assert status == 200
    assert answer["usage"]["prompt_tokens"] > N_ROWS


def test_messages(eyes: Server) -> None:
    text = {"type": "text", "text": "What is on it?"}
    status, plain = post(eyes, "/v1/messages/count_tokens", messages_body(text))
    assert status == 200
    status, counted = post(eyes, "/v1/messages/count_tokens", messages_body(anthropic_image(FIRST), text))
    assert status == 200
    assert counted["input_tokens"] - plain["input_tokens"] >= N_ROWS
    bodies = [messages_body(anthropic_image(image), text) for image in (FIRST, FIRST, SECOND)]
    answers = [post(eyes, "/v1/messages", body) for body in bodies]
    assert [status for status, _ in answers] == [200] * 3
    contents = [answer["content"] for _, answer in answers]
    assert contents[0] == contents[1] != contents[2]
    usage = answers[1][1]["usage"]
    assert usage["cache_read_input_tokens"] > N_ROWS
    body = messages_body(text)
    body["messages"] += READ_A_PICTURE
    status, read = post(eyes, "/v1/messages", body)
    assert status == 200
    assert read["usage"]["input_tokens"] + read["usage"]["cache_read_input_tokens"] > N_ROWS


def test_responses(eyes: Server) -> None:
    def ask(image: bytes) -> dict[str, Any]:
        content = [{"type": "input_text", "text": "Which?"}, {"type": "input_image", "image_url": data_url(image)}]
        body = {"input": [{"role": "user", "content": content}], "max_output_tokens": 6, "temperature": 0}
        status, answer = post(eyes, "/v1/responses", body)
        assert status == 200, answer
        return answer

    answers = [ask(image) for image in (FIRST, FIRST, SECOND)]
    assert answers[0]["output"][-1]["content"] == answers[1]["output"][-1]["content"]
    assert answers[1]["usage"]["input_tokens_details"]["cached_tokens"] > N_ROWS
    assert answers[2]["usage"]["input_tokens_details"]["cached_tokens"] < N_ROWS
    output = [{"type": "input_image", "image_url": data_url(FIRST)}]
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]
    status, answer = post(eyes, "/v1/responses", {"input": items, "max_output_tokens": 2})
    assert status == 200
    assert answer["usage"]["input_tokens"] > N_ROWS


def gif_without_colours() -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", 2, 2, 0, 0, 0) + b",\0\0\0\0\2\0\2\0\0\2\2\x4c\1\0;"


UNREADABLE: dict[str, str] = {
    **{name: f"data:image/png;base64,{base64.b64encode(file).decode()}" for name, file in HOSTILE.items()},
    "svg": "data:image/svg+xml;base64," + base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode(),
    "svg as text": "data:image/svg+xml,%3Csvg/%3E",
    "avif": "data:image/avif;base64," + base64.b64encode(b"\0\0\0\x20ftypavif" + bytes(40)).decode(),
    "gif without colours": "data:image/gif;base64," + base64.b64encode(gif_without_colours()).decode(),
    "an address": "https://example.com/a.png",
    "no base64": "data:image/png;base64,%%%",
    "no URL": "",
}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def block_of(url: str) -> dict[str, Any]:
    """As a client of Anthropic's API sends it."""
    head, comma, data = url.partition(";base64,")
    if not comma:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}}


def sessions(url: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """A picture that a tool gave, in each API; and as an error."""
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}

    def messages(**more: Any) -> dict[str, Any]:
        result = {"type": "tool_result", "tool_use_id": "c1", "content": [block_of(url)], **more}
        told = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        return {"max_tokens": 2, "temperature": 0, "messages": [{"role": "user", "content": "Look."}, *told]}

    chat = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "image_url", "image_url": {"url": url}}]},
    ]
    items = [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_image", "image_url": url}]},
    ]
    return {
        "chat": ("/v1/chat/completions", {"max_tokens": 2, "temperature": 0, "messages": chat}),
        "responses": ("/v1/responses", {"max_output_tokens": 2, "temperature": 0, "input": items}),
        "messages": ("/v1/messages", messages()),
        "an error": ("/v1/messages", messages(is_error=True)),
    }


def asked_again(body: dict[str, Any]) -> dict[str, Any]:
    name = "messages" if "messages" in body else "input"
    said = [{"role": "assistant", "content": "I see."}, {"role": "user", "content": "And now?"}]
    return {**body, name: [*body[name], *said]}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_session_goes_on_behind_a_picture_that_cannot_be_read(eyes: Server, name: str) -> None:
    """A client cannot help what its tools give: words stand in its place, the same in each turn, streamed and not."""
    for path, body in sessions(UNREADABLE[name]).values():
        answered(eyes.url, path, body)
        first = answered(eyes.url, path, body, streams=True)
        again = answered(eyes.url, path, asked_again(body), streams=True)
        assert again.n_cached >= first.n_prompt - 5


def test_the_words_say_why(eyes: Server) -> None:
    status, told = post(eyes, "/apply-template", sessions("https://example.com/a.png")["chat"][1])
    assert (status, "[image left out: this server fetches no URLs" in told["prompt"]) == (200, True)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", ["webp", "an address", "no base64"])
def test_a_picture_that_is_sent_now_is_refused_with_its_place(eyes: Server, name: str, streams: bool) -> None:
    url = UNREADABLE[name]
    hello = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]
    text, part = {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}
    item = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": url}]
    asked: list[tuple[str, str, list[Any], str]] = [
        ("/v1/chat/completions", "messages", [text, part], "messages[2].content[1]"),
        ("/v1/responses", "input", item, "input[2].content[1]"),
        ("/v1/messages", "messages", [text, block_of(url)], "messages.2.content.1"),
    ]
    for path, field, content, place in asked:
        limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        body = {"model": "m", limit: 2, field: [*hello, {"role": "user", "content": content}]}
        refused = ask(eyes.url, path, body, streams=streams)
        assert (refused.status, place in refused.error["message"]) == (400, True)
        if path != "/v1/messages":
            assert refused.error["param"].startswith(place)
        answered(eyes.url, path, asked_again(body), streams=streams)  # it was refused when it was sent


@pytest.mark.parametrize("streams", [False, True])
def test_base64_of_urls_and_without_padding_is_seen(eyes: Server, streams: bool) -> None:
    data = base64.urlsafe_b64encode(png(40, 31, 3)).decode().rstrip("=")
    for path, body in sessions(f"data:image/png;base64,{data}").values():
        assert answered(eyes.url, path, body, streams=streams).n_prompt > N_ROWS


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_are_no_images_are_refused(eyes: Server, name: str) -> None:
    status, answer = post(eyes, "/v1/chat/completions", chat_body(HOSTILE[name]))
    assert status == 400, answer
    status, answer = post(eyes, "/v1/messages", messages_body(anthropic_image(HOSTILE[name])))
    assert status == 400, answer


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a.png", "https://example.com/a.png", "file:///etc/passwd", "x"])
def test_no_url_is_fetched(eyes: Server, url: str) -> None:
    status, answer = post(eyes, "/v1/chat/completions", chat_body(url))
    assert (status, answer["error"]["param"]) == (400, "messages[0].content[1].image_url")
    assert "fetches no URLs" in answer["error"]["message"]
    block = {"type": "image", "source": {"type": "url", "url": url}}
    status, answer = post(eyes, "/v1/messages", messages_body(block))
    assert status == 400
    assert "fetches no images" in answer["error"]["message"]


def test_a_marker_in_a_message_is_text(eyes: Server) -> None:
    status, told = post(eyes, "/apply-template", chat_body(FIRST))
    assert status == 200
    prompt = told["prompt"]
    marker = prompt[prompt.index("<__image_") : prompt.index("__>") + 3]
    text, usage = chat(eyes, text=marker)
    assert text
    assert 0 < usage["prompt_tokens"] < 200


def test_without_a_projector_images_are_refused_or_told_of(server: Server) -> None:
    status, answer = post(server, "/v1/chat/completions", chat_body(FIRST))
    assert (status, answer["error"]["param"]) == (400, "messages[0].content[1]")
    assert "--mmproj" in answer["error"]["message"]
    status, answer = post(server, "/v1/messages", messages_body(anthropic_image(FIRST)))
    assert status == 400
    assert "--mmproj" in answer["error"]["message"]
    items = [{"role": "user", "content": [{"type": "input_image", "image_url": data_url(FIRST)}]}]
    status, answer = post(server, "/v1/responses", {"input": items})
    assert status == 400
    assert "--mmproj" in answer["error"]["message"]
    for path, body in sessions(data_url(FIRST)).values():
        for streams in (False, True):
            answered(server.url, path, body, streams=streams)
    status, told = post(server, "/apply-template", sessions(data_url(FIRST))["chat"][1])
    assert (status, "[image left out: the model reads text only]" in told["prompt"]) == (200, True)


def test_an_image_is_encoded_once_behind_whatever_text(eyes: Server) -> None:
    before = n_encoded(eyes)
    for text in ("Is it large?", "Is it red?"):
        assert post(eyes, "/v1/chat/completions", chat_body(THIRD, text=text))[0] == 200
    assert n_encoded(eyes) - before == 1


def test_with_isolation_it_is_encoded_once_for_each_key(test_models: Path) -> None:
    """Else the encoder, which takes longer than all else, would tell what another key has sent."""
    options = {"mmproj": test_models / "mmproj" / "llava.gguf", "api_keys": ("a", "b"), "cache_isolation": "key"}
    running = Server(test_models / "qwen3.gguf", options)
    try:
        server = running.start()
        contents: list[Any] = []
        for key, n_then in (("a", 1), ("b", 2), ("a", 2), ("b", 2)):
            text = f"Is it {len(contents) // 2}?"
            status, answer = post(server, "/v1/chat/completions", chat_body(THIRD, text=text), key)
            assert status == 200, answer
            assert n_encoded(server) == n_then
            contents.append(answer["choices"][0]["message"])
        assert contents[0] == contents[1], "and it is the same image"
        assert contents[2] == contents[3]
    finally:
        running.stop()
