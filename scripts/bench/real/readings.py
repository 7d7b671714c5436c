"""Long real texts and questions about them: this repository's documentation and source, with facts put in. A question
is right or wrong by what its answer holds. It must not know an engine.

All questions about a text go on from the same ids, so that the text is read once. An answer's first words are given:
models without a chat template can be asked, too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from luce.protocol import GenerateOk, Logprobs, percent_encode
from luce.supervisor.evaluating.tasks.haystack import FACT, OWNERS, QUESTION, codes
from luce.supervisor.text import TemplateError, TextModel
from scripts.bench.harness import ROOT
from scripts.bench.residency.sides import DEADLINE_S, RefusedError
from tests.daemon_driver import Answer, DaemonDriver, gen_line

CODE, QUOTE = KINDS = ("code", "quote")
N_ANSWER = 16  # tokens: a code, or the next words of a line
SHALLOWEST, DEEPEST = 0.05, 0.85  # of a text, where facts and quoted lines stand
_QUOTE = "The text has a line with these words. Write the line once more."
_N_CUE, _N_EXPECTED = 8, 3  # words of a quoted line: those that are given, and those that must come


@dataclass(frozen=True)
class Question:
    kind: str
    ids: tuple[int, ...]
    """The whole prompt: the text, the question, the answer's first words."""
    expected: str


@dataclass(frozen=True)
class Reading:
    ids: tuple[int, ...]
    """What all prompts begin with: the template's words and the text."""
    going_on: tuple[int, ...]
    """What the text goes on with."""
    questions: tuple[Question, ...]


def reading(model: TextModel, n_tokens: int, n_questions: int, n_going_on: int, seed: int) -> Reading:
    """A text of n_tokens: documentation, of an odd seed Python. n_questions of each kind, one of a kind for each
    depth."""
    rng = random.Random(f"reading {n_tokens} {seed}")
    owners, numbers = rng.sample(OWNERS, n_questions), codes(n_questions, rng)
    facts = [FACT.format(owner=owner, code=code) for owner, code in zip(owners, numbers, strict=True)]
    lines, rest = _lines(model, n_tokens - n_questions * 24, seed)
    depths = [SHALLOWEST + (DEEPEST - SHALLOWEST) * i / max(n_questions - 1, 1) for i in range(n_questions)]
    quoted = _quoted(lines, depths)
    comment = "# " if seed % 2 else ""
    for fact, depth in sorted(zip(facts, depths, strict=True), key=lambda pair: -pair[1]):
        lines.insert(round(depth * len(lines)), comment + fact)
    head, tail = _around(model)
    body = model.tokenize("\n".join(lines))[:n_tokens]
    ids = (*head, *body)

    def asked(kind: str, question: str, begin: str, expected: str) -> Question:
        return Question(kind, (*ids, *model.tokenize(f"\n\n{question}"), *tail, *model.tokenize(begin)), expected)

    questions = [
        asked(CODE, QUESTION.format(owner=owner), fact.removesuffix(f" {code}."), code)
        for owner, code, fact in zip(owners, numbers, facts, strict=True)
    ] + [asked(QUOTE, _QUOTE, cue, expected) for cue, expected in quoted]
    return Reading(ids, tuple(model.tokenize("\n" + rest)[:n_going_on]), tuple(questions))


def _lines(model: TextModel, n_tokens: int, seed: int) -> tuple[list[str], str]:
    """Neighbouring lines of n_tokens, and what follows them."""
    folder, pattern = ("supervisor", "*.py") if seed % 2 else ("docs", "*.md")
    files = sorted((ROOT / folder).rglob(pattern))
    at = seed // 2 * 17 % len(files)
    lines = "\n\n".join(file.read_text("utf-8") for file in files[at:] + files[:at]).splitlines()
    n_lines = n_known = 0
    while n_known < n_tokens and n_lines < len(lines):
        n_known += len(model.tokenize(lines[n_lines] + "\n"))
        n_lines += 1
    return lines[:n_lines], "\n".join(lines[n_lines : n_lines + 400])


def _quoted(lines: Sequence[str], depths: Sequence[float]) -> list[tuple[str, str]]:
    """For each depth the next line whose first words stand nowhere else: these, and the words behind them."""
    text = "\n".join(lines)
    found: list[tuple[str, str]] = []
    for depth in depths:
        for line in lines[round(depth * len(lines)) :]:
            words = line.split()
            cue, expected = " ".join(words[:_N_CUE]), " ".join(words[_N_CUE : _N_CUE + _N_EXPECTED])
            is_new = all(cue != known for known, _ in found)
            if len(words) >= _N_CUE + _N_EXPECTED and is_new and text.count(cue) == 1 and text.count(expected) == 1:
                found.append((cue, expected))
                break
    return found


def _around(model: TextModel) -> tuple[list[int], list[int]]:
    """What stands before a user's words, and between them and the answer."""
    try:
        chat = model.render([{"role": "user", "content": "WORDS"}])
    except TemplateError:
        return model.tokenize("", add_special=True), model.tokenize("\n")
    before, _, behind = model.detokenize(chat.tokens, unparse_special=True).decode().partition("WORDS")
    chat.close()
    return model.tokenize(before, parse_special=True), model.tokenize(behind, parse_special=True)


# Asking an engine


def force(
    daemon: DaemonDriver, ids: Sequence[int], going_on: Sequence[int], n_likeliest: int = 1
) -> list[tuple[tuple[int, float], ...]]:
    """What a text goes on with, each token computed as one of an answer: of each its log-probability, and those of the
    likeliest ones behind it. Raises RefusedError."""
    grammar = percent_encode("root ::= " + " ".join(f"<[{token}]>" for token in going_on))
    keys = f"ignore_eos=1 logprobs={n_likeliest} grammar={grammar} marks={len(ids)}"
    answer = ask(daemon, gen_line(1, len(going_on), ids, keys))
    assert answer.tokens == list(going_on)
    return [step.entries for step in answer.logprobs]


def is_right(daemon: DaemonDriver, model: TextModel, question: Question, n_text: int) -> bool:
    """Whether the likeliest answer holds what is expected. Raises RefusedError."""
    return holds(model, ask(daemon, gen_line(1, N_ANSWER, question.ids, f"marks={n_text}")).tokens, question)


def holds(model: TextModel, answer: Sequence[int], question: Question) -> bool:
    return question.expected in " ".join(model.detokenize(answer).decode(errors="replace").split())


def ask(daemon: DaemonDriver, line: str) -> Answer:
    """One request's answer, however long it takes. Raises RefusedError."""
    daemon.send(line)
    answer = Answer(daemon.tokens_until_end(DEADLINE_S))
    while isinstance(reply := daemon.next_reply(), Logprobs):
        answer.logprobs.append(reply)
    if not isinstance(reply, GenerateOk):
        raise RefusedError(reply)
    answer.reply = reply
    return answer
