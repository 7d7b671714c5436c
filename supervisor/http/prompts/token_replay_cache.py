"""TokenReplayCache: the token ids of answers, put back into prompts in which their texts come again.

A model does not always write a text with the ids that its tokeniser gives it; a prompt with other ids is another text
to the prefix cache, though it reads the same. What is put in spells exactly the bytes that it replaces, and special
tokens stay where they are.

Nor does a template write a message as the model did: it trims, and serialises arguments in its own way. A turn of which
is known which answer it is (answer_spellings.py) gets that answer's ids even so, where the template has rendered all
that the answer says between the same special tokens; the marks of its calls may be others. Knows rendered prompts and
ids; no engine.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from luce.supervisor.http.prompts.answer_spellings import GivenAnswer
from luce.supervisor.text import MessageMark, RenderedChat, TextModel

_ENTRY_BYTES = 600  # beside an answer's text and ids, about
_MAX_AT_ONE_PLACE = 16


@dataclass(frozen=True)
class Turn:
    """Where in a conversation an answer is about to be written."""

    place: bytes
    head: bytes
    """From the last mark to the prompt's end."""
    head_ids: tuple[int, ...]


@dataclass(frozen=True)
class SplicedPrompt:
    ids: array[int]
    boundaries: tuple[int, ...]
    places: tuple[int | None, ...]
    """Of the template's messages, in their order; None: within an answer that was put in."""
    turn: Turn | None
    n_spliced: int
    """Answers that were put in, whose ids are others than the tokeniser's."""
    replaced: frozenset[int] = frozenset()
    """Which of the assistant's messages, from 0, are answers that were put in."""
    respelled: frozenset[int] = frozenset()
    """Of these, those that read otherwise than the template has them."""


@dataclass(eq=False)
class _Answer:
    text: bytes
    """With the head of its turn."""
    ids: array[int]
    head: bytes
    given: GivenAnswer | None
    """The message that these ids are, and nothing else."""
    special: tuple[tuple[int, int], ...]
    """Where special tokens stand among its bytes, and which."""
    shown_as: tuple[tuple[int, bytes], int] | None = None
    """The latest rendered turn that is this answer in another spelling, by length and digest of its text and ids; and
    how many of these the answer takes the place of."""
    unlike: tuple[int, bytes] | None = None
    """The latest rendered turn, told the same way, that neither it is nor an answer before it of the same message."""

    @property
    def n_bytes(self) -> int:
        return len(self.text) + self.ids.itemsize * len(self.ids) + _ENTRY_BYTES


@dataclass(slots=True)
class _Walk:
    """Through a prompt, from mark to mark, and what came of it."""

    digest: blake2b
    n_hashed: int = 0
    """Bytes of the prompt."""
    n_taken: int = 0
    """Of the prompt's own ids."""
    n_spliced: int = 0
    n_said: int = 0
    """Messages of the assistant's."""
    place: bytes = b""
    """Of the last boundary."""
    ids: array[int] = field(default_factory=lambda: array("i"))
    boundaries: list[int] = field(default_factory=list)
    places: list[int | None] = field(default_factory=list)
    """Of the marks that were passed."""
    replaced: list[int] = field(default_factory=list)
    respelled: list[int] = field(default_factory=list)


class TokenReplayCache:
    """The latest used ones, up to so many bytes. Any thread may use it."""

    def __init__(self, model: TextModel, max_bytes: int) -> None:
        self._model = model
        self._special = frozenset(token.id for token in model.info.special)
        self._max_bytes = max_bytes
        self._answers: OrderedDict[bytes, tuple[_Answer, ...]] = OrderedDict()
        self._lock = threading.Lock()
        self.n_bytes = 0

    def splice(self, chat: RenderedChat, client: str = "", answers: Sequence[GivenAnswer | None] = ()) -> SplicedPrompt:
        """The prompt with the ids of answers that are known, for a turn of `client`'s: nobody else has it. `answers`:
        what the assistant's messages are known to be, in their order."""
        prompt = chat.prompt_bytes
        walk = _Walk(blake2b(client.encode(), digest_size=16))
        for _ in chat.marks:
            self._go_on(walk, chat, prompt, answers)
        ids = walk.ids + chat.tokens[walk.n_taken :]
        turn = None
        if walk.boundaries:
            last = len(walk.places) - 1 - walk.places[::-1].index(walk.boundaries[-1])
            turn = Turn(walk.place, prompt[chat.marks[last].byte :], tuple(ids[walk.boundaries[-1] :]))
        return SplicedPrompt(
            ids,
            tuple(walk.boundaries),
            tuple(walk.places),
            turn,
            walk.n_spliced,
            frozenset(walk.replaced),
            frozenset(walk.respelled),
        )

    def _go_on(self, walk: _Walk, chat: RenderedChat, prompt: bytes, answers: Sequence[GivenAnswer | None]) -> None:
        """Past the next mark."""
        number = len(walk.places)
        mark = chat.marks[number]
        walk.digest.update(prompt[walk.n_hashed : mark.byte])
        walk.n_hashed = mark.byte
        given = None
        if mark.role == "assistant":
            given = answers[walk.n_said] if walk.n_said < len(answers) else None
            walk.n_said += 1
        if mark.token < walk.n_taken:
            walk.places.append(None)
            return  # inside of an answer that was put in
        walk.ids += chat.tokens[walk.n_taken : mark.token]
        walk.n_taken = mark.token
        walk.boundaries.append(len(walk.ids))
        walk.places.append(len(walk.ids))
        walk.place = walk.digest.digest()
        here = self._known_at(walk.place)
        found = self._spelled(chat, prompt, mark, here) if here else None
        if found is None and given is not None:
            found = self._respelled(chat, prompt, number, [known for known in here if known.given is given])
            if found is not None:
                walk.respelled.append(walk.n_said - 1)
        if found is not None:
            known_ids, n_replaced = found
            walk.replaced.append(walk.n_said - 1)
            walk.n_spliced += known_ids != chat.tokens[walk.n_taken : walk.n_taken + n_replaced]
            walk.ids += known_ids
            walk.n_taken += n_replaced

    def keep(
        self, turn: Turn, tokens: Sequence[int], stop: str | None = None, given: GivenAnswer | None = None
    ) -> None:
        """An answer, or its prefix. `stop`: a text that ended it and is not part of it. `given`: the message that it
        became."""
        ids = list(tokens)
        while ids and ids[-1] in self._model.info.eog:
            ids.pop()
        pieces = self._pieces(ids)
        if stop is not None:
            at = b"".join(pieces).find(stop.encode())
            while pieces and at >= 0 and sum(map(len, pieces)) > at:
                pieces.pop()
                ids.pop()
        if not ids:
            return
        text = b"".join(pieces)
        if given is not None and not _ends_with_message(text, given):
            given = None
        ids = [*turn.head_ids, *ids]
        answer = _Answer(turn.head + text, array("i", ids), turn.head, given, tuple(self._specials(ids)))
        with self._lock:
            here = self._answers.get(turn.place, ())
            leaving = [other for other in here if other.text == answer.text]
            if not leaving and len(here) >= _MAX_AT_ONE_PLACE:
                leaving = [here[0]]
            self._answers[turn.place] = (*(other for other in here if other not in leaving), answer)
            self.n_bytes += answer.n_bytes - sum(other.n_bytes for other in leaving)
            self._answers.move_to_end(turn.place)
            while self.n_bytes > self._max_bytes and self._answers:
                _, oldest = self._answers.popitem(last=False)
                self.n_bytes -= sum(other.n_bytes for other in oldest)

    def _known_at(self, place: bytes) -> tuple[_Answer, ...]:
        if place not in self._answers:  # as at most places
            return ()
        with self._lock:
            here = self._answers.get(place, ())
            if here:
                self._answers.move_to_end(place)
        return here

    def _spelled(
        self, chat: RenderedChat, prompt: bytes, mark: MessageMark, here: Sequence[_Answer]
    ) -> tuple[array[int], int] | None:
        """An answer whose turn began at the mark, and how many of the prompt's ids it takes the place of."""
        fitting = [answer for answer in here if prompt.startswith(answer.text, mark.byte)]
        for answer in sorted(fitting, key=lambda answer: -len(answer.text)):
            n_replaced = self._n_replaced(chat.tokens, mark.token, answer)
            if n_replaced is not None:
                return answer.ids, n_replaced
        return None

    def _respelled(
        self, chat: RenderedChat, prompt: bytes, number: int, here: Sequence[_Answer]
    ) -> tuple[array[int], int] | None:
        """The same for answers that are the message behind mark `number`, whatever the template has made of it: up to
        the token that ends the turn, if the turn begins as theirs did, has the same special tokens in the same order
        and shows all that they say. A template that strips the reasoning does not."""
        if not here:
            return None
        mark = chat.marks[number]
        n_tokens, n_bytes = len(chat.tokens), len(prompt)
        if number + 1 < len(chat.marks):
            n_tokens, n_bytes = chat.marks[number + 1].token, chat.marks[number + 1].byte
        tokens, text = chat.tokens[mark.token : n_tokens], prompt[mark.byte : n_bytes]
        turn = (len(text), blake2b(text + tokens, digest_size=16).digest())
        if (shown_as := here[-1].shown_as) is not None and shown_as[0] == turn:
            return here[-1].ids, shown_as[1]
        end = None if here[-1].unlike == turn else self._end_of_turn(tokens)
        if end is None:
            return None
        special = self._special_in(tokens[:end])
        shown = text.removesuffix(b"".join(self._pieces(tokens[end:])))
        for answer in reversed(here):
            is_shown = shown.startswith(answer.head) and _shows(shown, answer)
            if is_shown and self._has_special(answer, special):
                answer.shown_as = (turn, end)
                return answer.ids, end
        here[-1].unlike = turn
        return None

    def _has_special(self, answer: _Answer, wanted: Sequence[int]) -> bool:
        """Whether these are the special tokens that it reads as. Under a grammar models spell some of them letter by
        letter, and calls beside their format they write without its marks; what they have as tokens is never more than
        what is wanted."""
        own = [token for _, token in answer.special]
        if own == wanted:
            return True
        rest = iter(wanted)
        if not all(token in rest for token in own):
            return False
        if answer.given is not None and answer.given.message.get("tool_calls"):
            return True
        read = self._model.tokenize(answer.text.decode(errors="replace"), parse_special=True)
        return self._special_in(read) == wanted

    def _special_in(self, ids: Iterable[int]) -> list[int]:
        return list(filter(self._special.__contains__, ids))

    def _end_of_turn(self, tokens: Sequence[int]) -> int | None:
        """Where the token is that ends it, with nothing but white space behind it."""
        for end in reversed(range(len(tokens))):
            if tokens[end] in self._model.info.eog:
                return end
            if not self._model.prompt_piece(tokens[end]).isspace():
                break
        return None

    def _n_replaced(self, tokens: array[int], begin: int, answer: _Answer) -> int | None:
        """How many tokens from `begin` on spell the answer, if none lies across its end and special tokens are where
        they are in it."""
        n = len(answer.ids)
        if tokens[begin : begin + n] == answer.ids:
            return n  # as most are
        n_bytes, end = 0, begin
        while n_bytes < len(answer.text) and end < len(tokens):
            n_bytes += len(self._model.prompt_piece(tokens[end]))
            end += 1
        replaced = tokens[begin:end]
        if n_bytes != len(answer.text) or b"".join(self._pieces(replaced)) != answer.text:
            return None
        return end - begin if self._specials(replaced) == list(answer.special) else None

    def _specials(self, ids: Iterable[int]) -> list[tuple[int, int]]:
        at = 0
        found = []
        for token in ids:
            if token in self._special:
                found.append((at, token))
            at += len(self._model.prompt_piece(token))
        return found

    def _pieces(self, ids: Iterable[int]) -> list[bytes]:
        return [self._model.prompt_piece(token) for token in ids]


def _ends_with_message(text: bytes, given: GivenAnswer) -> bool:
    """Whether a text that the model wrote has what the message says, and nothing behind it but calls. Clients are shown
    a replacement where its bytes are no text."""
    shown = text.decode(errors="replace")
    content = given.message["content"].strip()
    if content not in shown or given.reasoning not in shown:
        return False
    return "tool_calls" in given.message or shown.rstrip().endswith(content)


def _shows(turn: bytes, answer: _Answer) -> bool:
    """Whether a rendered turn has all that the answer says. Arguments may be written in many ways: what the message
    means has been compared."""
    assert answer.given is not None
    message = answer.given.message
    names = [call["function"]["name"] for call in message.get("tool_calls", ())]
    return all(text.encode() in turn for text in (message["content"].strip(), answer.given.reasoning, *names))
