"""Conversations: what was made of the messages of earlier requests, one record each. A turn of a conversation begins
with those of the turn before, so only what is new in it has to be read. Knows nothing of what is made of them.
"""

from __future__ import annotations

import marshal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import ne
from typing import Any, Generic, TypeVar

from luce.supervisor.http.prompts.message_images import image_of
from luce.supervisor.http.prompts.prompt_marks import PromptHead

V = TypeVar("V")

_ENTRY_BYTES = 2000  # beside what a message says, about
_COPIES = 6  # of what it says: the key, the message, and what the text library reads of it, with what templates get
_MAX_CONVERSATIONS = 256  # each is looked at for the next one


@dataclass(slots=True, eq=False)
class Conversation(Generic[V]):
    owner: bytes
    keys: Sequence[bytes]
    values: Sequence[V]
    head: PromptHead | None = None
    """The latest prompt's. It says itself of which text it is, so any thread may set it."""

    @property
    def n_bytes(self) -> int:
        return sum(map(len, self.keys)) * _COPIES + len(self.keys) * _ENTRY_BYTES

    def n_same(self, keys: Sequence[bytes]) -> int:
        n = min(len(keys), len(self.keys))
        return next((at for at, differs in enumerate(map(ne, keys, self.keys)) if differs), n)


class Conversations(Generic[V]):
    """The latest used, up to so many bytes. Any thread may use it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._known: list[Conversation[V]] = []
        self._lock = threading.Lock()
        self.n_bytes = 0

    def find(self, owner: bytes, keys: Sequence[bytes]) -> tuple[Conversation[V] | None, int]:
        """The one of the owner's that begins with most of these messages, and with how many."""
        with self._lock:
            known = [each for each in reversed(self._known) if each.owner == owner]
        best = max(known, key=lambda each: each.n_same(keys), default=None)
        return best, 0 if best is None else best.n_same(keys)

    def keep(
        self,
        owner: bytes,
        keys: Sequence[bytes],
        values: Sequence[V],
        before: Conversation[V] | None = None,
        *,
        is_next: bool = False,
    ) -> Conversation[V]:
        """`before`: the one that was found; `is_next`: that one goes on, so that this one takes its place."""
        conversation = Conversation(owner, keys, values, None if before is None else before.head)
        with self._lock:
            if is_next and before in self._known:
                self._known.remove(before)
                self.n_bytes -= before.n_bytes
            self._known.append(conversation)
            self.n_bytes += conversation.n_bytes
            while self.n_bytes > self._max_bytes or len(self._known) > _MAX_CONVERSATIONS:
                self.n_bytes -= self._known.pop(0).n_bytes
        return conversation


def exact_key(message: Mapping[str, Any]) -> bytes | None:
    """Equal only for messages in which nothing differs, be it the order of keys or `1` and `true`, which are equal to
    Python. None: there is none for such a message."""
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
