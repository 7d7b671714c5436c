"""Sessions that no rule was fitted to: other clients, whose habits are combined at random. Knows conversations; no
dialect.

Whoever mends a rule does it for a habit that has a name, and plays a seed that has not been played before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

from scripts.bench.replay.http_clients import AS_GIVEN, Message, Spelling
from scripts.bench.replay.http_others import OTHERS, words
from scripts.bench.replay.http_scenarios import CALL_TOKENS, Effect, result

if TYPE_CHECKING:
    from scripts.bench.replay.http_effects import Conversation, Player

N_STEPS = 6
N_SESSIONS = 2  # of each client

Step = Callable[["Conversation", random.Random], None]


def question(talk: Conversation, rng: random.Random) -> None:
    talk.hear("user", words(rng, rng.choice((4, 15, 60))))
    talk.ask(limit=rng.choice((4, 12, 40)))


def work(talk: Conversation, rng: random.Random) -> None:
    """Some calls, and what they found; in words, where the client has no tools."""
    talk.hear("user", words(rng, 12))
    for _ in range(rng.randrange(1, 4)):
        talk.ask(calls="tools" in talk.head, limit=CALL_TOKENS if "tools" in talk.head else 40)
        result(talk, words(rng, 3))
        talk.messages[-1].texts = [words(rng, rng.choice((5, 25, 80)))]
    talk.ask()


def retry(talk: Conversation, rng: random.Random) -> None:
    talk.hear("user", words(rng, 15))
    talk.ask(again=True)
    talk.ask()


def edit(talk: Conversation, rng: random.Random) -> None:
    """An earlier question is asked otherwise, and what came behind it is gone."""
    at = rng.choice(_questions(talk) or [len(talk.messages)])
    del talk.messages[at:]
    question(talk, rng)


def restart(talk: Conversation, rng: random.Random) -> None:
    talk.player.restart()
    question(talk, rng)


def save_space(talk: Conversation, rng: random.Random) -> None:
    """An earlier text of the user's or a tool's is not sent again."""
    if given := [message for message in talk.messages if message.said is None]:
        rng.choice(given).texts = ["[Removed to save space: see the latest version below.]"]
    question(talk, rng)


def title(talk: Conversation, rng: random.Random) -> None:
    """Of the conversation as it stands, with neither system text nor tools."""
    aside = talk.fork()
    aside.head = {key: value for key, value in talk.head.items() if not key.startswith("tool")}
    aside.head["messages"] = talk.head["messages"][1:]
    aside.hear("user", "A title of three to seven words. " + words(rng, 6))
    aside.ask(limit=12)
    question(talk, rng)


def condense(talk: Conversation, rng: random.Random) -> None:
    """The middle gives way to a summary, which another request has made of its text alone."""
    places = _questions(talk)
    if len(places) < 3:
        return question(talk, rng)
    aside = type(talk)(talk.player, deepcopy(talk.head), AS_GIVEN)
    talk.player.client.set_role(aside.head, "You keep what matters. " + words(random.Random("condense"), 60))
    del aside.head["messages"][1:]
    aside.head.pop("tools", None)
    gone = talk.messages[places[0] : places[-1]]
    aside.hear("user", "\n".join(" ".join(message.texts) or "(an answer)" for message in gone))
    summary = aside.ask(limit=48)
    talk.messages[places[0] : places[-1]] = [Message("user", [f"<summary>{summary.text}</summary>"])]
    return question(talk, rng)


def another_folder(talk: Conversation, rng: random.Random) -> None:
    """A session beside this one."""
    beside = talk.player.begin(words(rng, 10), talk.spelling, f"/home/{rng.choice('ab')}/{rng.randrange(1000)}/x")
    beside.ask()
    question(beside, rng)
    question(talk, rng)


def _questions(talk: Conversation) -> list[int]:
    """Where one stands behind an answer that is whole: what comes before is a conversation."""
    return [n for n, m in enumerate(talk.messages) if n > 0 and m.role == "user" and talk.messages[n - 1].said]


_ALL: Sequence[Step] = (question, question, work, work, work, retry, edit, restart, another_folder)
_OWN: dict[str, Sequence[Step]] = {
    "cline": (save_space, save_space), "roo": (save_space, condense), "openhands": (condense, condense),
    "zed": (title, title), "continue": (edit, edit, title), "goose": (save_space,),
}  # fmt: skip


def _session(seed: int, number: int) -> Callable[[Player], None]:
    def play(player: Player) -> None:
        rng = random.Random(f"{seed} {number} {player.client.name}")
        arguments, trim, split, ids, null = (rng.random() < 0.4 for _ in range(5))
        spelling = Spelling(arguments=arguments, trim=trim, split=split, ids=ids, null=null)
        talk = player.begin(words(rng, 20), spelling, f"/home/{rng.choice('ab')}/{number}")
        talk.ask(counts=number > 0)
        for _ in range(N_STEPS):
            rng.choice((*_ALL, *_OWN.get(player.client.name, ())))(talk, rng)

    return play


def held_back(seed: int) -> Sequence[Effect]:
    return [Effect(f"session {n}", _session(seed, n), clients=tuple(OTHERS)) for n in range(N_SESSIONS)]
