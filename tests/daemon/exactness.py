"""What the tests of tiers share: a daemon that answers, references from fresh runs, and what a reply said of reuse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from luce.protocol import (
    Err,
    ErrorCode,
    GenerateOk,
    InlineSnapshot,
    InlineSnapshotFailed,
    Logprobs,
    Reply,
    StatusLine,
    StopReason,
)
from luce.protocol import percent_encode as encode
from luce.supervisor.text import TextModel
from tests import near_ties
from tests.daemon.conftest import margins_of
from tests.daemon.same_tokens import Comparison, SampledComparison
from tests.daemon_driver import Answer, DaemonDriver, gen_line

N_ANSWER = 16
ASSIGNMENTS = encode('root ::= line{3}\nline ::= [a-z]{1,8} " = " [0-9]{1,3} "\\n"')
"""A grammar that allows other tokens from place to place and an end in one only: whoever has read a token too many, or
one too few, goes on with what it forbids. The packaged model writes such lines again, so that some drafts are right."""
N_ASSIGNMENTS = 64
"""Tokens that no three lines reach: one a character would be 51, and the end."""


def status_of(daemon: DaemonDriver) -> dict[str, str]:
    """REQUIRES: nothing else is to be answered."""
    daemon.send("status check=1")
    reply = daemon.next_reply()
    assert isinstance(reply, StatusLine), reply
    fields = dict(reply.fields)
    assert fields["integrity"] == "ok", fields
    return fields


def ask(daemon: DaemonDriver, line: str) -> Reply:
    """A command that generates nothing."""
    daemon.send(line)
    return daemon.next_reply()


def done(daemon: DaemonDriver, line: str) -> Reply:
    """The same, and it must succeed."""
    reply = ask(daemon, line)
    assert not isinstance(reply, Err), (line, reply)
    return reply


def refused(daemon: DaemonDriver, line: str) -> ErrorCode | str:
    reply = ask(daemon, line)
    assert isinstance(reply, Err), (line, reply)
    return reply.code


@dataclass
class Told:
    """All that one request gave."""

    tokens: list[int]
    reply: GenerateOk | Err
    snapshots: list[InlineSnapshot | InlineSnapshotFailed]
    logprobs: list[Logprobs]

    @property
    def ok(self) -> GenerateOk:
        assert isinstance(self.reply, GenerateOk), self.reply
        return self.reply

    @property
    def code(self) -> ErrorCode | str:
        assert isinstance(self.reply, Err), self.reply
        return self.reply.code


def drafted(told: Told) -> tuple[int, int]:
    """How many tokens were drafted for it, and how many of them were right."""
    speculation = told.ok.speculation
    assert speculation is not None
    return speculation.n_drafted, speculation.n_accepted


def generate(daemon: DaemonDriver, prompt: Sequence[int], extra: str = "", n: int = N_ANSWER) -> Told:
    """One request by itself, in the multiplexed dialect."""
    daemon.send(gen_line(1, n, prompt, f"ignore_eos=1 {extra}"))
    told = Told(daemon.tokens_until_end(), Err("none"), [], [])
    while True:
        reply = daemon.next_reply()
        if isinstance(reply, InlineSnapshot | InlineSnapshotFailed):
            told.snapshots.append(reply)
        elif isinstance(reply, Logprobs):
            told.logprobs.append(reply)
        else:
            assert isinstance(reply, GenerateOk | Err), reply
            told.reply = reply
            return told


def all_answers(daemon: DaemonDriver, asked: Sequence[tuple[Sequence[int], str]], n: int) -> list[Answer]:
    """Of prompts with what else each request says: all in in_flight together, in as many lanes as the daemon has."""
    daemon.send(*(gen_line(i, n, prompt, f"reuse=0 {extra}") for i, (prompt, extra) in enumerate(asked)))
    answers = daemon.collect(len(asked))
    assert all(isinstance(answers[i].reply, GenerateOk) for i in range(len(asked))), [answers[i].reply for i in answers]
    return [answers[i] for i in range(len(asked))]


def check_assignments(name: str, answer: Answer, text: TextModel) -> None:
    """An answer under that grammar, without ignore_eos=1."""
    assert isinstance(answer.reply, GenerateOk), (name, answer.reply)
    assert answer.reply.stop is StopReason.EOS, (name, answer.reply)
    written = text.detokenize(answer.tokens[:-1]).decode()
    assert re.fullmatch(r"([a-z]{1,8} = [0-9]{1,3}\n){3}", written), (name, written)


def entries_of(answer: Answer | Told) -> list[Sequence[tuple[int, float]]]:
    """Of each step, with logprobs=N: the chosen token and the likeliest, with their logprobs."""
    return [line.entries for line in answer.logprobs]


def compare_drawn(
    comparison: SampledComparison,
    name: str,
    got: Answer | Told,
    expected: Answer | Told,
    temperature: float | None = None,
) -> None:
    """Texts that were drawn, or chosen under penalties or a grammar: no margin to go by, but logprobs=4. With the
    temperature, if top_k=4 and nothing else says what could be drawn: see SampledComparison.check."""
    comparison.check(name, got.tokens, expected.tokens, entries_of(got), entries_of(expected), temperature=temperature)


@dataclass
class Checked:
    """Compares each answer with the one of a run that knew nothing."""

    noise: float
    comparison: Comparison = field(init=False)
    references: dict[tuple[int, ...], tuple[list[int], list[float]]] = field(default_factory=dict)
    parted: set[tuple[int, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.comparison = Comparison(self.noise)

    def learn(self, daemon: DaemonDriver, *prompts: Sequence[int], n: int = N_ANSWER) -> None:
        for prompt in prompts:
            told = generate(daemon, prompt, "reuse=0 logprobs=2", n)
            assert (told.ok.n_reused, told.ok.tier, told.ok.miss) == (0, "none", "off")
            self.references[tuple(prompt)] = (told.tokens, margins_of(told.logprobs))

    def check(self, name: str, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        expected, margins = self.references[tuple(prompt)]
        n_unclear = len(self.comparison.unclear)
        self.comparison.check(name, tokens, expected[: len(tokens)], margins)
        if len(self.comparison.unclear) > n_unclear:
            self.parted.add(tuple(prompt))

    def finish(self) -> None:
        """The same few prompts are asked again and again: a near-tie of one counts once. Most must be without one."""
        print(f"{self.comparison.n_sequences} sequences, parted at unclear steps: {self.comparison.unclear}")
        near_ties.count(self.comparison.n_sequences, len(self.comparison.unclear))
        assert 2 * len(self.parted) <= len(self.references), self.comparison.unclear

    def generate(self, name: str, daemon: DaemonDriver, prompt: Sequence[int], extra: str = "") -> GenerateOk:
        told = generate(daemon, prompt, extra, N_ANSWER)
        ok = told.ok
        assert len(told.tokens) == N_ANSWER
        self.check(name, prompt, told.tokens)
        return ok
