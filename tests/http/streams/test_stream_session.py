"""What is kept of a stream, for how long, and within which bounds."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.http.streams.stream_session import SESSION_BYTES, OffsetLostError, StreamSession, StreamSessions

EVENTS = st.lists(st.sampled_from([b"data: a\n\n", b"event: x\ndata: b\n\n", b": alive\n\n"]), max_size=8)


def session(name: str = "a", client: str = "me") -> StreamSession:
    return StreamSession(client, name, lambda: b": alive\n\n")


def sessions(max_bytes: int = 1000, kept_s: float = 60) -> StreamSessions:
    return StreamSessions(max_bytes=max_bytes, kept_s=kept_s, keep_alive_s=5)


async def whole(stream: StreamSession, begin: int = 0, most: int = 7) -> bytes:
    found = b""
    async with asyncio.timeout(60):
        while piece := await stream.read(begin + len(found), most):
            found += piece
    return found


@given(EVENTS, st.integers(0, 200))
def test_from_any_byte_and_behind_any_event_the_rest_is_the_same(events: list[bytes], begin: int) -> None:
    async def check() -> None:
        stream = session()
        for event in events:
            stream.write(event)
        stream.end()
        text = await whole(stream)
        assert len(text) == stream.n_bytes
        at = min(begin, len(text))
        assert await whole(stream, at) == text[at:]
        for event in text.split(b"\n\n"):
            if event.startswith(b"id: "):
                place = int(event[4 : event.index(b"\n")])
                assert text[place:].startswith(event)
                assert await whole(stream, stream.behind(place)) == text[place + len(event) + 2 :]

    asyncio.run(check())


async def test_who_reads_waits_for_more() -> None:
    stream = session()
    reading = [asyncio.create_task(whole(stream)) for _ in range(3)]
    for number in range(5):
        await asyncio.sleep(0)
        stream.write(b"data: %d\n\n" % number)
    stream.end()
    texts = await asyncio.gather(*reading)
    assert texts[0].count(b"data: ") == 5
    assert len(set(texts)) == 1


async def test_the_beginning_of_a_long_stream_goes() -> None:
    stream = session()
    for _ in range(5):
        stream.write(b"data: " + b"x" * (SESSION_BYTES // 4) + b"\n\n")
    assert stream.n_kept == SESSION_BYTES
    with pytest.raises(OffsetLostError):
        await stream.read(0, 10)
    with pytest.raises(OffsetLostError):
        stream.behind(0)
    with pytest.raises(OffsetLostError):
        await stream.read(stream.n_bytes + 1, 10)
    stream.end()
    assert len(await whole(stream, stream.n_dropped, 1 << 20)) == SESSION_BYTES


async def test_all_together_are_bounded() -> None:
    kept = sessions(max_bytes=1000)
    complete, running, larger = session("a"), session("b"), session("c")
    for stream, size in ((complete, 100), (running, 300), (larger, 900)):
        kept.add(stream)
        stream.write(b"data: " + b"x" * size + b"\n\n")
    complete.end()
    kept.tick(time.monotonic())
    assert kept.find("me", "a") is None, "what is complete goes first"
    assert running.n_kept + larger.n_kept <= 1000
    assert running.n_dropped == 0
    assert larger.n_dropped > 0


async def test_who_keeps_much_makes_no_room_of_anothers() -> None:
    kept = sessions(max_bytes=1000)
    for number, size in enumerate((400, 300, 300, 300)):
        stream = session(f"{number}", "me" if number == 0 else "you")
        kept.add(stream)
        stream.write(b"data: " + b"x" * size + b"\n\n")
        stream.end()
    kept.tick(time.monotonic())
    assert kept.find("me", "0") is not None, "though it is the oldest, and the largest"
    assert [kept.find("you", f"{number}") is not None for number in (1, 2, 3)] == [False, False, True]


async def test_an_answer_without_a_reader_is_ended_and_a_complete_one_forgotten() -> None:
    kept, stream = sessions(kept_s=60), session()
    stream.task = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
    kept.add(stream)
    now_s = time.monotonic()
    with stream.reader():
        kept.tick(now_s + 1000)
        assert len(kept) == 1, "somebody reads it"
    kept.tick(time.monotonic() + 59)
    assert not stream.task.cancelling()
    kept.tick(time.monotonic() + 61)
    assert stream.task.cancelling()
    assert len(kept) == 0
    done = session()
    kept.add(done)
    done.end()
    kept.tick(time.monotonic() + 59)
    assert len(kept) == 1
    kept.tick(time.monotonic() + 61)
    assert len(kept) == 0


async def test_signs_of_life_count_as_they_are_sent() -> None:
    kept, stream = sessions(), session()
    kept.add(stream)
    kept.tick(time.monotonic() + 10)
    assert stream.n_bytes == 0, "before the answer has begun its request may still be refused"
    stream.write(b"data: a\n\n")
    with stream.reader():
        kept.tick(time.monotonic() + 10)
    stream.end()
    assert (await whole(stream)).endswith(b": alive\n\n")


async def test_names_belong_to_their_client() -> None:
    kept = sessions()
    mine, theirs, model = session("a", "me"), session("a", "you"), session("a::model", "me")
    for stream in (mine, theirs, model):
        kept.add(stream)
    assert kept.find("me", "a") is mine
    assert kept.named("me", "a") == [mine, model]
    assert kept.named("me", "a::mod") == []
    kept.drop("me", "a")
    assert kept.find("you", "a") is theirs
