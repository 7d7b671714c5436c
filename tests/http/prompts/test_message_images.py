"""Images in messages as each dialect has them: their files, or why there are none, and what models without get."""

from __future__ import annotations

from typing import Any

import pytest

from luce.supervisor.http.anthropic.conversion import request_of_messages
from luce.supervisor.http.anthropic.shapes import MessagesRequest
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.openai_chat.messages import read_messages
from luce.supervisor.http.openai_responses.items import messages_of
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.message_images import MessageImage, images_of, without_images
from luce.supervisor.http.prompts.message_normalizer import normalise_messages
from luce.supervisor.http.transport.body import check
from luce.supervisor.text.image_markers import image_marker, images_in

PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
READ: list[dict[str, Any]] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {}}]},
]


def chat_messages(messages: Any) -> list[dict[str, Any]]:
    return read_messages(messages)


def messages(*given: dict[str, Any]) -> list[dict[str, Any]]:
    asked = request_of_messages(check({"model": "m", "max_tokens": 10, "messages": list(given)}, MessagesRequest))
    assert isinstance(asked.prompt, ChatPrompt)
    return [dict(message) for message in asked.prompt.messages]


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **more}


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "https://example.com/a.png", "data:image/png;base64,QUJD", 5, None]
)
def test_images_are_refused_where_the_model_reads_none(url: Any) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    made = chat_messages(messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, part]}])
    with pytest.raises(ApiError) as refusal:
        without_images(made)
    assert refusal.value.code == "unsupported_content"
    assert refusal.value.param == "messages[0].content[1]"
    assert "image input is not supported" in refusal.value.text
    assert "--mmproj" in refusal.value.text


def test_images_are_data_urls() -> None:
    def image_at(url: Any) -> MessageImage:
        part = {"type": "image_url", "image_url": url}
        (image,) = images_of(chat_messages(messages=[{"role": "user", "content": [part]}]))
        return image

    sound: list[Any] = ["data:image/png;base64,QUJD", {"url": "DATA:image/png;x=y;BASE64,QUJD", "detail": "low"}]
    for url in sound:
        assert image_at(url).file() == b"ABC"
    for url in ("http://a/b.png", "data:image/png,ABC", "data:image/png;base64,!", "", None, 5, {}, {"url": ["x"]}):
        with pytest.raises(ApiError) as refusal:
            image_at(url).words()
        assert refusal.value.param == "messages[0].content[0].image_url"


@pytest.mark.parametrize("text", ["__8-", "//8+", "_-8", "QUI", "QUI=", "Q UJ\nD"])
def test_base64_of_urls_and_without_padding_is_read(text: str) -> None:
    part = {"type": "image_url", "image_url": f"data:image/png;base64,{text}"}
    (image,) = images_of(chat_messages(messages=[{"role": "user", "content": [part]}]))
    assert image.file()


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_images_of_nobody_who_sees_are_refused(role: str) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    with pytest.raises(ApiError) as refusal:
        chat_messages(messages=[{"role": role, "content": [part]}])
    assert refusal.value.code == "unsupported_content"


def test_a_picture_that_a_tool_gave_is_handed_on() -> None:
    made = messages(*READ, {"role": "user", "content": [result([{"type": "text", "text": "a"}, PICTURE])]})
    (image,) = images_of(made)
    assert image.file() == b"\0"
    failed = messages(*READ, {"role": "user", "content": [result([PICTURE], is_error=True)]})
    assert failed[-1]["content"][0] == {"type": "text", "text": "Error:"}


@pytest.mark.parametrize(
    ("source", "param"),
    [
        ({"type": "url", "url": "https://example.com/a.png"}, "messages.0.content.0.source.type"),
        ({"type": "file", "file_id": "f"}, "messages.0.content.0.source.type"),
        ({"type": "base64", "media_type": "image/png", "data": "!"}, "messages.0.content.0.source.data"),
        ({"type": "base64"}, "messages.0.content.0.source.data"),
        (None, "messages.0.content.0.source"),
    ],
)
def test_pictures_are_base64(source: Any, param: str) -> None:
    (image,) = images_of(messages({"role": "user", "content": [{"type": "image", "source": source}]}))
    with pytest.raises(ApiError) as error:
        image.words()
    assert error.value.param == param


def test_a_picture_from_a_person_is_refused_where_the_model_reads_none() -> None:
    made = messages({"role": "user", "content": [{"type": "text", "text": "see"}, PICTURE]})
    with pytest.raises(ApiError) as error:
        without_images(made)
    assert "image input is not supported" in error.value.text
    assert error.value.param == "messages.0.content.1"


def test_responses_have_images_in_messages_and_in_outputs() -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,QUJD"}
    items = [{"role": "user", "content": [{"type": "input_text", "text": "a"}, part]}]
    items += [{"type": "function_call_output", "call_id": "c", "output": [part]}]
    made = messages_of(items)
    assert [image.file() for image in images_of(made)] == [b"ABC", b"ABC"]
    left_out = {"type": "text", "text": "[image left out: the model reads text only]"}
    assert [message["content"][-1] for message in without_images(made)] == [left_out] * 2
    with pytest.raises(ApiError) as error:
        without_images(messages_of(items[:1]))
    assert error.value.param == "input[0].content[1]"


def test_markers_stand_between_texts_without_a_line_of_their_own() -> None:
    image = {"type": "image", "image": MessageImage(b"ABC")}
    texts = [{"type": "text", "text": text} for text in "abc"]
    (made,) = normalise_messages([{"role": "user", "content": [texts[0], image, texts[1], texts[2], image, image]}])
    marker = image_marker(MessageImage(b"ABC").name)
    assert made["content"] == f"a{marker}b\nc{marker}{marker}"
    assert images_in(made["content"]) == [MessageImage(b"ABC").name] * 3
