"""What --trace writes, and what `status` says of the time of steps: parts that are within their step and add up."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luce.protocol import Err, Pong, parse_reply
from tests.daemon.conftest import Start
from tests.daemon.exactness import status_of
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt

LONG = "ignore_eos=1"
PARTS = (
    "loop", "idle", "commands", "step", "admit", "write_back", "speculate", "draft", "plan", "make_room", "submit",
    "wait", "logits", "choose", "sample", "remember", "copy", "copy_wait", "output",
)  # fmt: skip
TOLD_TO_S = 1e-6 * (len(PARTS) + 1)  # each figure has six decimals

Event = dict[str, Any]


def closed_by_hand(text: str) -> list[Event]:
    """Of a file that was cut off, as docs/benchmarks/profile.md says."""
    events: list[Event] = json.loads(text[: text.rindex(",\n")] + "]")
    return events


def spans_of(events: list[Event]) -> list[Event]:
    return [event for event in events if event["ph"] == "X"]


def end_of(span: Event) -> float:
    return float(span["ts"] + span["dur"])


def children(spans: list[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """Each span of one thread with those right within it; fails where two overlap otherwise."""
    ns = 1e-3  # as exactly as the file has them, in a float of a machine that has been up for long
    stack: list[tuple[Event, list[Event]]] = []
    for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        while stack and end_of(stack[-1][0]) <= span["ts"] + ns:
            yield stack.pop()
        if stack:
            assert end_of(span) <= end_of(stack[-1][0]) + ns, (stack[-1][0], span)
            stack[-1][1].append(span)
        stack.append((span, []))
    yield from stack


def test_the_last_token_is_written_before_its_text_is_let_go_of(start: Start, tmp_path: Path) -> None:
    """With long texts that takes longer than a token."""
    path = tmp_path / "trace.json"
    daemon = start("--ctx", "1024", "--trace", str(path))
    for id_, n in ((1, 5), (2, 1)):
        daemon.send(gen_line(id_, n, random_prompt(500, seed=id_), f"{LONG} temp=0"))
        daemon.collect(1)
    assert daemon.close() == 0
    names = [span["name"] for span in sorted(spans_of(json.loads(path.read_text())), key=lambda span: span["ts"])]
    begins = [at for at, name in enumerate(names) if name == "admit"]
    assert len(begins) >= 2
    requests = " ".join(names).split("idle")  # what was done for each
    ends = [request.rpartition("sample")[2].split() for request in requests if "sample" in request]
    assert len(ends) == 2
    for after in ends:
        assert after.index("output") < len(after) - 1 - after[::-1].index("remember")


def test_a_trace_holds_whole_nested_spans_of_every_step(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    daemon = start("--ctx", "1024", "--lanes", "3", "--trace", str(path))
    for id_ in (1, 2, 3):
        daemon.send(gen_line(id_, 12, random_prompt(100 + id_, seed=id_), f"{LONG} temp=0.8 seed=1"))
    daemon.collect(3)
    status = status_of(daemon)
    assert daemon.close() == 0
    events = json.loads(path.read_text())
    assert [event["args"]["left_out"] for event in events if event["name"] == "luced_trace_end"] == [0]
    spans = spans_of(events)
    (engine,) = {span["tid"] for span in spans if span["name"] == "step"}
    family = list(children([span for span in spans if span["tid"] == engine]))
    assert {span["name"] for span, _ in family} <= set(PARTS)
    for span, within in family:
        assert sum(part["dur"] for part in within) <= span["dur"] + 1e-3 * (len(within) + 1)
    steps = [(span, within) for span, within in family if span["name"] == "step"]
    assert len(steps) == int(status["steps"])
    assert sum(span["args"]["tokens"] for span, _ in steps) == int(status["call_tokens"])
    calls = [part for _, within in steps for part in within if part["name"] == "submit"]
    assert len(calls) == int(status["calls"])
    assert {call["args"]["lanes"] for call in calls} >= {3}
    assert max(call["args"]["cells"] for call in calls) >= 3 * 100
    assert sum(span["name"] == "sample" for span, _ in family) == 3 * 12


def test_the_parts_add_up_to_all_of_the_engines_time(start: Start) -> None:
    daemon = start("--ctx", "1024", "--draft-max", "0")  # a step for each token
    before = status_of(daemon)
    daemon.generate(random_prompt(200), 8, LONG)
    after = status_of(daemon)
    for status in (before, after):
        parts = [float(status[f"time_{part}_s"]) for part in PARTS]
        assert sum(parts) == pytest.approx(float(status["time_s"]), abs=TOLD_TO_S)
        assert {name for name in status if name.startswith("time_")} == {"time_s", *(f"time_{p}_s" for p in PARTS)}
    assert (before["steps"], before["calls"], before["time_submit_s"]) == ("0", "0", "0.000000")
    assert int(after["steps"]) >= 8
    assert int(after["call_tokens"]) >= 200 + 7
    assert int(after["call_lanes"]) == int(after["calls"]), "one lane ran"
    assert int(after["call_cells"]) >= 7 * 200
    grown = [part for part in PARTS if float(after[f"time_{part}_s"]) > float(before[f"time_{part}_s"])]
    assert {"submit", "sample", "plan", "output", "commands"} <= set(grown)
    assert all(float(after[f"time_{part}_s"]) >= float(before[f"time_{part}_s"]) for part in PARTS)


def test_what_a_drafter_computes_is_drafting(start: Start, packaged_draft: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    drafter = ("--draft", str(packaged_draft), "--draft-adaptive", "off", "--draft-ngram", "off")
    daemon = start("--ctx", "1024", "--trace", str(path), *drafter)
    daemon.generate(random_prompt(300), 16, LONG)
    status = status_of(daemon)
    assert daemon.close() == 0
    assert int(status["spec_drafted"]) > 0
    assert float(status["time_draft_s"]) >= float(status["spec_draft_s"]) > 0
    spans = spans_of(json.loads(path.read_text()))
    engine = [span for span in spans if span["tid"] == next(s["tid"] for s in spans if s["name"] == "step")]
    parents = {span["name"] for span, within in children(engine) if any(part["name"] == "draft" for part in within)}
    assert parents == {"speculate", "step"}, "it is asked, and it reads what was computed, the prompt too"


def test_pages_are_copied_when_nobody_computes_and_not_on_a_steps_time(
    start: Start, test_models: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    daemon = start("--ctx", "1024", "--host-cache", "64M", "--trace", str(path), model=test_models / "qwen3.gguf")
    daemon.generate(random_prompt(320), 140, LONG)
    n_pages = (320 + 139) // 64  # filled; the last token was not computed
    while int((status := status_of(daemon))["pages_host"]) < n_pages:
        pass
    assert int(status["pages_host"]) == int(status["pages_resident"]) == n_pages
    daemon.generate(random_prompt(20, seed=3), 8, LONG)
    assert daemon.close() == 0
    spans = spans_of(json.loads(path.read_text()))
    (engine,) = {span["tid"] for span in spans if span["name"] == "step"}
    spans = [span for span in spans if span["tid"] == engine]
    for span, within in children(spans):
        assert span["name"] != "step" or "write_back" not in {part["name"] for part in within}
    written_back = [span for span in spans if span["name"] == "write_back"]
    n_bytes: dict[bool, list[int]] = {True: [], False: []}
    for copy in spans:
        if copy["name"] == "copy" and copy["args"]["bytes"] > 0:
            is_page = any(span["ts"] <= copy["ts"] <= end_of(span) for span in written_back)
            n_bytes[is_page].append(copy["args"]["bytes"])
    page_bytes = int(dict(daemon.ready.fields)["page_bytes"])
    assert n_bytes[True] == [page_bytes] * n_pages
    assert all(n < page_bytes for n in n_bytes[False]), "checkpoints, with the rows behind the last page"


def test_a_trace_that_a_kill_cut_off_can_be_read_and_is_continued(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    arguments = ("--ctx", "1024", "--trace", str(path))
    killed = start(*arguments)
    while '"submit"' not in path.read_text():  # written a few times a second
        killed.generate(random_prompt(20), 8, LONG)
    killed.child.send_signal(signal.SIGKILL)
    killed.wait()
    first = spans_of(closed_by_hand(path.read_text()))
    assert any(span["name"] == "step" for span in first)

    second = start(*arguments)
    second.generate(random_prompt(20), 2, LONG)
    assert second.close() == 0
    both = spans_of(json.loads(path.read_text()))
    assert both[: len(first)] == first
    assert {span["pid"] for span in both} == {killed.child.pid, second.child.pid}

    third = start(*arguments)
    assert third.close() == 0
    assert {span["pid"] for span in spans_of(json.loads(path.read_text()))} == {third.child.pid}


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [("/dev/full", 2, "No space left"), ("{folder}/no/trace", 2, "No such file"), ("{folder}/notes", 64, "and stays")],
)
def test_a_trace_that_cannot_be_written_is_refused_at_the_start(
    luced: Path, tiny_model: Path, tmp_path: Path, name: str, status: int, said: str
) -> None:
    notes = tmp_path / "notes"
    notes.write_text("mine\n")
    command = [str(luced), "--model", str(tiny_model), "--threads", "1", "--no-warmup"]
    command += ["--trace", name.format(folder=tmp_path)]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False)
    reply = parse_reply(done.stdout.splitlines()[-1])
    assert isinstance(reply, Err), reply
    assert said in reply.text
    assert done.returncode == status
    assert notes.read_text() == "mine\n"


def test_a_disk_that_takes_no_more_ends_the_trace_and_no_request(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    daemon = start("--ctx", "1024", "--trace", str(path))
    limit = 20_000  # as full as a disk can be made here
    resource.prlimit(daemon.child.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for id_ in range(20):
        assert len(daemon.generate(random_prompt(20, seed=id_), 10, LONG).tokens) == 10
    assert daemon.close() == 0
    text = path.read_text()
    assert len(text) <= limit
    assert text.endswith(",\n")
    assert closed_by_hand(text)[0]["name"] == "luced_trace"


def test_two_engines_do_not_write_one_trace(start: Start, luced: Path, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    daemon = start("--trace", str(path))
    refused = DaemonDriver(luced, tiny_model, "--trace", str(path))
    reply = refused.next_reply()
    assert isinstance(reply, Err), reply
    assert "another process" in reply.text
    assert refused.close() == 64
    daemon.send("ping here")
    assert daemon.next_reply() == Pong("here")


def test_without_the_option_nothing_is_written(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    daemon = start("--ctx", "256")
    daemon.generate(random_prompt(20), 2, LONG)
    assert daemon.close() == 0
    assert list(tmp_path.iterdir()) == []
