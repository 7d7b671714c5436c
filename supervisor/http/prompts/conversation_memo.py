"""ConversationMemo: what was made of the messages of earlier requests. A turn of a conversation begins with those of
the turn before, so only what is new in it has to be read. Knows nothing of what is made of them.
"""

from __future__ import annotations

import marshal
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import count
from typing import Any, Generic, TypeVar

from luce.supervisor.http.prompts.message_images import image_of

V = TypeVar("V")

_ENTRY_BYTES = 2000  # beside what a message says, about
_COPIES = 4  # of what it says: the key, the message, and what the template and the digest are given of it

Place = tuple[int, bytes]
"""A message: the number of the one before it, and its own key."""


class ConversationMemo(Generic[V]):
    """The latest used, up to so many bytes. Any thread may use it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[Place, tuple[int, V]] = OrderedDict()
        self._numbers = count(1)
        self._lock = threading.Lock()
        self.n_bytes = 0

    def get(self, place: Place) -> tuple[int, V] | None:
        """A number that no other message has, for those behind it, and what was made of this one."""
        return self._known.get(place)

    def put(self, place: Place, value: V) -> int:
        """In place of what was made of it before, and of all messages behind it."""
        with self._lock:
            if place not in self._known:
                self.n_bytes += _n_bytes(place)
            number = next(self._numbers)
            self._known[place] = (number, value)
            return number

    def use(self, conversation: Iterable[Place]) -> None:
        """Its messages, the latest first: one leaves after those behind it, which are found through it."""
        with self._lock:
            for place in conversation:
                if place in self._known:
                    self._known.move_to_end(place)
            while self.n_bytes > self._max_bytes:
                place, _ = self._known.popitem(last=False)
                self.n_bytes -= _n_bytes(place)


class SentMessage(dict[str, Any]):
    """A message that nobody changes any more: its key is made once, however often it comes."""

    @cached_property
    def key(self) -> bytes | None:
        return _exact_key(dict(self))


def exact_key(message: Mapping[str, Any]) -> bytes | None:
    """Equal only for messages in which nothing differs, be it the order of keys or `1` and `true`, which are equal to
    Python. None: there is none for such a message."""
    return message.key if isinstance(message, SentMessage) else _exact_key(message)


def _exact_key(message: Mapping[str, Any]) -> bytes | None:
    content = message.get("content")
    if isinstance(content, list) and any(image_of(part) for part in content):
        named = [part if (image := image_of(part)) is None else ("image", image.name) for part in content]
        message = {**message, "content": named}
    return exact_bytes(message)


def exact_bytes(value: Any) -> bytes | None:
    try:
        return marshal.dumps(value, 2)  # later versions write what is the same object twice as a reference
    except ValueError:
        return None


def _n_bytes(place: Place) -> int:
    return _COPIES * len(place[1]) + _ENTRY_BYTES
