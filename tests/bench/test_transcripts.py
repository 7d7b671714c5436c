"""Reading transcripts: what is packaged, what each client writes, and lines that nobody should write."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.evaluating.transcripts import (
    IMAGE,
    MAX_LINE_BYTES,
    NO_RESULT,
    Message,
    Session,
    find_transcripts,
    read_session,
    read_transcript,
    to_messages,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "data" / "transcripts"


def session(*lines: Any) -> Session:
    return read_session("test", [json.dumps(line).encode() for line in lines])


def user(content: Any, **values: Any) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": content}, **values}


def answer(identity: str | None, *blocks: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"id": identity, "role": "assistant", "content": list(blocks)}, **values}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def use(call: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": "Read", "input": arguments}


def result(call: str, content: Any, **values: Any) -> dict[str, Any]:
    return user([{"type": "tool_result", "tool_use_id": call, "content": content}], **values)


def item(kind: str, **values: Any) -> dict[str, Any]:
    return {"type": "response_item", "timestamp": "2026-01-01T00:00:00Z", "payload": {"type": kind, **values}}


def message(role: str, value: str) -> dict[str, Any]:
    return item("message", role=role, content=[{"type": "input_text", "text": value}])


def call(identity: str, arguments: str = "{}") -> dict[str, Any]:
    return item("function_call", name="shell", arguments=arguments, call_id=identity)


def shape(messages: list[Message]) -> str:
    """Roles by their first letters, calls as c."""
    return " ".join(entry["role"][0] + "c" * len(entry.get("tool_calls", [])) for entry in messages)


# What is packaged


def test_the_packaged_session_with_edits() -> None:
    fix = read_transcript(FOLDER / "claude-fix.jsonl")
    assert [turn.kind for turn in fix.turns] == ["title", *["main"] * 10]
    assert fix.turns[0].system is not None
    first, second, *_, last = fix.turns[1:]
    assert shape(first.messages) == "u"
    assert first.messages[0]["content"].startswith("<system-reminder>\n")
    assert len(first.answered.calls) == 2
    assert shape(second.messages) == "u acc t t"
    assert [entry.get("tool_call_id") for entry in second.messages[2:]] == ["toolu_01", "toolu_02"]
    assert IMAGE in last.messages[-1]["content"]
    assert fix.left_out["reasoning"] == 4
    assert "comparison" not in json.dumps(last.messages), "reasoning is not sent again"
    assert all(turn.think_s is not None for turn in fix.turns[2:])


def test_the_packaged_session_with_a_sub_agent() -> None:
    agents = read_transcript(FOLDER / "claude-agents.jsonl")
    assert [turn.conversation for turn in agents.turns] == ["main", *["side 1"] * 3, *["main"] * 5]
    interrupted, went_back = agents.turns[6], agents.turns[7]
    assert interrupted.messages[-2]["content"] == NO_RESULT
    assert interrupted.messages[-1]["role"] == "user"
    assert went_back.messages[-1]["content"] == "Where is the weight of a parcel checked?"
    assert "Delete" not in json.dumps(went_back.messages)


def test_the_packaged_rollout() -> None:
    feature = read_transcript(FOLDER / "rollout-codex-feature.jsonl")
    assert len(feature.turns) == 12
    assert shape(feature.turns[1].messages) == "s u acc t t"
    patch = feature.turns[2].answered.calls[0]
    assert patch.name == "apply_patch"
    assert json.loads(patch.arguments)["input"].startswith("*** Begin Patch")


def test_files_are_found_in_folders(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "one.jsonl").write_text("{}\n")
    (tmp_path / "a" / "two.txt").write_text("")
    assert find_transcripts([tmp_path, tmp_path / "a"]) == [tmp_path / "a" / "b" / "one.jsonl"]


# Claude Code


def test_lines_of_one_answer_are_one_request() -> None:
    read = session(
        user("q"),
        answer("m1", text("I look."), uuid="1"),
        answer("m1", use("a"), uuid="2"),
        result("a", "A", uuid="3"),
        answer("m1", use("b"), uuid="4"),  # it ran while the answer went on
        result("b", "B", uuid="5"),
        answer("m2", text("Done.")),
    )
    assert [shape(turn.messages) for turn in read.turns] == ["u", "u acc t t"]
    assert read.turns[0].answer["content"] == "I look."


def test_neighbours_of_one_role_are_joined() -> None:
    read = session(user("a"), user([text("b"), text("c")]), answer(None, text("x")), answer(None, text("y")), user("d"),
                   answer("m", text("z")))  # fmt: skip
    assert read.turns[-1].messages == [
        {"role": "user", "content": "a\n\nb\nc"},
        {"role": "assistant", "content": "x\n\ny"},
        {"role": "user", "content": "d"},
    ]


def test_a_compaction_begins_anew() -> None:
    read = session(
        user("old"), answer("m1", text("x")), {"type": "system", "subtype": "compact_boundary"},
        user("summary", isCompactSummary=True, isVisibleInTranscriptOnly=True), answer("m2", text("y")),
    )  # fmt: skip
    assert read.turns[1].messages == [{"role": "user", "content": "summary"}]


def test_a_result_without_its_call_is_not_sent() -> None:
    read = session(user("q"), result("gone", "x"), answer("m", text("y")))
    assert shape(read.turns[0].messages) == "u"


def test_an_answer_of_reasoning_only_is_no_request() -> None:
    read = session(user("q"), answer("m", {"type": "thinking", "thinking": "hm"}))
    assert read.turns == ()
    assert read.left_out == {"reasoning": 1, "answers without text": 1}


def test_a_repeated_line_counts_once() -> None:
    read = session(user("q", uuid="1"), user("q", uuid="1"), answer("m", text("a")))
    assert read.turns[0].messages == [{"role": "user", "content": "q"}]


def test_sub_agents_of_older_files_are_told_apart_by_their_lines() -> None:
    read = session(
        user("q", uuid="1", parentUuid=None),
        answer("m1", use("t"), uuid="2", parentUuid="1"),
        user("side one", uuid="3", parentUuid=None, isSidechain=True),
        user("side two", uuid="4", parentUuid=None, isSidechain=True),
        answer("s1", text("one"), uuid="5", parentUuid="3", isSidechain=True),
        answer("s2", text("two"), uuid="6", parentUuid="4", isSidechain=True),
    )
    assert [(turn.conversation, shape(turn.messages)) for turn in read.turns] == [
        ("main", "u"), ("side 1", "u"), ("side 2", "u"),
    ]  # fmt: skip


# Codex


def test_what_the_model_says_in_a_row_is_one_answer() -> None:
    read = session(
        {"type": "session_meta", "payload": {"id": "x", "base_instructions": {"text": "Be good."}}},
        message("developer", "d1"), message("developer", "d2"), message("user", "q"),
        item("reasoning", summary=[]), message("assistant", "Look."), call("1"), call("2"),
        item("function_call_output", call_id="1", output="one"),
        item("function_call_output", call_id="2", output={"content": "two", "success": True}),
        item("custom_tool_call", call_id="3", name="apply_patch", input="*** patch"),
        item("custom_tool_call_output", call_id="3", output=[{"type": "input_text", "text": "three"}]),
        message("assistant", "Done."),
    )  # fmt: skip
    assert read.client == "codex"
    assert read.system == "Be good."
    assert [shape(turn.messages) for turn in read.turns] == ["s u", "s u acc t t", "s u acc t t ac t"]
    assert [entry["content"] for entry in read.turns[2].messages if entry["role"] == "tool"] == ["one", "two", "three"]


@pytest.mark.parametrize("arguments", ["not json", "[1]", '"x"', "", '{"a": 1e999}'])
def test_arguments_become_an_object(arguments: str) -> None:
    read = session(message("user", "q"), call("1", arguments))
    assert isinstance(json.loads(read.turns[0].answered.calls[0].arguments), dict)


def test_a_compacted_history_is_replaced() -> None:
    history = [line["payload"] for line in (message("user", "kept"), message("assistant", "summary"))]
    read = session(
        message("user", "old"), message("assistant", "x"),
        {"type": "compacted", "payload": {"message": "s", "replacement_history": history}},
        message("user", "new"), message("assistant", "y"),
        {"type": "compacted", "payload": {"message": "in short"}},
        message("assistant", "z"),
    )  # fmt: skip
    assert [shape(turn.messages) for turn in read.turns] == ["u", "u a u", "u"]
    assert read.turns[2].messages[0]["content"] == "in short"


def test_turns_are_taken_back() -> None:
    read = session(
        message("user", "one"), message("assistant", "1"), message("user", "two"), message("assistant", "2"),
        {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}},
        message("user", "three"), message("assistant", "3"),
    )  # fmt: skip
    assert [entry["content"] for entry in read.turns[-1].messages] == ["one", "1", "three"]


def test_rollouts_without_envelopes() -> None:
    lines = [message("user", "q"), call("1"), item("function_call_output", call_id="1", output="o"),
             message("assistant", "a")]  # fmt: skip
    read = session({"id": "x", "timestamp": "t", "instructions": "Old."}, *(line["payload"] for line in lines))
    assert (read.client, read.system, len(read.turns)) == ("codex", "Old.", 2)


# What nobody should write


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "lines that are not JSON"),
        (b"[" * 100_000, "lines that are not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "lines that are not JSON"),
        (b"[1, 2]", "lines that are no object"),
        (b"null", "lines that are no object"),
        (b"\xff\xfe", "lines that are not JSON"),
        (b'{"type": ["user"]}', "lines of kind (none)"),
        (b'{"type": "user", "message": 5}', "messages without content"),
        (b'{"type": "\\u0007"}', "lines of kind (none)"),
    ],
)
def test_an_odd_line_is_counted(line: bytes, reason: str) -> None:
    good = [json.dumps(user("q")).encode(), json.dumps(answer("m", text("a"))).encode()]
    read = read_session("test", [*good[:1], line, *good[1:]])
    assert read.left_out == {reason: 1}
    assert len(read.turns) == 1


def test_a_line_without_end_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(json.dumps(user("q")).encode() + b"\n")
        file.write(b'{"a": "')
        file.seek(MAX_LINE_BYTES + 100, 1)  # a hole
        file.write(b'"}\n' + json.dumps(answer("m", text("a"))).encode())
    read = read_transcript(path)
    assert read.left_out == {"lines that are too long": 1}
    assert len(read.turns) == 1


def check(read: Session) -> None:
    """What the rest of the replay may rely on."""
    for turn in read.turns:
        messages = to_messages(turn.sent)
        json.dumps([*messages, turn.answer], ensure_ascii=False, allow_nan=False).encode()
        assert any(entry["role"] == "user" for entry in messages)
        for before, after in itertools.pairwise(messages):
            assert before["role"] != after["role"] or before["role"] == "tool" or before.get("tool_calls") is not None
            assert after["role"] != "tool" or before["role"] in {"assistant", "tool"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["user", "text", "m1", "c1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("type", "role", "content", "text", "id", "uuid", "parentUuid", "isSidechain", "agentId", "input", "name",
         "call_id", "tool_use_id", "output", "arguments", "message", "payload", "timestamp", "aiTitle", "action",
         "replacement_history", "num_turns", "isCompactSummary", "base_instructions", "dynamic_tools")  # fmt: skip
KINDS = ("user", "assistant", "system", "ai-title", "session_meta", "response_item", "compacted", "event_msg",
         "message", "function_call", "function_call_output", "custom_tool_call", "local_shell_call", "reasoning",
         "text", "tool_use", "tool_result", "thinking", "image", "input_text", "thread_rolled_back")  # fmt: skip
OBJECTS = st.recursive(
    st.dictionaries(st.sampled_from(NAMES), JSON | st.sampled_from(KINDS), max_size=6),
    lambda inner: st.dictionaries(st.sampled_from(NAMES), inner | st.lists(inner, max_size=3) | JSON, max_size=6).map(
        lambda entry: {"type": "user", **entry}
    ),
    max_leaves=8,
)


@given(st.lists(OBJECTS | JSON, max_size=8))
def test_no_object_is_fatal(lines: list[Any]) -> None:
    check(read_session("test", [json.dumps(line).encode() for line in lines]))


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_no_bytes_are_fatal(lines: list[bytes]) -> None:
    check(read_session("test", lines))


def _wound(rng: random.Random, value: Any) -> Any:
    """The value with one of its parts replaced by something else."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(sorted(value))
        return {**value, name: _wound(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        index = rng.randrange(len(value))
        return [*value[:index], _wound(rng, value[index]), *value[index + 1 :]]
    return rng.choice([None, 0, -1, 1e300, True, "", "x", "\ud800", [], {}, [None], {"type": []}, "tool_use", "user"])


def test_wounded_transcripts_are_read(full: bool) -> None:
    """Packaged files with lines torn, exchanged, repeated, and with parts replaced."""
    rng = random.Random(3)
    files = [path.read_bytes().splitlines() for path in sorted(FOLDER.glob("*.jsonl"))]
    n_turns = 0
    for _ in range(3000 if full else 80):
        lines = [line for line in rng.choice(files) if rng.random() < 0.95]
        for _ in range(rng.randrange(1, 8)):
            index = rng.randrange(len(lines))
            act = rng.randrange(4)
            if act == 0:
                lines[index] = lines[index][: rng.randrange(len(lines[index]) + 1)]
            elif act == 1:
                lines[index] = rng.choice(rng.choice(files))
            elif act == 2:
                lines.insert(index, lines[rng.randrange(len(lines))])
            else:
                try:
                    lines[index] = json.dumps(_wound(rng, json.loads(lines[index]))).encode()
                except ValueError:
                    continue  # torn before
        read = read_session("test", lines)
        check(read)
        n_turns += len(read.turns)
    assert n_turns > 500, "they are hardly read at all"
