#!/usr/bin/env python3
"""Measure what coding agents' habits cost: tokens that are read anew a turn, against what is new.

Plays conversations of Claude Code, Codex, opencode and pi (their recorded heads, each in its dialect, over HTTP) to
`luce serve` and, with --vs, to llama-server. Each effect is one habit: answers sent back in another spelling, reminders
dropped, side requests, a restart. Answers are the model's own and come back as the client would send them.

*Ideal* is what lies behind the longest beginning that a prompt shares with an earlier prompt and its answer of the same
client, as the template shows a client that changes nothing: where an effect changes earlier text, it counts from the
first difference on. Token counts do not depend on the machine. With --held-back other clients' sessions are
played, whose habits are combined at random.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from scripts.bench.harness import llama_server_arguments, luced_arguments, parser_of, write_json
from scripts.bench.replay.held_back import held_back
from scripts.bench.replay.http_clients import AS_GIVEN, CLIENTS, Body, Client, Message, Said, Spelling
from scripts.bench.replay.http_others import OTHERS
from scripts.bench.replay.http_scenarios import EFFECTS, Effect
from scripts.bench.servers import LlamaServer, LuceServer, ServerProcess

CTX = 16384
N_LANES = 4
REASONING_TOKENS = 16
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Turn:
    effect: str
    client: str
    n_prompt: int
    n_ideal: int
    n_read: int


class RefusedError(Exception):
    """The server does not take such a request."""


class Player:
    """One client's conversations with one server: sends, and counts. What it has sent is known to later turns."""

    def __init__(self, client: Client, model: TextModel, url: Callable[[], str], restart: Callable[[], None]) -> None:
        self.client = client
        self.restart = restart
        self.turns: list[Turn] = []
        self._model = model
        self._renderer = Renderer(model)
        self._url = url
        self._earlier: list[tuple[int, ...]] = []
        self._effect = ""
        self.n_begun = 0

    def play(self, effect: Effect) -> None:
        self._effect = effect.name
        effect.play(self)

    def begin(self, question: str, spelling: Spelling = AS_GIVEN, folder: str = "/home/ada/work/alpha") -> Conversation:
        self.n_begun += 1
        return Conversation(self, self.client.begun(question, folder, self.n_begun), spelling)

    def ask(self, sent: Body, faithful: Body, *, is_counted: bool) -> Said:
        """`faithful`: as a client sends it that changes nothing."""
        prompt = self.client.prompt(faithful, self._model)
        ids = tuple(self._renderer.render(prompt).ids)
        said = self.client.said(self._post(sent))
        if said.is_cut_off:
            raise RefusedError("a call was cut off by the limit")
        n_ideal = len(ids) - max((n_shared(ids, other) for other in self._earlier), default=0)
        whole = replace(prompt, messages=[*prompt.messages, said.message()], opens_answer=False, continues_last=False)
        self._earlier += [ids, self._up_to_end(tuple(self._renderer.render(whole).ids))]
        if is_counted:
            self.turns.append(Turn(self._effect, self.client.name, said.n_prompt, n_ideal, said.n_read))
        return said

    def _up_to_end(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Behind the token that ends a turn there may be white space of the template's."""
        end = next((at for at in reversed(range(len(ids))) if ids[at] in self._model.info.eog), len(ids) - 1)
        return ids[: end + 1]

    def _post(self, body: Body) -> Body:
        headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
        url = self._url() + self.client.path
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
                answer: Body = json.load(response)
        except urllib.error.HTTPError as error:
            raise RefusedError(error.read()[:300].decode(errors="replace")) from error
        return answer


def n_shared(text: Sequence[int], other: Sequence[int]) -> int:
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Conversation:
    """What a client would say next is the scenario's; how it is spelled is settled here."""

    def __init__(self, player: Player, head: Body, spelling: Spelling, messages: Sequence[Message] = ()) -> None:
        self.player = player
        self.head = head
        self.spelling = spelling
        self.messages = list(messages)

    def ask(self, *, calls: bool = False, limit: int = 24, counts: bool = True, again: bool = False) -> Said:
        """`calls`: the answer has to be a call. `again`: nothing comes of the answer."""
        body = self.player.client.body
        sent = body(self.head, self.messages, self.spelling, calls=calls, limit=limit)
        faithful = body(self.head, self.messages, AS_GIVEN, calls=calls, limit=limit)
        said = self.player.ask(sent, faithful, is_counted=counts)
        if not again:
            self.messages.append(Message("assistant", said=said))
        return said

    def hear(self, role: str, *texts: str) -> None:
        self.messages.append(Message(role, list(texts)))

    def fork(self) -> Conversation:
        return Conversation(self.player, self.head, self.spelling, self.messages)


class Side(Protocol):
    """A server that can be started anew over the same disk."""

    def url(self) -> str: ...
    def restart(self) -> None: ...


class ProcessSide:
    def __init__(self, start: Callable[[], ServerProcess]) -> None:
        self._start = start
        self._server = start().__enter__()

    def url(self) -> str:
        return self._server.url

    def restart(self) -> None:
        self.close()
        self._server = self._start().__enter__()

    def close(self) -> None:
        self._server.__exit__(None, None, None)


def measure(side: Side, model: TextModel, effects: Sequence[Effect], clients: Sequence[str]) -> list[Turn]:
    turns = []
    reasons = any(effect.reasons for effect in effects)
    own = [{**CLIENTS, **OTHERS}[name](name, has_texts=not reasons) for name in clients]
    players = [Player(client, model, side.url, side.restart) for client in own]
    for player in players:  # of a first prompt all is new
        player.begin("Is anybody there?").ask(counts=False)
    for effect in effects:
        for player in players:
            if effect.clients and player.client.name not in effect.clients:
                continue
            player.turns = []
            try:
                player.play(effect)
            except RefusedError as error:
                print(f"{effect.name}, {player.client.name}: refused: {error}", file=sys.stderr)
                continue
            turns += player.turns
            told = row(player.turns)
            if told is not None:
                print(f"{effect.name}, {player.client.name}: {told.read:.0f} of {told.ideal:.0f}", file=sys.stderr)
    return turns


@dataclass(frozen=True)
class Row:
    n_turns: int
    ideal: float
    read: float

    @property
    def ratio(self) -> float:
        return self.read / max(self.ideal, 1)


def row(turns: Sequence[Turn], effect: str | None = None, client: str | None = None) -> Row | None:
    """Means a turn, of one effect and client, or of all."""
    here = [turn for turn in turns if effect in {None, turn.effect} and client in {None, turn.client}]
    if not here:
        return None
    return Row(len(here), sum(t.n_ideal for t in here) / len(here), sum(t.n_read for t in here) / len(here))


def table(ours: Sequence[Turn], theirs: Sequence[Turn] | None) -> list[str]:
    lines = ["| effect | client | turns | new tokens | luce | luce / new | llama-server | llama-server / new |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    keys: list[tuple[str | None, str | None]] = list(dict.fromkeys((turn.effect, turn.client) for turn in ours))
    for effect, client in [*keys, (None, None)]:
        own, other = row(ours, effect, client), row(theirs or (), effect, client)
        assert own is not None
        peer = "- | -" if other is None else f"{other.read:.0f} | {other.ratio:.2f}"
        lines.append(f"| {effect or 'all'} | {client or 'all'} | {own.n_turns} | {own.ideal:.0f} | {own.read:.0f} "
                     f"| **{own.ratio:.2f}** | {peer} |")  # fmt: skip
    return lines


def main() -> None:
    parser = parser_of(__doc__, has_peer=True)
    parser.add_argument("--effects", help="names with commas; default: all")
    parser.add_argument("--clients", help="names with commas; default: all")
    parser.add_argument("--held-back", type=int, metavar="SEED", help="other clients' sessions, made up from this seed")
    parser.add_argument("--reasoning-template", type=Path, metavar="FILE", help="for the effects of reasoning")
    args = parser.parse_args()
    names = None if args.effects is None else args.effects.split(",")
    played = EFFECTS if args.held_back is None else held_back(args.held_back)
    effects = [effect for effect in played if names is None or effect.name in names]
    ours: list[Turn] = []
    theirs: list[Turn] = []
    for template in dict.fromkeys((None, args.reasoning_template)):
        some = [effect for effect in effects if effect.reasons == (template is not None)]
        if some:
            mine, others = _both(args, template, some)
            ours += mine
            theirs += others
    print("\n".join(table(ours, theirs)))
    write_json(args.json, {"luce": [asdict(t) for t in ours], "llama-server": [asdict(t) for t in theirs]})


def _both(args: argparse.Namespace, template: Path | None, effects: Sequence[Effect]) -> tuple[list[Turn], list[Turn]]:
    clients = list(CLIENTS if args.held_back is None else OTHERS) if args.clients is None else args.clients.split(",")
    text = None if template is None else template.read_text()
    extra = [] if template is None else ["--chat-template-file", str(template)]
    extra += ["--reasoning-budget", str(REASONING_TOKENS)] if template is not None else []
    found = []
    with tempfile.TemporaryDirectory() as disk, TextModel(args.model, chat_template=text) as model:
        own = [*luced_arguments(args, N_LANES, CTX), "--disk-cache", disk, "--draft", "none"]
        own += [argument.replace("-template-file", "-template") for argument in extra]
        peers = [*llama_server_arguments(args, N_LANES, N_LANES * CTX), "--jinja", *extra]
        starts: list[Callable[[], ServerProcess]] = [lambda: LuceServer(args.model, own)]
        if args.vs is not None:
            starts.append(lambda: LlamaServer(args.vs, args.model, *peers))
        for start in starts:
            side = ProcessSide(start)
            try:
                found.append(measure(side, model, effects, clients))
            finally:
                side.close()
    return found[0], found[1] if len(found) > 1 else []


if __name__ == "__main__":
    main()
