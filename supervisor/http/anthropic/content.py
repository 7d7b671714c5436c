"""Content blocks of Anthropic's messages as texts: which can be read, which are noted, which are refused.

Images are handed on as such. Where the model reads none, and with other media, what a person says is refused; inside
tool results a note takes its place: an agent that has looked at a picture would otherwise get an error for the rest of
its conversation. Blocks of servers' own tools, and kinds nobody
here knows, are left out of what an assistant or the client itself said.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from typing import Any

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.message_images import NO_PROJECTOR, MessageImage, image_part

_log = logging.getLogger("luce.http.anthropic")

Block = Mapping[str, Any]

_MEDIA = {"image": "image", "document": "document", "container_upload": "file", "audio": "audio", "video": "video"}
_MAX_NOTED = 64
_noted: set[tuple[str, str]] = set()


def invalid(path: str, text: str) -> ApiError:
    return ApiError(ErrorKind.INVALID, "invalid_request", f"{path}: {text}", param=path)


def log_left_out(what: str, kind: str) -> None:
    """Says once for each kind what is not handed to the model."""
    key = (what, kind[:64])
    if key not in _noted and len(_noted) < _MAX_NOTED:
        _noted.add(key)
        _log.info("%s of type %r are left out: the model cannot use them", what, key[1])


def string_field(block: Block, name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid(f"{path}.{name}", "Field required" if value is None else "Input should be a valid string")
    return value


def type_of(block: Block, path: str) -> str:
    return string_field(block, "type", path)


def user_text(block: Block, path: str) -> str:
    """What a person said or showed, as text. Raises ApiError."""
    kind = type_of(block, path)
    text = _readable_text(block, kind, path)
    if text is not None:
        return text
    if kind in _MEDIA:
        raise invalid(path, f"{_MEDIA[kind]} input is not supported: the model reads text only")
    raise invalid(f"{path}.type", f"Content blocks of type {kind[:64]!r} are not supported in user messages")


def user_part(block: Block, path: str) -> dict[str, Any] | None:
    """The same as a part of a message's content; None: nothing. Raises ApiError."""
    if type_of(block, path) == "image":
        told = f"image input is not supported: the model reads text only {NO_PROJECTOR}"
        return image_part(_image(block, path, invalid(path, told)))
    text = user_text(block, path)
    return {"type": "text", "text": text} if text else None


def result_content(content: object, path: str) -> str | list[dict[str, Any]]:
    """What a tool gave: a text, or parts where there are images. Raises ApiError."""
    if not isinstance(content, list) or not any(isinstance(block, dict) and _is_image(block) for block in content):
        return result_text(content, path)
    parts = []
    for index, block in enumerate(content):
        at = f"{path}.{index}"
        if not isinstance(block, dict):
            raise invalid(at, "Input should be a content block")
        if _is_image(block):
            note = f"[{_MEDIA['image']} left out: the model reads text only]"
            parts.append(image_part(_image(block, at, note)))
        else:
            parts.append({"type": "text", "text": _result_block_text(block, at)})
    return parts


def _is_image(block: Block) -> bool:
    return block.get("type") == "image"


def _image(block: Block, path: str, otherwise: str | ApiError) -> MessageImage:
    """What is wrong with it matters only to a model that reads images."""
    try:
        return MessageImage(_image_file(block, path), otherwise)
    except ApiError as error:
        return MessageImage(error, otherwise)


def _image_file(block: Block, path: str) -> bytes:
    source = block.get("source")
    if not isinstance(source, dict):
        raise invalid(f"{path}.source", "Field required")
    at = f"{path}.source"
    if (kind := type_of(source, at)) != "base64":
        raise invalid(f"{at}.type", f"{kind[:64]!r}: this server fetches no images; send their base64")
    try:
        return base64.b64decode("".join(string_field(source, "data", at).split()), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"{at}.data", "Input should be base64") from None


def result_text(content: object, path: str) -> str:
    """What a tool gave, as text. Raises ApiError."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(path, "Input should be a string or a list of content blocks")
    texts = []
    for index, block in enumerate(content):
        at = f"{path}.{index}"
        if not isinstance(block, dict):
            raise invalid(at, "Input should be a content block")
        texts.append(_result_block_text(block, at))
    return "\n".join(texts)


def _result_block_text(block: Block, path: str) -> str:
    kind = type_of(block, path)
    text = _readable_text(block, kind, path)
    if text is not None:
        return text
    if kind == "tool_reference":
        return f"[the tool {string_field(block, 'tool_name', path)} is available]"
    log_left_out("blocks in tool results", kind)
    return f"[{_MEDIA.get(kind, kind[:64])} left out: the model reads text only]"


def _readable_text(block: Block, kind: str, path: str) -> str | None:
    match kind:
        case "text":
            return string_field(block, "text", path)
        case "search_result":
            body = _text_blocks(block.get("content"), f"{path}.content")
            return _joined(string_field(block, "title", path), string_field(block, "source", path), body)
        case "document":
            return _document_text(block, path)
        case _:
            return None


def _document_text(block: Block, path: str) -> str | None:
    """The text of a document that comes as text; None for a PDF or a file's name."""
    source = block.get("source")
    if not isinstance(source, dict):
        raise invalid(f"{path}.source", "Field required")
    at = f"{path}.source"
    match type_of(source, at):
        case "text":
            body: str | None = string_field(source, "data", at)
        case "content":
            content = source.get("content")
            body = content if isinstance(content, str) else _text_blocks(content, f"{at}.content")
        case _:
            body = None
    if body is None:
        return None
    return _joined(*(value for name in ("title", "context") if isinstance(value := block.get(name), str)), body)


def _text_blocks(content: object, path: str) -> str:
    if not isinstance(content, list):
        raise invalid(path, "Input should be a list of text blocks")
    texts = []
    for index, block in enumerate(content):
        at = f"{path}.{index}"
        if not isinstance(block, dict):
            raise invalid(at, "Input should be a text block")
        if (kind := type_of(block, at)) in _MEDIA:
            raise invalid(at, f"{_MEDIA[kind]} input is not supported: the model reads text only")
        texts.append(string_field(block, "text", at))
    return "\n".join(texts)


def _joined(*texts: str) -> str:
    return "\n".join(text for text in texts if text)
