"""The habits of coding agents that http_effects.py plays, one function each. Knows conversations; no dialect."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scripts.bench.replay.http_clients import AS_GIVEN, Message, Spelling

if TYPE_CHECKING:
    from scripts.bench.replay.http_effects import Conversation, Player


CALL_TOKENS = 320  # no call is longer


@dataclass(frozen=True)
class Effect:
    name: str
    play: Callable[[Player], None]
    reasons: bool = False
    """It needs a template of a model that reasons."""
    clients: Collection[str] = ()
    """Whose habit it is; none: everybody's."""


def text(about: str, n: int = 24) -> str:
    """Some words that nothing else says."""
    return " ".join(f"{about} {(i * 37 + len(about)) % 101}" for i in range(n))


def result(conversation: Conversation, about: str) -> None:
    """Of the call; where a server lets the model answer without one, as the user's words."""
    last = conversation.messages[-1].said
    role = "tool" if last is not None and last.calls else "user"
    conversation.messages.append(Message(role, [text(about)]))


def chain(player: Player, spelling: Spelling, name: str) -> Conversation:
    """A question, two calls, an answer, and another question."""
    talk = player.begin(text(f"question {name}", 10), spelling)
    talk.ask(calls=True, limit=CALL_TOKENS)
    result(talk, f"result {name}")
    talk.ask(calls=True, limit=CALL_TOKENS)
    result(talk, f"further {name}")
    talk.ask()
    talk.hear("user", text(f"then {name}", 12))
    talk.ask()
    talk.hear("user", text(f"also {name}", 12))
    talk.ask()
    return talk


def spelled(name: str, spelling: Spelling) -> Callable[[Player], None]:
    def play(player: Player) -> None:
        chain(player, spelling, name)

    return play


def stripped(spelling: Spelling) -> Callable[[Player], None]:
    """A chain of calls whose reasoning goes once the user asks something new. Only that turn counts."""

    def play(player: Player) -> None:
        name = f"stripped {spelling.reasoning}"
        talk = player.begin(text(f"question {name}", 10), spelling)
        for n in range(3):
            talk.ask(calls=True, limit=CALL_TOKENS, counts=False)
            result(talk, f"result {name} {n}")
        talk.ask(counts=False)
        talk.hear("user", text(f"new {name}", 12))
        talk.ask()

    return play


def reminder_dropped(player: Player) -> None:
    """Beside a question, and gone or another one in the next request."""
    for name in ("dropped", "changed"):
        talk = player.begin(text(f"question reminder {name}", 10))
        talk.ask()
        for n in range(3):
            reminder = f"<system-reminder>\n{text(f'remember {name} {n}', 12)}\n</system-reminder>"
            talk.hear("user", text(f"work {name} {n}", 16), reminder)
            talk.ask()
            if name == "dropped":
                talk.messages[-2].texts.pop()
            else:
                talk.messages[-2].texts[1] = reminder.replace("remember", "remember now")


def counter(player: Player) -> None:
    """A system text behind the newest message, elsewhere in the next request."""
    talk = player.begin(text("question counter", 10))
    for n in range(4):
        talk.ask(calls=True, limit=CALL_TOKENS)
        result(talk, f"counted {n}")
        talk.messages = [message for message in talk.messages if message.role != "system"]
        talk.hear("system", f"<total_tokens>{190000 - 731 * n} tokens left</total_tokens>")


def new_sessions(player: Player) -> None:
    for n, folder in enumerate(("/home/ada/work/beta-service", "/home/ada/notes", "/srv/data/gamma")):
        talk = player.begin(text(f"question session {n}", 10), folder=folder)
        talk.ask(counts=n > 0)
        talk.hear("user", text(f"more of session {n}", 12))
        talk.ask()


def sub_agent(talk: Conversation, task: str) -> Conversation:
    """Another system text, and some of the tools."""
    head = deepcopy(talk.player.client.begun(task, "/home/ada/work/alpha", talk.player.n_begun))
    talk.player.client.set_role(
        head, f"You are a sub-agent of {talk.player.client.name}. " + text("sub-agent rule", 60)
    )
    head["tools"] = head["tools"][-3:]
    return type(talk)(talk.player, head, talk.spelling)


def forks(player: Player) -> None:
    talk = player.begin(text("question forks", 10))
    talk.ask(calls=True, limit=CALL_TOKENS)
    for n in range(2):
        helper = sub_agent(talk, text(f"task {n}", 12))
        helper.ask(calls=True, limit=CALL_TOKENS)
        result(helper, f"found {n}")
        helper.ask()
    result(talk, "both helpers")
    talk.ask()


def forks_at_once(player: Player) -> None:
    talk = player.begin(text("question many forks", 10))
    talk.ask(calls=True, limit=CALL_TOKENS)
    helpers = [sub_agent(talk, text(f"task at once {n}", 12)) for n in range(3)]
    with ThreadPoolExecutor(len(helpers)) as pool:
        for about in ("first", "second"):
            list(pool.map(lambda helper: helper.ask(calls=True, limit=CALL_TOKENS), helpers))
            for n, helper in enumerate(helpers):
                result(helper, f"found at once {about} {n}")
    result(talk, "all helpers")
    talk.ask()


def side_requests(player: Player) -> None:
    """A title, a topic and a check of the quota, without tools and with a system text of their own."""
    talk = player.begin(text("question sides", 10))
    for n in range(3):
        talk.ask()
        for kind, limit in (("title", 12), ("topic", 12), ("quota", 1)):
            head = deepcopy(player.client.begun(text(f"{kind} {n}", 8), "/home/ada/work/alpha", player.n_begun))
            player.client.set_role(
                head, f"You are {player.client.name}'s {kind} generator. " + text(f"{kind} rule", 20)
            )
            head.pop("tools")
            head.pop("tool_choice", None)
            type(talk)(player, head, AS_GIVEN).ask(limit=limit, counts=n > 0)
        talk.hear("user", text(f"beside sides {n}", 12))
    talk.ask()


def compaction(player: Player) -> None:
    """The summary is asked for behind the conversation, which goes on from it alone."""
    talk = chain(player, AS_GIVEN, "compaction")
    asked = talk.fork()
    asked.hear("user", "Summarise this conversation. " + text("summary rule", 20))
    summary = asked.ask(limit=48)
    talk = player.begin(f"This session goes on from an earlier one. Summary: {summary.text}. " + text("go on", 10))
    talk.ask()
    talk.hear("user", text("behind the summary", 12))
    talk.ask()


def two_conversations(player: Player) -> None:
    talks = [player.begin(text(f"question beside {n}", 10)) for n in range(2)]
    for turn in range(3):
        with ThreadPoolExecutor(len(talks)) as pool:
            list(pool.map(lambda talk: talk.ask(), talks))
        for n, talk in enumerate(talks):
            talk.hear("user", text(f"beside {n} {turn}", 12))


def retry(player: Player) -> None:
    talk = player.begin(text("question retry", 10))
    talk.ask()
    for n in range(2):
        talk.hear("user", text(f"retried {n}", 12))
        talk.ask(again=True)
        talk.ask(again=True)
        talk.ask()


def edited(player: Player) -> None:
    """The second of four questions is asked otherwise."""
    talk = player.begin(text("question edited", 10))
    for n in range(3):
        talk.ask(counts=False)
        talk.hear("user", text(f"before the edit {n}", 12))
    talk.ask(counts=False)
    talk.messages = talk.messages[:2]
    talk.messages[1] = Message("user", ["Rather do this: " + text("edited", 12)])
    talk.ask()
    talk.hear("user", text("behind the edit", 12))
    talk.ask()


def restarted(spelling: Spelling) -> Callable[[Player], None]:
    def play(player: Player) -> None:
        talk = chain(player, spelling, f"restart {spelling.arguments}")
        player.restart()
        talk.hear("user", text(f"after the restart {spelling.arguments}", 12))
        talk.ask()
        talk.hear("user", text(f"long after the restart {spelling.arguments}", 12))
        talk.ask()

    return play


CODING_AGENTS_ANEW = Spelling(arguments=True, trim=True, ids=True, null=True)

EFFECTS = (
    Effect("plain", spelled("plain", AS_GIVEN)),
    Effect("arguments", spelled("arguments", Spelling(arguments=True))),
    Effect("trimmed", spelled("trimmed", Spelling(trim=True))),
    Effect("split", spelled("split", Spelling(split=True))),
    Effect("merged", spelled("merged", Spelling(merge=True))),
    Effect("ids", spelled("ids", Spelling(ids=True))),
    Effect("null", spelled("null", Spelling(null=True))),
    Effect("all-spellings", spelled("all spellings", CODING_AGENTS_ANEW)),
    Effect("reminders", reminder_dropped),
    Effect("counter", counter),
    Effect("new-sessions", new_sessions),
    Effect("sub-agents", forks),
    Effect("sub-agents-at-once", forks_at_once),
    Effect("side-requests", side_requests),
    Effect("compaction", compaction),
    Effect("two-conversations", two_conversations),
    Effect("retry", retry),
    Effect("edited", edited),
    Effect("restart", restarted(AS_GIVEN)),
    Effect("restart-respelled", restarted(CODING_AGENTS_ANEW)),
    Effect("reasoning-sent", spelled("reasoning sent", Spelling(reasoning="text")), reasons=True),
    Effect("reasoning-own-way", spelled("reasoning own way", Spelling(reasoning="own")), reasons=True),
    Effect("reasoning-left-out", spelled("reasoning left out", Spelling(reasoning="left out")), reasons=True),
    Effect("reasoning-stripped", stripped(Spelling(reasoning="own")), reasons=True),
    Effect("reasoning-stripped-left-out", stripped(Spelling(reasoning="left out")), reasons=True),
)
