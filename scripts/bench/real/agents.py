"""Agents: a model that works with real tools through each API, and recorded sessions with their own answers. What is
read anew is set against what is new; the first token against llama-server's; and calls that come as text are counted.

Live, the model's own answers make the conversation, so it parts from llama-server's. In recorded sessions all sides get
the same requests, sub-agents among them, then a summary and what goes on behind it. One token is asked for: the time of
a request is that of the first token. Sides take turns, request by request.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from luce.supervisor.evaluating.transcripts import find_transcripts, read_transcript
from luce.supervisor.text import TextModel
from scripts.bench.harness import ROOT, Ratio, in_turns, llama_server_arguments, luced_arguments
from scripts.bench.real.agent_apis import APIS, CHAT, TOOL_APIS, Api, Message, Said
from scripts.bench.real.agent_tools import FUNCTIONS, SYSTEM, TASKS, Folder, scratch_folder
from scripts.bench.real.rows import Row, Setup
from scripts.bench.replay.prompts import Prepared, PromptMaker, Setting
from scripts.bench.servers import LlamaServer, LuceServer, ServerProcess

GREEDY: Mapping[str, Any] = {"temperature": 0}
SAMPLED: Mapping[str, Any] = {"temperature": 0.7, "top_k": 40, "top_p": 0.95}
_TRANSCRIPTS = ROOT / "tests" / "data" / "transcripts"
_SUMMARISE = "Summarise what has been done so far, and what is left to do."
_CALLS_IN_A_ROW = 2  # then the next task: small models repeat themselves
_LANES = 2


@dataclass(frozen=True)
class Volume:
    n_tasks: int = len(TASKS)
    n_answer: int = 96
    seeds: tuple[int, ...] = (1,)
    """Of sampled loops beside a greedy one."""
    n_sessions: int = 3
    n_turns: int = 20
    n_ctx: int = 8192
    system_bytes: int = 3000
    apis: Sequence[Api] = APIS


QUICK = Volume(n_tasks=3, n_answer=64, seeds=(), n_sessions=1, n_turns=4, system_bytes=1000)


def measure(setup: Setup, volume: Volume | None = None) -> list[Row]:
    chosen = volume or (QUICK if setup.quick else Volume())
    with TextModel(setup.model) as text:
        sessions = _sessions(text, chosen)
        calls = _can_call(text)
    with ExitStack() as stack:
        cells = _LANES * chosen.n_ctx
        arguments = luced_arguments(setup.engine, _LANES, chosen.n_ctx, cells)
        ours = stack.enter_context(LuceServer(setup.model, arguments, setup.luced))
        theirs: ServerProcess | None = None
        if setup.server is not None:
            peer = llama_server_arguments(setup.engine, _LANES, cells)
            theirs = stack.enter_context(LlamaServer(setup.server, setup.model, "--jinja", *peer))
        live = list(_live_rows(ours, theirs, chosen)) if calls else []
        return [*live, *_recorded_rows(ours, theirs, sessions, chosen.apis)]


def _can_call(text: TextModel) -> bool:
    """Whether its template has a form for calls: models of other templates hardly call."""
    chat = text.render([{"role": "user", "content": "Hello"}], tools=[{"type": "function", "function": FUNCTIONS[0]}])
    try:
        return bool(chat.triggers)
    finally:
        chat.close()


# A model with tools


@dataclass
class Read:
    """Of warm requests, in tokens."""

    n_anew: int = 0
    n_new: int = 0

    def add(self, said: Said, n_known: int) -> None:
        """`n_known`: tokens of the prompt that were read or written before."""
        self.n_anew += said.n_prompt - said.n_cached
        self.n_new += said.n_prompt - n_known

    def row(self, what: str, theirs: Read | None = None) -> Row:
        ratio = self.n_anew / max(self.n_new, 1)
        peer = None if theirs is None else theirs.n_anew / max(theirs.n_new, 1)
        note = f"{self.n_anew:,} read where {self.n_new:,} are new"
        return Row(f"{what}: read anew of what is new", ratio, peer, "", "<= 1.02", ratio <= 1.02, note)


@dataclass
class Loop:
    """What came of one."""

    n_answers: int = 0
    n_calling: int = 0
    n_leaked: int = 0
    read: Read = field(default_factory=Read)


def _live_rows(ours: ServerProcess, theirs: ServerProcess | None, volume: Volume) -> Iterator[Row]:
    ways = [GREEDY, *({**SAMPLED, "seed": seed} for seed in volume.seeds)]
    for api in TOOL_APIS:
        if api not in volume.apis:
            continue
        found = _all(play(ours, api, way, volume) for way in ways)
        peer = _all(play(theirs, api, way, volume) for way in ways) if theirs is not None and api is CHAT else None
        yield Row(f"live, {api.name}: answers", found.n_answers, None if peer is None else peer.n_answers)
        for what, ours_n, theirs_n, aim in (
            ("with a call", found.n_calling, None if peer is None else peer.n_calling, None),
            ("with a leaked call", found.n_leaked, None if peer is None else peer.n_leaked, 0.02),
        ):
            share = ours_n / found.n_answers
            peers = None if peer is None or theirs_n is None else theirs_n / peer.n_answers
            wanted = "" if aim is None else f"<= {aim}"
            yield Row(
                f"live, {api.name}: share {what}", share, peers, "", wanted, None if aim is None else share <= aim
            )
        yield found.read.row(f"live, {api.name}", None if peer is None else peer.read)


def _all(loops: Iterator[Loop]) -> Loop:
    total = Loop()
    for loop in loops:
        total.n_answers += loop.n_answers
        total.n_calling += loop.n_calling
        total.n_leaked += loop.n_leaked
        total.read.n_anew += loop.read.n_anew
        total.read.n_new += loop.read.n_new
    return total


def play(server: ServerProcess, api: Api, sampling: Mapping[str, Any], volume: Volume) -> Loop:
    """The tasks one after the other, in a folder of its own; each call that comes is made. No loop shares its beginning
    with another one's."""
    loop = Loop()
    messages: list[Message] = [{"role": "system", "content": f"{api.name}, {dict(sampling)}\n{SYSTEM}"}]
    before: Said | None = None
    with scratch_folder() as folder:
        for task in TASKS[: volume.n_tasks]:
            messages.append({"role": "user", "content": task})
            for _ in range(_CALLS_IN_A_ROW + 1):
                body = {**api.body(messages, FUNCTIONS, volume.n_answer), **sampling}
                said = api.said(server.post_to(api.path, body))
                if before is not None:
                    loop.read.add(said, before.n_prompt + before.n_written)
                loop.n_answers += 1
                loop.n_calling += bool(said.calls)
                loop.n_leaked += is_leaked(said.text)
                before = said
                messages += [said.message, *_results(folder, said)]
                if not said.calls:
                    break
    return loop


def _results(folder: Folder, said: Said) -> Iterator[Message]:
    for id_, name, arguments in said.calls:
        yield {"role": "tool", "tool_call_id": id_, "content": folder.call(name, json.loads(arguments))}


def is_leaked(text: str) -> bool:
    """Whether a text has the JSON of a call of one of the tools."""
    names = "|".join(function["name"] for function in FUNCTIONS)
    return re.search(rf"""["'](?:name|function)["']\s*:\s*["'](?:{names})["']""", text) is not None


# Recorded sessions

_Times = dict[str, list[float]]
"""In s, by side."""


@dataclass(frozen=True)
class Request:
    messages: Sequence[Message]
    tools: Sequence[Message]
    before: int | None
    """The latest request that this one goes on from, by its number."""
    is_compacted: bool = False
    """The first one behind a summary."""


def _sessions(text: TextModel, volume: Volume) -> list[list[Request]]:
    sessions = [read_transcript(path) for path in find_transcripts([_TRANSCRIPTS])]
    maker = PromptMaker(text, sessions, Setting(system_bytes=volume.system_bytes))
    longest = sorted(sessions, key=lambda session: -len(session.turns))[: volume.n_sessions]
    prepared = [maker.prepare(session, n_ctx=volume.n_ctx, max_tokens=1) for session in longest]
    return [_requests(session, volume) for session in prepared]


def _requests(session: Prepared, volume: Volume) -> list[Request]:
    """Its own, then a summary of the conversation, and its last messages again behind that."""
    found: list[Request] = []

    def add(messages: Sequence[Message], tools: Sequence[Message], *, is_compacted: bool = False) -> None:
        earlier = [n for n, request in enumerate(found) if list(messages[: len(request.messages)]) == request.messages]
        found.append(Request(list(messages), tools, max(earlier, default=None), is_compacted))

    prompts = session.prompts[: volume.n_turns]
    for prompt in prompts:
        add(prompt.messages, [tool["function"] for tool in prompt.tools])
    last = next(prompt for prompt in reversed(prompts) if prompt.kind == "main")
    tools = [tool["function"] for tool in last.tools]
    add([*last.messages, {"role": "user", "content": _SUMMARISE}], tools)
    texts = [str(each["content"]) for each in last.messages if each["role"] == "assistant" and each["content"]]
    compacted: list[Message] = [last.messages[0], {"role": "user", "content": "So far:\n" + "\n".join(texts)[:1500]}]
    add(compacted, tools, is_compacted=True)
    for text in texts[-2:]:
        compacted += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
        add(compacted, tools)
    return found


def _recorded_rows(
    ours: ServerProcess, theirs: ServerProcess | None, sessions: Sequence[Sequence[Request]], apis: Sequence[Api]
) -> Iterator[Row]:
    for api in apis:
        sides = {"ours": ours} | ({"theirs": theirs} if theirs is not None and api is CHAT else {})
        reads = {name: Read() for name in sides}
        warm: _Times = {name: [] for name in sides}
        back: _Times = {name: [] for name in sides}
        behind: _Times = {name: [] for name in sides}
        for number, session in enumerate(sessions):
            told: dict[str, list[Said]] = {name: [] for name in sides}
            for turn, request in enumerate(session):
                body = {**api.body(_of_its_own(request.messages, api), request.tools, 1), **GREEDY}
                for name in in_turns(tuple(sides), number + turn):
                    began_s = time.monotonic()
                    said = api.said(sides[name].post_to(api.path, body))
                    took_s = time.monotonic() - began_s
                    told[name].append(said)
                    if request.before is not None:
                        reads[name].add(said, told[name][request.before].n_prompt)
                        warm[name].append(took_s)
                        if request.before != turn - 1:
                            back[name].append(took_s)
                    elif request.is_compacted:
                        behind[name].append(took_s)
        yield reads["ours"].row(f"recorded, {api.name}", reads.get("theirs"))
        yield _first_token(f"recorded, {api.name}: first token of warm turns", warm, "<= 0.5 of llama-server")
        if back["ours"]:
            yield _first_token(f"recorded, {api.name}: of these, back from a sub-agent", back, "")
        yield _first_token(f"recorded, {api.name}: first token behind a summary", behind, "")


def _of_its_own(messages: Sequence[Message], api: Api) -> list[Message]:
    """The conversation, so that none of another API's begins as it does."""
    system, *others = messages
    return [{**system, "content": f"{api.name}\n{system['content']}"}, *others]


def _first_token(what: str, took_s: _Times, aim: str) -> Row:
    ours, theirs = took_s["ours"], took_s.get("theirs", [])
    if not theirs:
        return Row(what, median(ours), unit="s")
    ratio = Ratio.of([a / b for a, b in zip(ours, theirs, strict=True)])
    is_met = ratio.median <= 0.5 if aim else None
    note = "" if is_met else f"ratio {ratio}; a side that has lost nothing reads the same tokens"
    return Row(what, median(ours), median(theirs), "s", aim, is_met, note)
