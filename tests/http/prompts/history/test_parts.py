"""Parts of contents, of all dialects: texts, pictures in each spelling, and words or a refusal for the rest."""

from __future__ import annotations

from typing import Any

import pytest

from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.prompts.history.parts import dots, read_content, result_content
from luce.supervisor.http.prompts.message_images import image_of

ABC = "QUJD"
PICTURES = [
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ABC}"}},
    {"type": "image_url", "image_url": f"data:image/png;base64,{ABC}"},
    {"type": "input_image", "image_url": f"data:image/png;base64,{ABC}"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ABC}},
    {"type": "image", "data": ABC, "mimeType": "image/png"},
    {"type": "image", "image": f"data:image/png;base64,{ABC}"},
    {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{ABC}"},
]
NO_PICTURES = [
    ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, ".image_url", "fetches no URLs"),
    ({"type": "image_url"}, ".image_url", "URL is missing"),
    ({"type": "input_image", "file_id": "f"}, ".image_url", "URL is missing"),
    ({"type": "image", "source": {"type": "url", "url": "x"}}, ".source.type", "fetches no images"),
    ({"type": "image", "source": {"type": "base64", "data": "!"}}, ".source.data", "no base64"),
    ({"type": "image", "source": None}, ".source", "source is missing"),
    ({"type": "image", "data": "%"}, ".data", "no base64"),
    ({"type": "image_url", "image_url": "data:image/png,ABC"}, ".image_url", "is base64"),
]
OTHERS = [
    ({"type": "input_audio", "input_audio": {}}, "[audio left out: the model reads text only]"),
    ({"type": "input_file", "file_id": "f"}, "[file left out: the model reads text only]"),
    ({"type": "document", "source": {"type": "base64"}}, "[document left out: the model reads text only]"),
    ({"type": "of_tomorrow"}, "[of_tomorrow left out: the model reads text only]"),
    ({"type": "text"}, "[text left out: its text is missing]"),
]
VALUES = [
    ("x", "x"),
    (None, "null"),
    (5, "5"),
    ({"stdout": "x"}, '{"stdout": "x"}'),
    ({"type": 5}, '{"type": 5}'),
]
TEXTS = [
    ({"type": "text", "text": "a"}, "a"),
    ({"text": "a"}, "a"),
    ({"type": "output_text", "text": "a"}, "a"),
    ({"type": "refusal", "refusal": "no"}, "no"),
    ({"type": "resource", "resource": {"uri": "u", "text": "a"}}, "a"),
    ({"type": "tool_reference", "tool_name": "Bash"}, "[the tool Bash is available]"),
    ({"type": "document", "title": "T", "source": {"type": "text", "data": "a"}}, "T\na"),
    ({"type": "search_result", "title": "T", "source": "u", "content": [{"type": "text", "text": "a"}]}, "T\nu\na"),
]


def read(part: Any, *, is_new: bool = False, shows_images: bool = True) -> dict[str, Any]:
    content = read_content([part], "here", is_new=is_new, shows_images=shows_images)
    assert isinstance(content, list)
    return content[0]


def refused(part: Any, *, shows_images: bool = True) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(part, is_new=True, shows_images=shows_images)
    return caught.value


@pytest.mark.parametrize("part", PICTURES)
def test_pictures_in_each_spelling(part: Any) -> None:
    image = image_of(read(part, is_new=True))
    assert image is not None
    assert image.file() == b"ABC"


@pytest.mark.parametrize(("part", "below", "why"), NO_PICTURES)
def test_why_a_picture_cannot_be_read(part: Any, below: str, why: str) -> None:
    old, new = image_of(read(part)), image_of(read(part, is_new=True))
    assert old is not None
    assert new is not None
    assert old.words().startswith("[image left out: ")
    assert why in old.words()
    with pytest.raises(ApiError) as caught:
        new.words()
    assert (caught.value.param, caught.value.kind.status) == (f"here[0]{below}", 400)
    assert why in caught.value.text


@pytest.mark.parametrize("part", PICTURES)
def test_pictures_where_nobody_shows_any(part: Any) -> None:
    assert read(part, shows_images=False)["text"].startswith("[image left out: ")
    assert refused(part, shows_images=False).param == "here[0]"


@pytest.mark.parametrize(("part", "text"), [*OTHERS, *VALUES, *TEXTS])
def test_earlier_parts_are_texts_or_words(part: Any, text: str) -> None:
    assert read(part) == {"type": "text", "text": text}


@pytest.mark.parametrize("part", [part for part, _ in (*OTHERS, *VALUES[1:])])
def test_new_ones_are_refused_with_their_place(part: Any) -> None:
    error = refused(part)
    assert str(error.param).startswith("here[0]")
    assert str(error.param) in error.text


@pytest.mark.parametrize(("part", "text"), TEXTS)
def test_new_texts(part: Any, text: str) -> None:
    assert read(part, is_new=True)["text"] == text


def test_results() -> None:
    assert result_content(None, "r") == ""
    assert result_content("x", "r") == "x"
    assert result_content({"ok": True}, "r") == '{"ok": true}'
    assert result_content(["a", {"type": "text", "text": "b"}, {"type": "z"}], "r") == (
        "a\nb\n[z left out: the model reads text only]"
    )
    with_picture = result_content([{"type": "text", "text": "a"}, PICTURES[0]], "r", numbered=dots)
    assert isinstance(with_picture, list)
    assert image_of(with_picture[1])
    alone = result_content(PICTURES[-1], "r")
    assert isinstance(alone, list)
    assert image_of(alone[0])
