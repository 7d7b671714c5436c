"""Texts of sessions: what each agent writes, and lines that nobody should write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.cli.experts.corpus_file import is_held_back
from luce.supervisor.cli.experts.sessions import SessionReader, find_sessions

TRANSCRIPTS = Path(__file__).resolve().parents[2] / "data" / "transcripts"


def said(*lines: Any) -> list[str]:
    return SessionReader().read_lines("test", [json.dumps(line).encode() for line in lines]).text.split("\n\n")


def claude(role: str, content: Any, **values: Any) -> dict[str, Any]:
    return {"type": role, "isSidechain": False, "message": {"role": role, "content": content}, **values}


def codex(kind: str, **values: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-06T09:00:00Z", "type": "response_item", "payload": {"type": kind, **values}}


def test_claude_code() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "ä.py"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "def f(): ..."}]}
    assert said(
        {"type": "summary", "summary": "Another session", "leafUuid": "0"},
        claude("user", "Mend it."),
        claude("assistant", [{"type": "thinking", "thinking": "Where is it?", "signature": "none"}]),
        claude("assistant", [{"type": "text", "text": "I look."}, use]),
        claude("user", [result, {"type": "image", "source": {"type": "base64", "data": "iVBOR"}}]),
        claude("user", [{"type": "tool_result", "tool_use_id": "t2", "content": "a plain one"}]),
        {"type": "system", "content": "what the client shows"},
    ) == ["Mend it.", "Where is it?", "I look.", 'Read {"path": "ä.py"}', "def f(): ...", "a plain one"]


def test_codex() -> None:
    instructions = {"timestamp": "", "type": "session_meta", "payload": {"base_instructions": {"text": "You are"}}}
    event = {"timestamp": "", "type": "event_msg", "payload": {"type": "user_message", "message": "Count them."}}
    action = {"type": "exec", "command": ["ls"]}
    assert said(
        instructions,
        codex("message", role="developer", content=[{"type": "input_text", "text": "<permissions>"}]),
        codex("message", role="user", content=[{"type": "input_text", "text": "Count them."}]),
        event,
        codex("reasoning", summary=[{"type": "summary_text", "text": "Some."}], encrypted_content="gAAA"),
        codex("function_call", name="shell", arguments='{"command":"ls"}', call_id="c1"),
        codex("function_call_output", call_id="c1", output="a.py"),
        codex("custom_tool_call", name="apply_patch", input="*** Begin Patch", call_id="c2"),
        codex("custom_tool_call_output", call_id="c2", output={"content": "done", "success": True}),
        codex("local_shell_call", action=action, call_id="c3"),
        codex("message", role="assistant", content=[{"type": "output_text", "text": "Two."}]),
    ) == [
        "Count them.", "Some.", 'shell {"command":"ls"}', "a.py", "apply_patch *** Begin Patch", "done",
        f"shell {json.dumps(action)}", "Two.",
    ]  # fmt: skip


def test_codex_without_envelopes() -> None:
    meta = {"id": "0199", "timestamp": "", "instructions": "You are"}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
    assert said(meta, {"record_type": "state"}, item) == ["Hello"]


def test_the_packaged_transcripts() -> None:
    reader = SessionReader()
    files = find_sessions([TRANSCRIPTS, TRANSCRIPTS / "claude-fix.jsonl"])
    assert [file.name for file in files] == ["claude-agents.jsonl", "claude-fix.jsonl", "rollout-codex-feature.jsonl"]
    agents, fix, feature = map(reader.read, files)
    assert "Find where the price of a parcel is computed." in agents.text
    assert "I should look at the code first." in fix.text
    assert "Add a function that counts the open tickets" in feature.text
    assert feature.text.count("Add a function that counts the open tickets") == 1
    assert "<permissions>" not in feature.text
    assert set(reader.left_out) <= {"known from before", "no JSON"}


def test_lines_that_another_session_goes_on_from_are_read_once() -> None:
    reader = SessionReader()
    first = json.dumps(claude("user", "once", uuid="u1")).encode()
    second = json.dumps(claude("user", "more", uuid="u2")).encode()
    assert reader.read_lines("a", [first]).text == "once"
    assert reader.read_lines("b", [first, second]).text == "more"
    assert reader.left_out == {"known from before": 1}


def test_lines_that_cannot_be_read_are_counted() -> None:
    reader = SessionReader()
    whole = json.dumps(claude("user", "still there")).encode()
    deep = b'{"type": "user", "message": {"content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    huge = b'{"n": ' + b"9" * 5000 + b"}"
    lines = [b'{"torn": ', b"[1]", b"\xff\xfe", b"\n", deep, huge, whole]
    assert reader.read_lines("test", lines).text == "still there"
    assert reader.left_out == {"no JSON": 4, "no object": 1}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["message", "x_call", "user"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "message", "content", "payload", "text", "output", "input", "uuid"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.lists(json_values, max_size=4), st.binary(max_size=30))
def test_whatever_stands_in_a_line_ends_in_a_text(values: list[Any], noise: bytes) -> None:
    lines = [*(json.dumps(value).encode() for value in values), noise]
    SessionReader().read_lines("test", lines).text.encode()


def test_what_is_held_back_hangs_on_the_name_alone() -> None:
    names = [f"session-{n}" for n in range(1000)]
    few = {name for name in names if is_held_back(name, 0.2)}
    assert 150 < len(few) < 250
    assert few < {name for name in names if is_held_back(name, 0.5)}
