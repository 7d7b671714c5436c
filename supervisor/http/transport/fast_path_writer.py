"""StreamOutlet: an answer's events in a dialect's bytes, to a client that has read all before them; and hand_on, which
takes the other way where it has not.

Must not know what the events say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from luce.supervisor.http.answering.answer_events import AnswerEvent
from luce.supervisor.http.app_context import Answering
from luce.supervisor.http.transport.sse import EventStream


class StreamOutlet:
    """Implements context.Outlet."""

    def __init__(self, stream: EventStream, encode: Callable[[AnswerEvent], bytes]) -> None:
        """`encode`: the bytes of whole events of the stream, or none."""
        self._stream = stream
        self._encode = encode
        self.is_clear = stream.is_clear

    def show(self, events: Sequence[AnswerEvent]) -> None:
        if data := b"".join(map(self._encode, events)):
            self._stream.send_now(data)


async def hand_on(answering: Answering, stream: EventStream, encode: Callable[[AnswerEvent], bytes]) -> None:
    """The whole answer. Tokens go out in the turn of the loop that brings them while the client keeps up; while it does
    not, the caller's task waits for it, and what comes meanwhile is joined. Raises ApiError."""
    async for event in answering.events(StreamOutlet(stream, encode)):
        if data := encode(event):
            await stream.send_bytes(data)
