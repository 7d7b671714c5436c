"""Parts of messages' contents, of all dialects: as texts and images, or why the model cannot have them.

Where a client sends such a part now, it is refused with its place. In earlier messages and in results of tools words
stand in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luce.supervisor.http.prompts.history.pictures import KINDS, picture_of
from luce.supervisor.http.prompts.message_images import Unreadable, image_of, image_part

Part = dict[str, Any]
Content = str | list[Part]
Numbered = Callable[[str, int], str]
"""The place of an element of a list, by the list's own."""

NO_IMAGES_HERE = Unreadable(
    "image",
    "only a user's message or a tool's result shows images",
    "image input is not supported here: only users and tools show images",
    code="unsupported_content",
)
_NO_CONTENT = Unreadable("content", "it must be a text or a list of parts", code="invalid_type")
_TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
_NAMES = {
    "input_audio": "audio",
    "audio_url": "audio",
    "output_audio": "audio",
    "video_url": "video",
    "input_video": "video",
    "input_file": "file",
    "container_upload": "file",
}


def brackets(place: str, index: int) -> str:
    return f"{place}[{index}]"


def dots(place: str, index: int) -> str:
    return f"{place}.{index}"


def read_content(
    content: Any, place: str, *, is_new: bool, shows_images: bool = False, numbered: Numbered = brackets
) -> Content:
    """A text, or texts and images. `is_new`: the client sends it now. Raises ApiError, if it is new."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict) and not is_new and _kind_of(content) in (*KINDS, *_TEXTS):
        content = [content]
    if isinstance(content, list):
        return [
            read_part(part, numbered(place, index), is_new=is_new, shows_images=shows_images)
            for index, part in enumerate(content)
        ]
    return _NO_CONTENT.words(place, is_new=True) if is_new else json_text(content)


def result_content(content: Any, place: str, *, numbered: Numbered = brackets) -> Content:
    """What a tool gave. The client cannot help what it is."""
    read = read_content(content, place, is_new=False, shows_images=True, numbered=numbered)
    return read if isinstance(read, str) or any(map(image_of, read)) else joined(read)


def joined(parts: Sequence[Part]) -> str:
    """Of texts."""
    return "\n".join(part["text"] for part in parts)


def read_part(part: Any, place: str, *, is_new: bool, shows_images: bool) -> Part:
    """Raises ApiError, if it is new."""
    if isinstance(part, dict) and _kind_of(part) in KINDS and shows_images:
        return image_part(picture_of(part, place, is_new=is_new))
    text = _text_of(part)
    if isinstance(text, Unreadable):
        is_value = not is_new and _kind_of(part) is None
        text = json_text(part) if is_value else text.words(place, is_new=is_new)
    return {"type": "text", "text": text}


def json_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "…"


def _kind_of(part: Any) -> str | None:
    if not isinstance(part, dict):
        return None
    kind = "text" if "type" not in part and "text" in part else part.get("type")
    return kind if isinstance(kind, str) else None


def _text_of(part: Any) -> str | Unreadable:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return Unreadable("part", "a part must be an object", code="invalid_type")
    kind = _kind_of(part)
    if kind is None:
        return Unreadable("part", "its type is missing", below=".type", code="missing_required_parameter")
    if (key := _TEXTS.get(kind)) is not None:
        text = part.get(key)
        return text if isinstance(text, str) else _missing(kind, key)
    match kind:
        case "document":
            text = _document(part)
        case "search_result":
            body = _texts(part.get("content"))
            text = _lines(part.get("title"), part.get("source"), body) if body is not None else None
        case "tool_reference" if isinstance(name := part.get("tool_name"), str):
            text = f"[the tool {name} is available]"
        case "resource" if isinstance(resource := part.get("resource"), dict):  # MCP's
            text = resource.get("text")
        case _:
            text = None
    return text if isinstance(text, str) else _unsupported(kind)


def _unsupported(kind: str) -> Unreadable:
    if kind in KINDS:
        return NO_IMAGES_HERE
    name = _NAMES.get(kind, kind[:64])
    told = f"{name} input is not supported: the model reads text only"
    return Unreadable(name, "the model reads text only", told, code="unsupported_content")


def _missing(kind: str, key: str) -> Unreadable:
    return Unreadable(kind, f"its {key} is missing", below=f".{key}", code="invalid_type")


def _document(part: Mapping[str, Any]) -> str | None:
    """Of one that comes as text; None for a PDF, or the name of a file."""
    source = part.get("source")
    if not isinstance(source, dict):
        return None
    match source.get("type"):
        case "text":
            body = source.get("data")
        case "content":
            body = _texts(source.get("content"))
        case _:
            body = None
    return _lines(part.get("title"), part.get("context"), body) if isinstance(body, str) else None


def _texts(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [_text_of(block) for block in content]
    return "\n".join(text if isinstance(text, str) else text.words("", is_new=False) for text in texts)


def _lines(*texts: Any) -> str:
    return "\n".join(text for text in texts if isinstance(text, str) and text)
