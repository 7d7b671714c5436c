"""AgentSession: what an agent sends turn by turn, as token ids: a system prompt with tools, tool results that come one
after the other, a second conversation with the same system prompt, an edit in the middle. The answers are whoever's who
gives them; a conversation is kept for each side. It must not know who is measured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

LOWEST_ID, HIGHEST_ID = 300, 4000  # ordinary tokens of every model that is measured


@dataclass
class Conversation:
    """The text so far and where its messages end."""

    tokens: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    n_computed: int = 0
    """So much of it has been through the model: all but an answer's last token."""

    def say(self, message: Sequence[int]) -> None:
        self.tokens += message
        self.ends.append(len(self.tokens))

    def answer(self, tokens: Sequence[int]) -> None:
        self.n_computed = len(self.tokens) + len(tokens) - 1
        self.say(tokens)


@dataclass(frozen=True)
class Step:
    """One request: what is said before it, and where it departs from what was said earlier."""

    name: str
    conversation: int
    message: tuple[int, ...] = ()
    edited: int | None = None
    """That message of the conversation is replaced by `message`; what follows it stays, but an answer at the end."""
    is_warm: bool = True


@dataclass(frozen=True)
class SessionShape:
    n_turns: int = 20
    n_tokens: int = 8192
    """That long is the conversation when its last turn is sent."""
    n_system: int = 1200
    n_answer: int = 24


def random_tokens(rng: random.Random, n: int) -> tuple[int, ...]:
    return tuple(rng.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(n))


def plan_steps(shape: SessionShape, seed: int) -> tuple[tuple[int, ...], list[Step]]:
    """The system prompt and what follows. Message 0 is the system prompt; then a message and an answer each turn."""
    rng = random.Random(seed)
    system = random_tokens(rng, shape.n_system)
    n_said = shape.n_tokens - shape.n_system - (shape.n_turns - 1) * shape.n_answer
    weights = [rng.choice((1, 2, 3, 8)) for _ in range(shape.n_turns)]  # a question, an error, a file, a search
    sizes = [max(8, n_said * weight // sum(weights)) for weight in weights]
    steps = [Step(f"turn {i + 1}", 0, random_tokens(rng, size), is_warm=i > 0) for i, size in enumerate(sizes)]
    middle = 1 + 2 * (shape.n_turns // 2)
    n_short = max(8, n_said // shape.n_turns)
    steps += [
        Step("second conversation", 1, random_tokens(rng, n_short)),
        Step("its next turn", 1, random_tokens(rng, n_short)),
        Step("edit in the middle", 2, random_tokens(rng, n_short), edited=middle),
        Step("back to the first", 0, random_tokens(rng, n_short)),
    ]
    return system, steps


class AgentSession:
    """One side's conversations."""

    def __init__(self, shape: SessionShape, seed: int) -> None:
        system, self.steps = plan_steps(shape, seed)
        self._conversations = {0: Conversation(), 1: Conversation()}
        for conversation in self._conversations.values():
            conversation.say(system)
        self._n_system = shape.n_system

    def prepare(self, step: Step) -> tuple[Conversation, int]:
        """The conversation as it is sent now, and how much of it has been computed before, in this or in another."""
        if step.edited is None:
            conversation = self._conversations[step.conversation]
            n_known = max(conversation.n_computed, self._n_system if step.conversation > 0 else 0)
            conversation.say(step.message)
            return conversation, n_known
        source = self._conversations[0]
        edited = Conversation()
        begin = 0
        for i, end in enumerate(source.ends[:-1]):
            edited.say(step.message if i == step.edited else source.tokens[begin:end])
            begin = end
        self._conversations[step.conversation] = edited
        return edited, source.ends[step.edited - 1]
