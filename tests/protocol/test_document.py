"""PROTOCOL.md says what the code does: its tables hold the same verbs, keys and codes as both codecs, and its sessions
are what the codec reads and writes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from luce.protocol import (
    Dialect,
    Err,
    ErrorCode,
    GenerateOk,
    StopReason,
    TokenDecoder,
    UnknownLine,
    format_command,
    format_reply,
    parse_reply,
)
from luce.protocol.command_table import VERBS

from .command_parser.generations import NAMED_KEYS
from .command_parser.lines import VERBS as PARSED_VERBS
from .command_parser.lines import CommandError, parse_command
from .vector_data import ROOT

DOCUMENT = (ROOT / "protocol" / "PROTOCOL.md").read_text("utf-8")


def section(title: str) -> str:
    """What stands under the heading, up to the next one of the same or a higher level."""
    match = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,3}} |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert match is not None, f"PROTOCOL.md has no section {title!r}"
    return match[2]


def first_words(title: str) -> list[str]:
    """The first word of each row of the section's table."""
    return re.findall(r"^\| `([^` ]+)", section(title), re.MULTILINE)


def cpp(path: str) -> str:
    return (ROOT / "native" / path).read_text("utf-8")


def test_verbs() -> None:
    documented = {word for word in first_words("Commands of this build") if not word.startswith("<")}
    assert documented == {verb.verb for verb in VERBS}


def test_the_forms_of_the_verbs() -> None:
    """`key=` and `<place>` of the document's first column; what stands in brackets may be left out."""
    forms = re.findall(r"^\| `(\w+)([^`]*)`", section("Commands of this build"), re.MULTILINE)
    keys: dict[str, set[str]] = {}
    required: dict[str, set[str]] = {}
    for verb, words in forms:
        keys.setdefault(verb, set()).update(re.findall(r"(\w+)=", words))
        required.setdefault(verb, set()).update(re.findall(r"(?<!\[)\b(\w+)=", words))
    for verb in VERBS:
        if verb.keys is not None and verb.verb != "gen":
            assert keys[verb.verb] == {key.key for key in verb.keys}
            assert required[verb.verb] == {key.key for key in verb.keys if key.required}


def test_keys() -> None:
    (gen,) = (verb for verb in VERBS if verb.verb == "gen")
    assert gen.keys is not None
    assert sorted(first_words("Named arguments")) == sorted(key.key for key in gen.keys)
    required = re.findall(r"^\| `(\w+)` \|[^|]*\| required:", section("Named arguments"), re.MULTILINE)
    assert set(required) == {key.key for key in gen.keys if key.required}


def test_the_tests_parser_knows_the_same_words() -> None:
    """It is written apart from both codecs, so that what they have in common is looked at from outside."""
    parsers = {verb.verb: verb for verb in VERBS}
    assert set(PARSED_VERBS) == set(parsers)
    assert {key.decode() for key in NAMED_KEYS} == {key.key for key in parsers["gen"].keys or ()}


def test_error_codes() -> None:
    codes = [str(code) for code in ErrorCode]
    assert sorted(first_words("Errors")) == sorted(codes)
    assert (
        re.findall(r'return "(\w+)";', cpp("base/result.cpp").partition("switch")[2].partition("\n    }")[0]) == codes
    )


def test_stop_reasons() -> None:
    documented = re.search(r"^\*\*`stop`\.\*\*(.*?)\n\n", section("Replies"), re.MULTILINE | re.DOTALL)
    assert documented is not None
    for reason in StopReason:
        assert f"`{reason}`" in documented[1]


def test_generating_commands() -> None:
    documented = re.search(r'"Generating" are (.*?);', section("Sentinels"), re.DOTALL)
    assert documented is not None
    assert set(re.findall(r"`([^`]+)`", documented[1])) == {verb.verb for verb in VERBS if verb.generates}


def session(dialect: Dialect) -> Iterator[tuple[str, str]]:
    match = re.search(rf"^```{dialect}\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert match is not None
    for line in match[1].splitlines():
        yield line[0], line[2:]


@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_session_is_what_the_codec_reads_and_writes(dialect: Dialect) -> None:
    refusals: list[Err] = []
    for direction, text in session(dialect):
        if direction == ">":
            try:
                assert format_command(parse_command(text.encode())) == f"{text}\n".encode()
            except CommandError as error:
                refusals.append(Err(error.code, error.text, error.id))
        elif direction == "<":
            reply = parse_reply(text.encode())
            assert not isinstance(reply, UnknownLine)
            assert format_reply(reply) == f"{text}\n".encode()
            if isinstance(reply, Err) and refusals:
                assert reply == refusals.pop()
    assert refusals == []


@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_session_ends_each_generation_with_one_sentinel(dialect: Dialect) -> None:
    decoder = TokenDecoder(dialect)
    n_tokens: dict[int, int] = {}
    ended: list[int] = []
    for direction, text in session(dialect):
        if direction == "=":
            decoder.feed(bytes.fromhex(text))
            event = decoder.next_event()
            assert event is not None
            assert decoder.n_pending_bytes == 0
            if hasattr(event, "value"):
                n_tokens[event.id] = n_tokens.get(event.id, 0) + 1
            else:
                ended.append(event.id)
        elif direction == "<":
            reply = parse_reply(text.encode())
            if isinstance(reply, GenerateOk):
                assert (reply.id or 0) == ended.pop()
                assert reply.output_path is not None or reply.n_generated == n_tokens.pop(reply.id or 0)
            elif isinstance(reply, Err) and (dialect is Dialect.PLAIN or reply.id in ended):
                assert ended.pop() == (reply.id or 0)
    assert ended == []
