"""Makes the prompts of a replay: system prompt and tools as the clients send them, rendered by the model's template.

What a transcript lacks is made up, the same in every run: sessions of one client share it, as they do in life. Knows
the text side of a model, no engine and no clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from luce.supervisor.evaluating.transcripts import (
    Client,
    Kind,
    Message,
    Session,
    Turn,
    made_up_system,
    system_as_user,
    tools_of,
)
from luce.supervisor.text import TemplateError, TextError, TextModel


@dataclass(frozen=True)
class Setting:
    """What goes before every conversation. None: the transcript's own, or something made up."""

    system: str | None = None
    tools: Sequence[Message] | None = None
    system_bytes: int = 8192  # of a made-up system prompt


@dataclass(frozen=True)
class Prompt:
    """One request, ready to be sent."""

    session: str
    number: int  # of the turn in its session, from 1
    kind: Kind
    ids: array[int] = field(repr=False)
    boundaries: tuple[int, ...]
    n_answer: int
    """Tokens of the recorded answer."""
    think_s: float | None
    messages: Sequence[Message] = field(default=(), repr=False)
    tools: Sequence[Message] = field(default=(), repr=False)


@dataclass
class Prepared:
    """A session as it will be replayed, and what of it will not."""

    session: Session
    prompts: list[Prompt] = field(default_factory=list)
    n_too_long: int = 0
    n_unrendered: int = 0
    template_error: str = ""


class PromptMaker:
    """For the sessions of one replay."""

    def __init__(self, model: TextModel, sessions: Sequence[Session], setting: Setting) -> None:
        self._model = model
        self._setting = setting
        self._tools = {session.client: self._tools_of(session.client, sessions) for session in sessions}
        self._takes_late_system = _takes_late_system(model)

    def prepare(self, session: Session, *, n_ctx: int, max_tokens: int) -> Prepared:
        """The prompts up to the first of each conversation that does not fit: there a client compacts, and what
        follows is another text."""
        prepared = Prepared(session)
        ended: set[str] = set()
        for number, turn in enumerate(session.turns, start=1):
            if turn.conversation in ended:
                prepared.n_too_long += 1
                continue
            try:
                prompt = self._prompt(session, number, turn)
            except TextError as error:
                prepared.n_unrendered += 1
                prepared.template_error = str(error)
                continue
            if len(prompt.ids) + min(prompt.n_answer, max_tokens) > n_ctx:
                ended.add(turn.conversation)
                prepared.n_too_long += 1
            else:
                prepared.prompts.append(prompt)
        return prepared

    def messages(self, session: Session, turn: Turn) -> list[Message]:
        """All that the request holds, the system prompt first."""
        messages = turn.messages
        system = self._system_of(session, turn)
        if messages[0]["role"] == "system":
            system = f"{system}\n\n{messages.pop(0)['content']}"
        if not self._takes_late_system:
            messages = list(system_as_user(messages))
        return [{"role": "system", "content": system}, *messages]

    def _prompt(self, session: Session, number: int, turn: Turn) -> Prompt:
        tools = self._tools[session.client] if turn.kind != "title" else []
        messages = self.messages(session, turn)
        chat = self._model.render(messages, tools=tools or None)
        try:
            boundaries = tuple(sorted({mark.token for mark in chat.marks if 0 < mark.token < len(chat.tokens)}))
            ids = array("i", chat.tokens)
        finally:
            chat.close()
        n_answer = self._n_tokens(turn)
        return Prompt(session.name, number, turn.kind, ids, boundaries, n_answer, turn.think_s, messages, tools)

    def _n_tokens(self, turn: Turn) -> int:
        """Of the recorded answer by this model's vocabulary: what the transcript says is of another."""
        answer = turn.answered
        texts = [*answer.texts, *(f"{call.name} {call.arguments}" for call in answer.calls)]
        return max(sum(len(self._model.tokenize(text)) for text in texts), 1)

    def _system_of(self, session: Session, turn: Turn) -> str:
        if turn.system is not None:
            return turn.system
        if self._setting.system is not None:
            return self._setting.system
        return session.system or made_up_system(session.client, turn.kind, self._setting.system_bytes)

    def _tools_of(self, client: Client, sessions: Sequence[Session]) -> list[Message]:
        if self._setting.tools is not None:
            return list(self._setting.tools)
        return tools_of(client, sessions)


def _takes_late_system(model: TextModel) -> bool:
    """Whether the template takes a system message that is not the first, as Claude Code and Codex send them."""
    roles = ("system", "user", "assistant", "system", "user")
    try:
        chat = model.render([{"role": role, "content": "x"} for role in roles])
    except TemplateError:
        return False
    chat.close()
    return True
