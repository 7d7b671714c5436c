"""The Python codec against the golden vectors that the C++ codec passes too, and what vectors do not hold: long lines,
what cannot be sent, and how much a stream may be cut."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from math import inf, nan
from typing import Any, get_args

import pytest

from luce.protocol import (
    MAX_LINE_BYTES,
    MAX_MARKS,
    Cancel,
    Command,
    Compress,
    ConstraintArgs,
    DecodedLine,
    Dialect,
    End,
    Err,
    ErrorCode,
    FreeSlot,
    Generate,
    GenerateForm,
    GrammarTrigger,
    InlineSnapshotFailed,
    LineDecoder,
    LoadSlot,
    LocalProtocolError,
    MemoryArgs,
    Ping,
    PinSpan,
    Pong,
    ProtocolError,
    ReadingArgs,
    RemoteProtocolError,
    Reply,
    SamplingArgs,
    SaveSlot,
    Snapshot,
    SnapshotPoint,
    Status,
    StatusLine,
    ThinSnapshot,
    Token,
    TokenDecoder,
    TokenEvent,
    TriggerKind,
    UnknownLine,
    format_command,
    format_event,
    format_reply,
    parse_reply,
)
from luce.protocol.command_table import VERBS

from .command_parser.lines import CommandError, parse_command
from .vector_data import (
    REPLY_TYPE_NAMES,
    TYPE_NAMES,
    bytes_of,
    command_to_json,
    read_vectors,
    reply_from_json,
)

# A part of the longest line; the limit, of this process's own time, is many times what a machine needs, and far
# below anything quadratic.
LONG_LINE_BYTES = MAX_LINE_BYTES // 32
LONG_PARSE_S = 5
TRAILING = b"tr"


Vector = dict[str, Any]
ARRIVALS = ("whole", "byte by byte", "with trailing bytes")


def vectors(name: str) -> pytest.MarkDecorator:
    cases = read_vectors(name)
    return pytest.mark.parametrize("vector", cases, ids=[case["name"] for case in cases])


def arrivals(vector: Vector) -> list[str]:
    """Every way; to one that ends in the middle, trailing bytes would belong."""
    return [arrival for arrival in ARRIVALS if arrival != "with trailing bytes" or ends_between(vector)]


def ends_between(vector: Vector) -> bool:
    if "lines" in vector:
        return "finish" not in vector and bytes_of(vector, "input")[-1:] in (b"", b"\n")
    return "n_pending_bytes" not in vector


def decode_lines(decoder: LineDecoder) -> list[DecodedLine]:
    lines = []
    while (line := decoder.next_line()) is not None:
        lines.append(line)
    return lines


def pieces(data: bytes, arrival: str) -> list[bytes]:
    if arrival == "byte by byte":
        return [data[i : i + 1] for i in range(len(data))]
    return [data + TRAILING if arrival == "with trailing bytes" else data]


def check_command(line: bytes, vector: Vector) -> None:
    if "command" in vector:
        command = parse_command(line)
        assert command_to_json(command) == vector["command"]
        assert parse_command(format_command(command)[:-1]) == command
        if vector.get("canonical"):
            assert format_command(command) == line + b"\n"
        return
    with pytest.raises(CommandError) as raised:
        parse_command(line)
    expected = vector["error"]
    assert raised.value.code == expected["code"]
    assert raised.value.id == expected.get("id")
    assert raised.value.generating == expected.get("generating", False)
    for word in expected.get("mentions", []):
        assert word in raised.value.text


@vectors("commands")
def test_command(vector: Vector) -> None:
    for arrival in arrivals(vector):
        check_arriving_command(vector, arrival)


def check_arriving_command(vector: Vector, arrival: str) -> None:
    decoder = LineDecoder()
    for piece in pieces(bytes_of(vector, "line") + b"\r\n", arrival):
        decoder.feed(piece)
    (line,) = decode_lines(decoder)
    check_command(line.text, vector)


@vectors("replies")
def test_reply(vector: Vector) -> None:
    for arrival in arrivals(vector):
        check_arriving_reply(vector, arrival)


def check_arriving_reply(vector: Vector, arrival: str) -> None:
    line = bytes_of(vector, "line")
    decoder = LineDecoder()
    for piece in pieces(line + b"\n", arrival):
        decoder.feed(piece)
    assert [decoded.text for decoded in decode_lines(decoder)] == ([line] if line else [])
    if "error" in vector:
        with pytest.raises(RemoteProtocolError):
            parse_reply(line)
        return
    reply = reply_from_json(vector["reply"])
    if not vector.get("format_only"):
        assert parse_reply(line) == reply
    if not vector.get("parse_only"):
        assert format_reply(reply) == line + b"\n"


def decode_events(decoder: TokenDecoder) -> tuple[list[TokenEvent], bool]:
    """The events that are there, and whether the stream broke after them."""
    events: list[TokenEvent] = []
    try:
        while (event := decoder.next_event()) is not None:
            events.append(event)
    except RemoteProtocolError:
        return events, True
    return events, False


def event_of(item: list[Any]) -> TokenEvent:
    return End(item[1]) if item[0] == "end" else Token(item[1], item[2])


@vectors("tokens")
def test_tokens(vector: Vector) -> None:
    for arrival in arrivals(vector):
        check_arriving_tokens(vector, arrival)


def check_arriving_tokens(vector: Vector, arrival: str) -> None:
    expected = [event_of(item) for item in vector["events"]]
    decoder = TokenDecoder(Dialect(vector["dialect"]))
    n_pending_bytes = vector.get("n_pending_bytes", 0)
    events: list[TokenEvent] = []
    broken = False
    for piece in pieces(bytes.fromhex(vector["hex"]), arrival):
        decoder.feed(piece)
        more, broken = decode_events(decoder)
        events += more
    assert (events, broken) == (expected, "error" in vector)
    if not broken:
        assert decoder.n_pending_bytes == (len(TRAILING) if arrival == "with trailing bytes" else n_pending_bytes)


@vectors("tokens")
def test_tokens_are_written_as_they_are_read(vector: Vector) -> None:
    written = b"".join(format_event(Dialect(vector["dialect"]), event_of(item)) for item in vector["events"])
    read = bytes.fromhex(vector["hex"])
    assert written == read if "error" not in vector and "n_pending_bytes" not in vector else read.startswith(written)


@vectors("framing")
def test_framing(vector: Vector) -> None:
    for arrival in arrivals(vector):
        check_arriving_framing(vector, arrival)


def check_arriving_framing(vector: Vector, arrival: str) -> None:
    data = bytes_of(vector, "input")
    decoder = LineDecoder(vector.get("max_line_bytes", MAX_LINE_BYTES))
    for piece in pieces(data, arrival):
        decoder.feed(piece)
    if "finish" in vector:
        decoder.finish()
        decoder.finish()
    expected = [
        DecodedLine(too_long=True) if line.get("too_long") else DecodedLine(bytes_of(line, "text"))
        for line in vector["lines"]
    ]
    assert decode_lines(decoder) == expected


def test_names_of_vectors_are_unique() -> None:
    for kind in ("commands", "replies", "tokens", "framing"):
        names = [vector["name"] for vector in read_vectors(kind)]
        assert len(names) == len(set(names))


LONG_LINES = [
    (b"gen id=1 n=1 prompt=1", b",2"),
    (b"gen id=1 n=1 prompt=", b","),
    (b"gen id=1 n=1 prompt=1", b",-1"),
    (b"/p 1", b" snap=1:1"),
    (b"p", b" 1"),
    (b"p", b" samp="),
    (b"gen", b" a=1"),
    (b"frob", b" id=x"),
    (b"gen id=1 temp=", b"1"),
    (b"gen id=1 temp=0.", b"0"),
    (b"gen id=1 temp=1", b"1x"),
    (b"gen id=1 n=", b"0"),
    (b"/p ", b"0"),
    (b"gen id=1 gen_prompt=", b"%e9"),
    (b"", b"\t"),
    (b"gen id=1 triggers=", b"word:a,"),
    (b"gen id=1 think_end=1", b"|1"),
    (b"/p 1 snap=1:1", b",1:2"),
    (b"gen id=1 n=1 prompt=1 restore=1 chain=1", b",1"),
    (b"gen id=1 n=1 prompt=1 marks=1", b",1"),
    (b"gen id=1 n=1 prompt=1 keep=1:2", b",3:4"),
    (b"compress id=1 share=1 prompt=1", b",2"),
    (b"compress p 1", b" nopark"),
    (b"free drafter", b" x"),
    (b"RESTORE 0 p", b" 1"),
    (b"RESTORE_CHAIN 0 1", b",1"),
    (b"SAVE 0 p", b" 1"),
    (b"SNAPSHOT_THIN", b" 1"),
    (b"park", b" target"),
    (b"thin", b" slot=1"),
]


@pytest.mark.parametrize(("start", "word"), LONG_LINES, ids=[f"{start!r} {word!r}" for start, word in LONG_LINES])
def test_long_lines_are_parsed_in_linear_time(start: bytes, word: bytes) -> None:
    line = start + word * ((LONG_LINE_BYTES - len(start)) // len(word))
    begin = time.process_time()
    with suppress(CommandError):
        parse_command(line)
    assert time.process_time() - begin < LONG_PARSE_S


def test_a_refusal_shows_only_a_piece_of_a_long_line() -> None:
    for line in (b"x" * 10_000, b"gen " + b"k" * 10_000 + b"=1", b"gen id=" + b"9" * 10_000, b"/p " + b"n" * 10_000):
        with pytest.raises(CommandError) as raised:
            parse_command(line)
        assert len(raised.value.text) < 200


def test_a_prompt_of_a_million_ids_survives() -> None:
    command = Generate(id=1, n_generate=1, prompt=tuple(range(1_000_000)))
    assert parse_command(format_command(command)[:-1]) == command


def named(**fields: Any) -> Generate:
    return replace(Generate(id=1, n_generate=1, prompt=(1,)), **fields)


UNSENDABLE: dict[str, Command] = {
    "negative id": Cancel(-1),
    "id over int32": Status(1 << 31),
    "two words to ping": Ping("a b"),
    "a line end in ping": Ping("a\nb"),
    "a lone surrogate": Ping("\ud800"),
    "no prompt": Generate(id=1, n_generate=1),
    "a prompt and a path": named(prompt_path="/p"),
    "negative prompt id": named(prompt=(1, -1)),
    "prompt id over int32": named(prompt=(1, 1 << 31)),
    "negative n": named(n_generate=-1),
    "not a number": named(sampling=SamplingArgs(temperature=nan)),
    "infinite temperature": named(sampling=SamplingArgs(temperature=inf)),
    "top_p above 1": named(sampling=SamplingArgs(top_p=1.5)),
    "seed over 64 bits": named(sampling=SamplingArgs(seed=1 << 64)),
    "too many logprobs": named(n_logprobs=101),
    "lazy without triggers": named(constraint=ConstraintArgs(grammar="root", grammar_lazy=True)),
    "a budget without marks": named(constraint=ConstraintArgs(think_budget=1)),
    "an empty grammar": named(constraint=ConstraintArgs(grammar="")),
    "a NUL in a grammar": named(constraint=ConstraintArgs(grammar="a\0b")),
    "half a surrogate pair in a grammar": named(constraint=ConstraintArgs(grammar="a\ud800b")),
    "two grammars": named(constraint=ConstraintArgs(grammar="a", grammar_path="b")),
    "an empty trigger": named(constraint=ConstraintArgs(triggers=(GrammarTrigger(TriggerKind.WORD),))),
    "a word trigger with a token": named(
        constraint=ConstraintArgs(triggers=(GrammarTrigger(TriggerKind.WORD, "a", 3),))
    ),
    "an output path": named(output_path="/p"),
    "positional: an inline prompt": named(form=GenerateForm.POSITIONAL),
    "positional: a verb as path": Generate(form=GenerateForm.POSITIONAL, prompt_path="ping", n_generate=1),
    "positional: a path that ends with a blank": Generate(form=GenerateForm.POSITIONAL, prompt_path="/p "),
    "positional: a line end in the path": Generate(form=GenerateForm.POSITIONAL, prompt_path="/p\n/q"),
    "positional: an id": Generate(form=GenerateForm.POSITIONAL, prompt_path="/p", id=1),
    "positional: half a samp": Generate(
        form=GenerateForm.POSITIONAL, prompt_path="/p", sampling=SamplingArgs(temperature=1.0)
    ),
    "positional: stop ids": Generate(form=GenerateForm.POSITIONAL, prompt_path="/p", stop_tokens=(1,)),
    "positional: reuse": Generate(form=GenerateForm.POSITIONAL, prompt_path="/p", memory=MemoryArgs(reuse=True)),
    "positional: restore_at": Generate(
        form=GenerateForm.POSITIONAL, prompt_path="/p", memory=MemoryArgs(restore_slot=1, restore_at=4)
    ),
    "positional: a chain without its base": Generate(
        form=GenerateForm.POSITIONAL, prompt_path="/p", memory=MemoryArgs(chain=(1,))
    ),
    "positional: a negative slot": Generate(
        form=GenerateForm.POSITIONAL, prompt_path="/p", memory=MemoryArgs(restore_slot=-1)
    ),
    "file: a restore": Generate(
        form=GenerateForm.FILE, prompt_path="a", output_path="b", memory=MemoryArgs(restore_slot=1)
    ),
    "restore_at without restore": named(memory=MemoryArgs(restore_at=0)),
    "salt_from without salt": named(memory=MemoryArgs(salt_from=0)),
    "a chain without restore": named(memory=MemoryArgs(chain=(0,))),
    "a slot twice in snap": named(memory=MemoryArgs(snapshots=(SnapshotPoint(1, 0), SnapshotPoint(2, 0)))),
    "too many marks": named(memory=MemoryArgs(marks=tuple(range(MAX_MARKS + 1)))),
    "a share of nothing": named(reading=ReadingArgs(share=0.0)),
    "a share of more than all": named(reading=ReadingArgs(share=1.5)),
    "an empty keep": named(reading=ReadingArgs(keep=(PinSpan(5, 5),))),
    "a block backwards": named(reading=ReadingArgs(blocks=(PinSpan(6, 5),))),
    "too many blocks": named(reading=ReadingArgs(blocks=(PinSpan(0, 1),) * (MAX_MARKS + 1))),
    "a negative prefill_from": named(reading=ReadingArgs(n_from=-1)),
    "positional: sparse reading": Generate(
        form=GenerateForm.POSITIONAL, prompt_path="/p", reading=ReadingArgs(share=0.5)
    ),
    "compress: no prompt": Compress(0.5, id=1),
    "compress: a prompt and a path": Compress(0.5, (1,), "/p", id=1),
    "compress: nothing of it": Compress(0.0, (1,), id=1),
    "compress: a scorer by name": Compress(0.5, (1,), scorer="/s", id=1),
    "compress: no path, no id": Compress(0.5),
    "compress: an inline prompt, no id": Compress(0.5, (1,)),
    "compress: spans, no id": Compress(0.5, prompt_path="/p", keep=(PinSpan(0, 1),)),
    "compress: too fine a share, no id": Compress(0.0005, prompt_path="/p"),
    "compress: a share that is no number, no id": Compress(nan, prompt_path="/p"),
    "compress: nothing of it, no id": Compress(0.0, prompt_path="/p"),
    "compress: more than all, no id": Compress(1.001, prompt_path="/p"),
    "compress: a path with a blank": Compress(0.5, prompt_path="/p q"),
    "compress: a path like a key": Compress(0.5, prompt_path="/p=q"),
    "compress: a scorer with a tab": Compress(0.5, prompt_path="/p", scorer="/s\tt"),
    "compress: an empty scorer": Compress(0.5, prompt_path="/p", scorer=""),
    "compress: a scorer like another word": Compress(0.5, prompt_path="/p", scorer="nopark"),
    "snapshot: a negative slot": Snapshot(-1),
    "snapshot: a negative id": Snapshot(1, id=-1),
    "snapshot: of a request, without an id": Snapshot(1, of=3),
    "thin: an empty range": ThinSnapshot(1, 4, 4),
    "thin: a range backwards": ThinSnapshot(1, 4, 3, id=1),
    "thin: of a request, without an id": ThinSnapshot(1, 3, 4, of=0),
    "free: a slot over int32": FreeSlot(1 << 31, id=1),
    "save: no path": SaveSlot(1, "", id=1),
    "save: no path, no id": SaveSlot(1, ""),
    "save: a path that ends with a blank": SaveSlot(1, "/p "),
    "save: a line end in the path": SaveSlot(1, "/p\n/q"),
    "save: a lone surrogate": SaveSlot(1, "/\ud800", id=1),
    "load: a NUL in the path": LoadSlot(1, "/p\0", id=1),
    "load: a path that begins with a blank": LoadSlot(1, " /p"),
    "file: a path with a blank": Generate(form=GenerateForm.FILE, prompt_path="a b", output_path="c"),
    "file: no output": Generate(form=GenerateForm.FILE, prompt_path="a"),
}


@pytest.mark.parametrize("command", UNSENDABLE.values(), ids=UNSENDABLE.keys())
def test_what_the_daemon_would_refuse_is_not_sent(command: Command) -> None:
    with pytest.raises(LocalProtocolError):
        format_command(command)


@pytest.mark.parametrize(
    "reply",
    [
        Pong("a b"),
        Pong("a\nb"),
        UnknownLine("a\nb"),
        StatusLine((("a b", "1"),)),
        StatusLine((("", "1"),)),
        StatusLine((("a=b", "1"),)),
    ],
    ids=repr,
)
def test_replies_that_are_no_line_are_not_sent(reply: Pong | UnknownLine | StatusLine) -> None:
    with pytest.raises(LocalProtocolError):
        format_reply(reply)


@pytest.mark.parametrize("code", ["", "two words", "Upper", "a=b", "a\nb"])
def test_codes_that_are_no_word_are_not_sent(code: str) -> None:
    with pytest.raises(LocalProtocolError):
        format_reply(InlineSnapshotFailed(1, code))


@pytest.mark.parametrize("names", [TYPE_NAMES, REPLY_TYPE_NAMES], ids=["commands", "replies"])
def test_every_type_has_a_vector(names: dict[str, type]) -> None:
    kind, key, union = ("commands", "command", Command) if names is TYPE_NAMES else ("replies", "reply", Reply)
    assert {vector[key]["type"] for vector in read_vectors(kind) if key in vector} == set(names)
    assert set(names.values()) == set(get_args(union))


def test_every_verb_has_a_good_and_a_bad_line() -> None:
    first_words = {True: set[str](), False: set[str]()}
    for vector in read_vectors("commands"):
        if "line" in vector:
            first_words["command" in vector].add((vector["line"].split() or [""])[0])
    # `exit` and `quit` are refused for the same reason, and a word is enough for one of them.
    verbs = {verb.verb for verb in VERBS}
    assert verbs <= first_words[True]
    assert verbs - {"exit"} <= first_words[False]


@pytest.mark.parametrize("event", [Token(0, -1), Token(0, 1 << 31), Token(-1, 0), End(-1), End(1 << 31)], ids=repr)
def test_records_that_do_not_fit_are_not_sent(event: TokenEvent) -> None:
    for dialect in Dialect:
        with pytest.raises(LocalProtocolError):
            format_event(dialect, event)


def test_a_broken_token_stream_stays_broken() -> None:
    decoder = TokenDecoder(Dialect.PLAIN)
    decoder.feed(b"\xfe\xff\xff\xff\x05\x00\x00\x00")
    for _ in range(2):
        with pytest.raises(RemoteProtocolError):
            decoder.next_event()


def test_the_end_of_a_token_stream_is_between_records() -> None:
    decoder = TokenDecoder(Dialect.MULTIPLEXED)
    decoder.feed(bytes(8))
    decoder.finish()
    decoder.feed(bytes(4))
    assert decoder.next_event() == Token(0, 0)
    with pytest.raises(RemoteProtocolError):
        decoder.finish()


def test_a_long_token_stream_does_not_pile_up() -> None:
    decoder = TokenDecoder(Dialect.PLAIN)
    for value in range(100_000):
        decoder.feed(format_event(Dialect.PLAIN, Token(0, value)))
        decoder.feed(b"\x00")
        assert decoder.next_event() == Token(0, value)
        decoder.feed(bytes(3))
        assert decoder.next_event() == Token(0, 0)
    assert decoder.n_pending_bytes == 0


def test_blank_lines_are_refused_although_framing_passes_none_on() -> None:
    for line in (b"", b" ", b"\t \t"):
        with pytest.raises(CommandError) as raised:
            parse_command(line)
        assert raised.value.code == ErrorCode.BAD_ARGS


def test_errors_name_the_guilty_side() -> None:
    assert issubclass(CommandError, RemoteProtocolError)
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert issubclass(LocalProtocolError, ProtocolError)
    assert not issubclass(LocalProtocolError, RemoteProtocolError)


def test_a_refusal_becomes_a_reply() -> None:
    with pytest.raises(CommandError) as raised:
        parse_command(b"gen id=4 n=x prompt=1")
    refused = raised.value
    assert (
        format_reply(Err(refused.code, refused.text, refused.id)) == b"err bad_args id=4 n=x: is not a whole number\n"
    )
