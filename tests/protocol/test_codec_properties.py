"""What holds for all commands, replies and bytes: what was written reads back, no input raises anything but the
documented errors, and how the bytes are cut does not matter."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from luce.protocol import (
    Command,
    DecodedLine,
    Dialect,
    End,
    Err,
    ErrorCode,
    ExpertReads,
    LineDecoder,
    LocalProtocolError,
    RemoteProtocolError,
    Reply,
    Speculation,
    Token,
    TokenDecoder,
    TokenEvent,
    format_command,
    format_event,
    format_reply,
    parse_reply,
)

from .command_parser.lines import CommandError, parse_command
from .strategies import careless_commands, commands, counts, ids, maybe, replies
from .vector_data import bytes_of, read_vectors

# The machine may be busy: what is measured here is not time.
unhurried = settings(deadline=None)

known_lines = st.sampled_from(
    [bytes_of(vector, "line") for kind in ("commands", "replies") for vector in read_vectors(kind)]
)


@st.composite
def mutated_lines(draw: st.DrawFn) -> bytes:
    """A known line with a piece replaced: closer to the border of what is valid than arbitrary bytes."""
    line = draw(known_lines)
    begin = draw(st.integers(0, len(line)))
    end = draw(st.integers(begin, min(len(line), begin + 4)))
    piece = draw(st.binary(max_size=4) | st.text("=,:@%|/ -.0123456789einf", max_size=4).map(str.encode))
    return line[:begin] + piece + line[end:]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(borders)]


cuts = st.lists(st.integers(0, 1 << 16), max_size=8)


@unhurried
@given(commands)
def test_commands_read_back(command: Command) -> None:
    line = format_command(command)
    assert line.count(b"\n") == 1
    assert parse_command(line[:-1]) == command


@unhurried
@given(careless_commands)
def test_a_command_reads_back_or_is_not_sent(command: Command) -> None:
    try:
        line = format_command(command)
    except LocalProtocolError:
        return
    assert parse_command(line[:-1]) == command


@unhurried
@given(replies)
def test_replies_read_back(reply: Reply) -> None:
    line = format_reply(reply)
    assert line.count(b"\n") == 1
    assert parse_reply(line[:-1]) == reply


def test_what_was_not_measured_is_no_number() -> None:
    nothing = Speculation()
    assert (nothing.acceptance, nothing.tokens_per_step, nothing.speculated_share) == (None, None, None)
    plain = Speculation(n_steps=4)
    assert (plain.acceptance, plain.tokens_per_step, plain.speculated_share) == (None, 1.0, 0.0)
    some = Speculation(n_drafted=8, n_accepted=6, n_steps=4, n_speculated_steps=2, draft_s=0.5, verify_s=1.0)
    assert (some.acceptance, some.tokens_per_step, some.speculated_share) == (0.75, 2.5, 0.5)
    assert some + plain == Speculation(8, 6, 8, 2, 0.5, 1.0)
    assert ExpertReads().hit_share is None
    assert (ExpertReads(2, 1) + ExpertReads(1, 0)).hit_share == 0.75


@unhurried
@given(st.sampled_from(ErrorCode), st.text(), ids)
def test_any_text_makes_one_short_line_of_utf8(code: ErrorCode, text: str, request_id: int | None) -> None:
    line = format_reply(Err(code, text, request_id))
    reply = parse_reply(line[:-1])
    assert isinstance(reply, Err)
    assert (reply.code, reply.id) == (code, request_id)
    assert len(reply.text.encode()) <= 1000


@unhurried
@given(st.binary() | mutated_lines())
def test_any_bytes_are_a_command_or_a_command_error(line: bytes) -> None:
    try:
        command = parse_command(line)
    except CommandError:
        return
    try:
        written = format_command(command)
    except LocalProtocolError:
        assert b"\n" in line or b"\r" in line  # only what framing might have cut
        return
    assert parse_command(written[:-1]) == command


@unhurried
@given(st.binary() | mutated_lines())
def test_any_bytes_are_a_reply_or_a_remote_error(line: bytes) -> None:
    try:
        parse_reply(line)
    except RemoteProtocolError:
        return


@unhurried
@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"\r\n", b" "])), cuts)
def test_cutting_lines_does_not_matter(chunks: list[bytes], places: list[int]) -> None:
    data = b"".join(chunks)

    def decode(fed: list[bytes]) -> list[DecodedLine]:
        decoder = LineDecoder(max_line_bytes=8)
        for piece in fed:
            decoder.feed(piece)
        decoder.finish()
        return list(iter(decoder.next_line, None))

    assert decode(cut(data, places)) == decode([data])


@unhurried
@given(st.sampled_from(Dialect), st.lists(st.tuples(counts, maybe(counts))), cuts)
def test_token_streams_read_back_however_they_are_cut(
    dialect: Dialect, items: list[tuple[int, int | None]], places: list[int]
) -> None:
    events: list[TokenEvent] = []
    for request_id, value in items:
        seen_id = 0 if dialect is Dialect.PLAIN else request_id
        events.append(End(seen_id) if value is None else Token(seen_id, value))
    decoder = TokenDecoder(dialect)
    read: list[TokenEvent] = []
    for piece in cut(b"".join(format_event(dialect, event) for event in events), places):
        decoder.feed(piece)
        read += iter(decoder.next_event, None)
    decoder.finish()
    assert read == events


@unhurried
@given(st.sampled_from(Dialect), st.binary(), cuts)
def test_any_bytes_are_token_events_or_a_remote_error(dialect: Dialect, data: bytes, places: list[int]) -> None:
    def decode(fed: list[bytes]) -> tuple[list[TokenEvent], bool]:
        decoder = TokenDecoder(dialect)
        events: list[TokenEvent] = []
        try:
            for piece in fed:
                decoder.feed(piece)
                while (event := decoder.next_event()) is not None:
                    events.append(event)
            decoder.finish()
        except RemoteProtocolError:
            return events, True
        return events, False

    assert decode(cut(data, places)) == decode([data])
