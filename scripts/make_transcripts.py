#!/usr/bin/env python3
"""Write the transcripts under tests/data/transcripts: sessions of Claude Code and of Codex as those clients log them.

Made up from end to end, with nothing random: the same files each time. They hold what real ones hold: answers of
several lines, reasoning, tools in parallel, edits, a sub-agent, a title, an image, a call that was interrupted, going
back to an earlier message, and kinds of lines that are not for the model.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "transcripts"
NOUNS = ("order", "invoice", "ticket", "parcel", "meter", "sensor", "batch", "ledger", "route", "label")
VERBS = ("load", "check", "merge", "split", "count", "price", "close", "print", "sort", "send")
Line = dict[str, Any]


def pick(words: tuple[str, ...], *what: object) -> str:
    """One of the words; the same for the same arguments."""
    return words[zlib.crc32(repr(what).encode()) % len(words)]


def source(name: str, n_functions: int) -> str:
    """A file that an agent may read."""
    parts = [f'"""Everything about a {name}."""\n']
    for number in range(n_functions):
        verb, noun = pick(VERBS, name, number), pick(NOUNS, name, number, "n")
        parts.append(
            f"def {verb}_{noun}_{number}(items, limit={number * 3 + 1}):\n"
            f"    total = {number}\n"
            f"    for item in items:\n"
            f"        if item.{noun} > limit:\n"
            f"            total += item.{noun} * {number + 2}\n"
            f"    return total\n"
        )
    return "\n".join(parts)


def numbered(text: str) -> str:
    return "\n".join(f"{number:>5}\t{line}" for number, line in enumerate(text.splitlines(), start=1))


def test_output(name: str, n_tests: int, n_failed: int) -> str:
    lines = [
        f"tests/test_{name}.py::test_{pick(VERBS, name, n)}_{n} {'FAILED' if n < n_failed else 'PASSED'}"
        for n in range(n_tests)
    ]
    return "\n".join([*lines, f"{n_failed} failed, {n_tests - n_failed} passed in 0.{n_tests}s"])


class ClaudeLog:
    """Lines as Claude Code writes them, one minute after the other."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.lines: list[Line] = []
        self._n_messages = 0
        self._n_seconds = 0
        self.last: str | None = None

    def uuid(self) -> str:
        return f"{zlib.crc32(f'{self.session} {len(self.lines)}'.encode()):08x}-0000-4000-8000-{len(self.lines):012x}"

    def line(self, kind: str, *, parent: str | None = None, seconds: int = 2, **values: Any) -> str:
        self._n_seconds += seconds
        uuid = self.uuid()
        self.lines.append(
            {
                "parentUuid": parent if parent is not None else self.last, "isSidechain": False, "userType": "external",
                "cwd": "/home/user/shop", "sessionId": self.session, "version": "2.1.0", "type": kind, "uuid": uuid,
                "timestamp": f"2026-01-05T10:{self._n_seconds // 60:02}:{self._n_seconds % 60:02}.000Z", **values,
            }
        )  # fmt: skip
        self.last = uuid
        return uuid

    def user(self, content: str | list[Line], **values: Any) -> str:
        return self.line("user", message={"role": "user", "content": content}, seconds=20, **values)

    def answer(self, *blocks: Line, **values: Any) -> list[str]:
        """One answer: a line for each of its blocks."""
        self._n_messages += 1
        message = {
            "id": f"msg_{self.session[:4]}{self._n_messages:04}", "type": "message", "role": "assistant",
            "model": "claude-example", "usage": {"input_tokens": 4, "output_tokens": 1},
        }  # fmt: skip
        return [self.line("assistant", message={**message, "content": [block]}, **values) for block in blocks]

    def results(self, parents: list[str], *results: tuple[str, str | list[Line]], **values: Any) -> None:
        """A line for each result, below the line of its call."""
        for parent, (call, content) in zip(parents, results, strict=True):
            block = {"tool_use_id": call, "type": "tool_result", "content": content}
            message = {"role": "user", "content": [block]}
            self.line("user", parent=parent, message=message, toolUseResult={"stdout": "…"}, **values)


def text(value: str) -> Line:
    return {"type": "text", "text": value}


def thinking(value: str) -> Line:
    return {"type": "thinking", "thinking": value, "signature": "none"}


def use(call: str, name: str, **arguments: Any) -> Line:
    return {"type": "tool_use", "id": call, "name": name, "input": arguments}


def claude_fix() -> list[Line]:
    """A bug is found and mended: parallel reads, edits, a failing test, a title, an image."""
    log = ClaudeLog("1f0e2d3c-0000-4000-8000-00000000000a")
    log.lines.append({"type": "summary", "summary": "Another session", "leafUuid": "00000000-0000"})
    log.lines.append({"type": "file-history-snapshot", "messageId": "none", "snapshot": {}})
    log.user("<system-reminder>\nToday is a Monday.\n</system-reminder>", isMeta=True)
    log.user("The totals of an invoice are wrong when an item costs nothing. Please find out why and mend it.")
    log.lines.append({"type": "ai-title", "aiTitle": "Wrong totals of invoices", "sessionId": log.session})
    calls = log.answer(
        thinking("I should look at the code first."),
        text("I will read the two modules that add things up."),
        use("toolu_01", "Read", file_path="/home/user/shop/invoice.py"),
        use("toolu_02", "Read", file_path="/home/user/shop/ledger.py", limit=80),
    )
    log.results(calls[2:], ("toolu_01", numbered(source("invoice", 7))), ("toolu_02", numbered(source("ledger", 5))))
    calls = log.answer(use("toolu_03", "Grep", pattern="price_.*_3", path="/home/user/shop", output_mode="content"))
    hits = "\n".join(f"shop/{pick(NOUNS, n)}.py:{n * 7}: total = price_{n}_3(items)" for n in range(12))
    log.results(calls, ("toolu_03", [text(hits)]))
    for number, name in enumerate(("invoice", "ledger", "route"), start=4):
        calls = log.answer(
            thinking(f"The comparison in {name} leaves out what equals the limit."),
            use(f"toolu_{number:02}", "Edit", file_path=f"/home/user/shop/{name}.py", old_string="> limit:",
                new_string=">= limit:", replace_all=True),
        )  # fmt: skip
        changed = "\n".join(source(name, 4).replace("> limit", ">= limit").splitlines()[:14])
        log.results(calls[1:], (f"toolu_{number:02}", f"The file has been updated. Part of it:\n{numbered(changed)}"))
    calls = log.answer(use("toolu_07", "Bash", command="pytest -q tests", description="Run the tests"))
    log.results(calls, ("toolu_07", test_output("invoice", 14, 2)))
    calls = log.answer(
        text("Two tests expect the old sums. I will look at them."),
        use("toolu_08", "Read", file_path="/home/user/shop/tests/test_invoice.py"),
    )
    log.results(calls[1:], ("toolu_08", numbered(source("test_invoice", 5))))
    calls = log.answer(use("toolu_09", "Bash", command="pytest -q tests -k invoice", description="Run some tests"))
    log.results(calls, ("toolu_09", test_output("invoice", 9, 0)))
    log.answer(text("All tests pass. What cost nothing had been left out of the sums, in three places."))
    log.line("system", subtype="turn_duration", durationMs=41000)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
    log.user([text("Thank you. Does this picture of the invoice look right to you?"), image])
    log.answer(text("I cannot see the sums in it. Please print them as text."))
    return log.lines


def claude_agents() -> list[Line]:
    """A sub-agent searches, the user interrupts a call, goes back to the first question and asks another one."""
    log = ClaudeLog("2a9b8c7d-0000-4000-8000-00000000000b")
    log.user("Where is the price of a parcel computed?")
    calls = log.answer(
        text("I will let a sub-agent search."),
        use("toolu_21", "Task", description="Find the price", prompt="Find where the price of a parcel is computed.",
            subagent_type="search"),
    )  # fmt: skip
    side = {"isSidechain": True, "agentId": "a1"}
    log.user("Find where the price of a parcel is computed.", **side)
    searched = log.answer(use("toolu_31", "Grep", pattern="parcel", path="/home/user/shop"), **side)
    log.results(searched, ("toolu_31", "\n".join(f"shop/parcel.py:{n * 9}: parcel" for n in range(10))), **side)
    searched = log.answer(use("toolu_32", "Read", file_path="/home/user/shop/parcel.py"), **side)
    log.results(searched, ("toolu_32", numbered(source("parcel", 5))), **side)
    log.answer(text("It is computed in shop/parcel.py, in the second function."), **side)
    log.results(calls[1:], ("toolu_21", [text("It is computed in shop/parcel.py, in the second function.")]))
    answered = log.answer(thinking("That is the answer."), text("In shop/parcel.py, in its second function."))[-1]
    log.user("Delete that file.")
    log.answer(use("toolu_22", "Bash", command="rm shop/parcel.py", description="Delete the file"))
    log.user([text("[Request interrupted by user for tool use]")])
    log.user("Better not: it may still be needed.")
    log.answer(text("Then I leave it where it is."))
    log.line(
        "assistant", isApiErrorMessage=True,
        message={"id": "x", "role": "assistant", "model": "<synthetic>", "content": [text("API Error")]},
    )  # fmt: skip
    log.user("Where is the weight of a parcel checked?", parent=answered)
    calls = log.answer(use("toolu_23", "Read", file_path="/home/user/shop/weight.py"))
    log.results(calls, ("toolu_23", numbered(source("weight", 6))))
    log.answer(text("In shop/weight.py, before it is sent."))
    return log.lines


class CodexLog:
    """Lines as Codex writes them."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def line(self, kind: str, **payload: Any) -> None:
        n = 5 * len(self.lines)
        time = f"2026-01-06T09:{n // 60:02}:{n % 60:02}.000Z"
        self.lines.append({"timestamp": time, "type": kind, "payload": payload})

    def message(self, role: str, value: str) -> None:
        kind = "output_text" if role == "assistant" else "input_text"
        self.line("response_item", type="message", role=role, content=[{"type": kind, "text": value}])

    def reason(self) -> None:
        self.line("response_item", type="reasoning", summary=[], content=None, encrypted_content="bm9uZQ==")

    def shell(self, *commands: tuple[str, str]) -> None:
        """Commands that are run in one answer, and their output."""
        calls = [f"call_{len(self.lines)}_{number}" for number in range(len(commands))]
        for call, (command, _) in zip(calls, commands, strict=True):
            arguments = json.dumps({"cmd": command, "workdir": "/home/user/shop"})
            self.line("response_item", type="function_call", name="exec_command", arguments=arguments, call_id=call)
        for call, (_, output) in zip(calls, commands, strict=True):
            self.line("response_item", type="function_call_output", call_id=call, output=output)

    def patch(self, value: str) -> None:
        call = f"call_{len(self.lines)}"
        self.line(
            "response_item", type="custom_tool_call", status="completed", call_id=call, name="apply_patch", input=value
        )
        self.line("response_item", type="custom_tool_call_output", call_id=call, output="Done!")


def codex_feature() -> list[Line]:
    """A function is added: two developer messages, reasoning, parallel commands, patches."""
    log = CodexLog()
    log.line("session_meta", id="01990000-0000-7000-8000-000000000001", cwd="/home/user/shop", cli_version="0.169.0",
             originator="codex_exec", source="exec", model_provider="example")  # fmt: skip
    log.message("developer", "<permissions>\nThe folder may be written, the network may not be used.\n</permissions>")
    log.message("developer", "<collaboration_mode>\nFinish the task before you answer.\n</collaboration_mode>")
    log.message("user", "<environment_context>\n  <cwd>/home/user/shop</cwd>\n</environment_context>")
    log.message("user", "Add a function that counts the open tickets, with a test.")
    log.line("event_msg", type="user_message", message="Add a function that counts the open tickets, with a test.")
    log.line("turn_context", cwd="/home/user/shop", model="example", approval_policy="never")
    log.reason()
    log.message("assistant", "I will look at the module and at its tests.")
    log.shell(("cat ticket.py", source("ticket", 7)), ("cat tests/test_ticket.py", source("test_ticket", 4)))
    log.line("event_msg", type="token_count", info=None)
    log.shell(("ls -R .", "\n".join(f"./{pick(NOUNS, n)}_{n}.py" for n in range(25))))
    for number in range(3):
        log.reason()
        added = "\n".join(f"+{line}" for line in source(f"open_ticket_{number}", 2).splitlines())
        log.patch(f"*** Begin Patch\n*** Update File: ticket.py\n@@\n{added}\n*** End Patch")
        log.shell(("pytest -q", test_output("ticket", 8 + number, 2 - number)))
    log.message("assistant", "There is count_open_tickets() now, and a test for it. All tests pass.")
    log.message("user", "Call it in the report as well.")
    log.reason()
    log.shell(("cat report.py", source("report", 5)), ("git status --short", " M ticket.py\n?? tests/test_open.py"))
    log.patch("*** Begin Patch\n*** Update File: report.py\n@@\n+print(count_open_tickets(items))\n*** End Patch")
    log.message("assistant", "The report shows it.")
    return log.lines


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    files = {"claude-fix": claude_fix(), "claude-agents": claude_agents(), "rollout-codex-feature": codex_feature()}
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


if __name__ == "__main__":
    main()
