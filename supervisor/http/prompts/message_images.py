"""MessageImage: an image within a message, as a part of its content beside texts; and what becomes of it where the
model reads none. Knows messages in ChatPrompt's shape; no dialect, no engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from luce.supervisor.http.errors import ApiError

Message = Mapping[str, Any]

NO_PROJECTOR = "(The server has to be started with the model's --mmproj FILE.)"


class MessageImage:
    """`data`: its file, or why there is none; `otherwise`: what a model without images is shown in its place, or why
    the request is refused then."""

    def __init__(self, data: bytes | ApiError, otherwise: str | ApiError) -> None:
        self._data = data
        self.otherwise = otherwise

    def file(self) -> bytes:
        """Raises ApiError."""
        if isinstance(self._data, ApiError):
            raise self._data
        return self._data

    @cached_property
    def name(self) -> str:
        """By content."""
        return hashlib.sha256(self.file()).hexdigest()

    def __repr__(self) -> str:
        return "an image"


def image_part(image: MessageImage) -> dict[str, Any]:
    return {"type": "image", "image": image}


def image_of(part: Any) -> MessageImage | None:
    """What a part of a message's content is, if it is an image."""
    image = part.get("image") if isinstance(part, Mapping) and part.get("type") == "image" else None
    return image if isinstance(image, MessageImage) else None


def images_of(messages: Sequence[Message]) -> Iterator[MessageImage]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            yield from (image for part in content if (image := image_of(part)) is not None)


def without_images(messages: Sequence[Message]) -> Sequence[Message]:
    """The same for a model that reads none. Raises ApiError."""
    if not any(True for _ in images_of(messages)):
        return messages
    return [_without_images(message) for message in messages]


def _without_images(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_as_text(part) for part in content]}


def _as_text(part: Any) -> Any:
    image = image_of(part)
    if image is None:
        return part
    if isinstance(image.otherwise, ApiError):
        raise image.otherwise
    return {"type": "text", "text": image.otherwise}
