"""MessageImage: an image within a message, as a part of its content beside texts; and what stands in its place where it
cannot be read. Knows messages in ChatPrompt's shape; no dialect, no engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.notes import say_once

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a part of a message cannot be shown to the model."""

    what: str
    """What it is."""
    why: str
    """For the model, and for the client where there is nothing in `told`."""
    told: str = ""
    below: str = ""
    """Where within the part the fault is."""
    code: str = "invalid_value"

    def words(self, place: str, *, is_new: bool) -> str:
        """What stands in its place. Raises ApiError where the client sends it now."""
        if is_new:
            param = place + self.below
            raise ApiError(ErrorKind.INVALID, self.code, f"{param}: {self.told or self.why}", param=param)
        say_once(f"{self.what} in earlier messages and tool results: words stand in its place ({self.why})")
        return f"[{self.what} left out: {self.why}]"


NO_PROJECTOR = Unreadable(
    "image",
    "the model reads text only",
    "image input is not supported: the model reads text only (The server has to be started with its --mmproj FILE.)",
    code="unsupported_content",
)


class MessageImage:
    """`data`: its file, or why there is none; `place`: where the request has it; `is_new`: the client sends it now, not
    only again."""

    def __init__(self, data: bytes | Unreadable, place: str = "", *, is_new: bool = False) -> None:
        self._data = data
        self._place = place
        self._is_new = is_new

    @property
    def is_readable(self) -> bool:
        return not isinstance(self._data, Unreadable)

    def file(self) -> bytes:
        """REQUIRES: it is readable."""
        assert not isinstance(self._data, Unreadable)
        return self._data

    def words(self, fault: Unreadable | None = None) -> str:
        """What stands in its place, for this reason or its own. Raises ApiError where the client sends it now."""
        fault = self._data if fault is None and isinstance(self._data, Unreadable) else fault
        assert fault is not None, "it can be read"
        return fault.words(self._place, is_new=self._is_new)

    @cached_property
    def name(self) -> str:
        """By content."""
        return self._data.why if isinstance(self._data, Unreadable) else hashlib.sha256(self._data).hexdigest()

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


def without_images(messages: Sequence[Message], faults: Mapping[str, Unreadable] | None = None) -> Sequence[Message]:
    """With words in place of the images that cannot be read. `faults`: what an engine says, by their names; None: the
    model reads none. Raises ApiError."""
    if all(image.is_readable and faults is not None and image.name not in faults for image in images_of(messages)):
        return messages
    return [_without_images(message, faults) for message in messages]


def _without_images(message: Message, faults: Mapping[str, Unreadable] | None) -> Message:
    content = message.get("content")
    if not isinstance(content, list) or not any(map(image_of, content)):
        return message
    return {**message, "content": [_as_text(part, faults) for part in content]}


def _as_text(part: Any, faults: Mapping[str, Unreadable] | None) -> Any:
    image = image_of(part)
    if image is None:
        return part
    fault = NO_PROJECTOR if faults is None else faults.get(image.name)
    if image.is_readable and fault is None:
        return part
    return {"type": "text", "text": image.words(fault)}
