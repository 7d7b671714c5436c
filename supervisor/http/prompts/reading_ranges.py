"""Reading ranges: what of a rendered chat is read in any case where only parts of the prompt are read, and what makes
sense only as a whole.

Always read are the system text with the tools, the user's last turn and what follows it, calls of tools and the
beginnings of their results. Blocks of code are read whole or not at all. Templates put messages in turns of their own
making (results of tools as the user's, several in one), so messages are looked for by their texts in the prompt's
bytes. What is not found is left to the scores. Pure: knows no template and no engine.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from luce.protocol import MAX_MARKS
from luce.supervisor.text import RenderedChat

Span = tuple[int, int]

RESULT_TOKENS = 64
"""Of a tool's result: they say what it is a result of."""
WHOLE_TOKENS = 2048
"""The user's last turn, and what follows it, are read whole up to so many tokens each. A longer one may be what there
is to choose from: a document with a question behind it."""
END_TOKENS = 256
"""Of a longer one the end, beside as much of its beginning as of a result's: where questions stand."""
_CLOSING_TOKENS = 16
"""Behind a result: what the template closes it with. A block left open would take in what follows it."""
_CALL_TOKENS = 256  # of a call whose results are nowhere to be found

_SYSTEM = frozenset({"system", "developer"})
_MIN_PREFIX = 8
_MAX_PREFIX = 80
_PLAIN = re.compile(rb'[^\n"\\]+')
_FENCE = re.compile(rb"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})[^\n]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReadingRanges:
    """Positions of the prompt's ids, from the first up to before the second, in rising order."""

    keep: tuple[Span, ...] = ()
    blocks: tuple[Span, ...] = ()


def reading_ranges(
    chat: RenderedChat,
    places: Sequence[int | None],
    n_prompt: int,
    messages: Sequence[Mapping[str, Any]],
    piece: Callable[[int], bytes],
    *,
    opens_answer: bool,
) -> ReadingRanges:
    """`places`: where the template's messages begin in the prompt's ids; None: within an answer that was put in.
    `messages`: of which the prompt was rendered, their contents as texts. `piece`: a token's bytes in the prompt.
    `opens_answer`: the last of the template's messages is none of them."""
    prompt = _Prompt(chat, places, n_prompt, piece)
    texts = _Texts(prompt, messages, opens_answer=opens_answer)
    spans = [*texts.head(), *texts.tail(), *texts.calls()]
    blocks = [(begin, end) for begin, end in texts.blocks() if begin < end]
    return ReadingRanges(bounded(spans), tuple(blocks[-MAX_MARKS:]))


def bounded(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The same positions in order, each in one span; where there are too many, the closest ones become one."""
    apart: list[Span] = []
    for begin, end in sorted(spans):
        if begin >= end:
            continue
        if apart and begin <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], end))
        else:
            apart.append((begin, end))
    if len(apart) <= MAX_MARKS:
        return tuple(apart)
    gaps = sorted((after[0] - before[1], number) for number, (before, after) in enumerate(pairwise(apart)))
    closed = {number for _, number in gaps[: len(apart) - MAX_MARKS]}
    joined: list[Span] = []
    for number, span in enumerate(apart):
        if number - 1 in closed:
            joined[-1] = (joined[-1][0], span[1])
        else:
            joined.append(span)
    return tuple(joined)


class _Prompt:
    """A prompt's bytes, and where the ids stand that spell them."""

    def __init__(
        self, chat: RenderedChat, places: Sequence[int | None], n_prompt: int, piece: Callable[[int], bytes]
    ) -> None:
        self.text = chat.prompt_bytes
        self.n_ids = n_prompt
        self._ends = list(accumulate(len(piece(token)) for token in chat.tokens))
        self._sections = [(0, 0, 0), *self._heads(chat, places, piece)]
        if self._sections[1:] and self._sections[1][0] == 0:
            del self._sections[0]
        self._bytes = [byte for byte, _, _ in self._sections]

    def _heads(
        self, chat: RenderedChat, places: Sequence[int | None], piece: Callable[[int], bytes]
    ) -> Iterator[tuple[int, int, int | None]]:
        """Byte, token and place of the template's messages. Of those that begin with no special token the mark's byte
        is not theirs: it can be had where the ids spell the text to the byte, as most tokenisers' do."""
        is_exact = bool(self._ends) and self._ends[-1] == len(self.text)
        self.marks: list[tuple[int, str]] = []
        for mark, place in zip(chat.marks, places, strict=True):
            byte = self._bytes_before(mark.token) if is_exact else mark.byte
            if is_exact or self.text.startswith(piece(chat.tokens[mark.token]), byte):
                self.marks.append((byte, mark.role))
                yield byte, mark.token, place

    def begin(self, byte: int) -> int:
        """Of the id that has the byte."""
        number, end, first, last = self._section(byte)
        return self._place(number, bisect_right(self._ends, end, first, last) - first, falls_back=True)

    def end(self, byte: int) -> int:
        """Behind the id that has the byte before."""
        number, end, first, last = self._section(max(byte - 1, 0))
        offset = bisect_left(self._ends, end + min(byte, 1), first, last) + 1 - first
        return self._place(number, offset, falls_back=False)

    def mark_before(self, byte: int) -> int:
        """The byte at which the template's message begins that has this one; 0 before the first."""
        return self._bytes[bisect_right(self._bytes, byte) - 1]

    def mark_after(self, byte: int) -> int | None:
        number = bisect_right(self._bytes, byte)
        return self._bytes[number] if number < len(self._bytes) else None

    def _bytes_before(self, token: int) -> int:
        return self._ends[token - 1] if token > 0 else 0

    def _section(self, byte: int) -> tuple[int, int, int, int]:
        """The number of that which has the byte, the byte as the ids count it, and which of them the section has."""
        number = bisect_right(self._bytes, byte) - 1
        begin, first, _ = self._sections[number]
        last = self._sections[number + 1][1] if number + 1 < len(self._sections) else len(self._ends)
        return number, byte - begin + self._bytes_before(first), first, last

    def _place(self, number: int, offset: int, *, falls_back: bool) -> int:
        """Ids that were put in for an answer may be fewer than the tokeniser's. Where a message begins within such an
        answer, all of the answer counts."""
        most = next((place for _, _, place in self._sections[number + 1 :] if place is not None), self.n_ids)
        place = self._sections[number][2]
        if place is not None:
            return min(place + offset, most)
        if not falls_back:
            return most
        return next((place for _, _, place in reversed(self._sections[:number]) if place is not None), 0)


class _Texts:
    """The messages of a conversation in its prompt."""

    def __init__(self, prompt: _Prompt, messages: Sequence[Mapping[str, Any]], *, opens_answer: bool) -> None:
        self._prompt = prompt
        self._messages = messages
        said = [byte for byte, role in prompt.marks if role == "assistant"]
        n_said = sum(message.get("role") == "assistant" for message in messages) + opens_answer
        self._said = said if len(said) == n_said else None
        """Where the assistant's messages begin; None: the template makes others of them."""
        self._spans, self._begins = self._find()

    def head(self) -> Iterator[Span]:
        """All that stands before the first message of somebody else: what the template says of tools among it."""
        others = (number for number, message in enumerate(self._messages) if message.get("role") not in _SYSTEM)
        first = next(others, None)
        if first is None:
            return
        shown_as = {self._messages[first].get("role"), "user"}
        ends = [byte for byte, role in self._prompt.marks if role in shown_as][:1]
        if (span := self._spans[first]) is not None:
            ends.append(span[0])
        if ends:
            yield 0, self._prompt.begin(min(ends))

    def tail(self) -> Iterator[Span]:
        """The user's last turn, and what follows it."""
        asked = (number for number, message in enumerate(self._messages) if message.get("role") == "user")
        last = max(asked, default=None)
        if last is None or (span := self._spans[last]) is None:
            return
        begin, end = max(self._prompt.mark_before(span[0]), self._begins[last]), span[1]
        yield from _ends(self._prompt.begin(begin), self._prompt.end(end))
        yield from _ends(self._prompt.end(end), self._prompt.n_ids)

    def calls(self) -> Iterator[Span]:
        """The assistant's messages that call tools, with all that stands between a call and its result, and the
        beginning of that."""
        for number, message in enumerate(self._messages):
            if message.get("tool_calls"):
                yield from self._call(number)

    def blocks(self) -> Iterator[Span]:
        """Of code, between fences within one message."""
        for span in self._spans:
            if span is None:
                continue
            for begin, end in fenced(self._prompt.text[span[0] : span[1]]):
                yield self._prompt.begin(span[0] + begin), self._prompt.end(span[0] + end)

    def _call(self, number: int) -> Iterator[Span]:
        prompt = self._prompt
        at = self._begins[number]
        is_answered = False
        for result in range(number + 1, len(self._messages)):
            if self._messages[result].get("role") != "tool":
                break
            if (span := self._spans[result]) is None:
                continue
            begin = prompt.begin(span[0])
            first = max(prompt.begin(at), begin - RESULT_TOKENS) if is_answered else prompt.begin(at)
            yield first, min(begin + RESULT_TOKENS, prompt.n_ids)
            at, is_answered = span[1], True
        if is_answered:
            closing = prompt.end(at)
            yield closing, min(closing + _CLOSING_TOKENS, prompt.n_ids)
        else:
            # The turn behind the call has what the template makes of the results, if they have one.
            behind = prompt.mark_after(at)
            end = prompt.begin(at) + _CALL_TOKENS if behind is None else prompt.begin(behind) + RESULT_TOKENS
            yield prompt.begin(at), min(end, prompt.n_ids)

    def _find(self) -> tuple[list[Span | None], list[int]]:
        """The bytes of each message's text, None of one that is not found; and behind which byte it begins: where the
        assistant's own message does, else where the text before ends."""
        spans: list[Span | None] = []
        begins: list[int] = []
        at, n_said, limit = 0, 0, len(self._prompt.text)
        if self._said:
            limit = self._said[0]
        for message in self._messages:
            if self._said is not None and message.get("role") == "assistant":
                at = self._said[n_said]
                n_said += 1
                limit = self._said[n_said] if n_said < len(self._said) else len(self._prompt.text)
            begins.append(at)
            # What is said beside a call some templates show behind its results.
            content = None if message.get("tool_calls") else message.get("content")
            spans.append(self._look_for(content, at, limit))
            if (span := spans[-1]) is not None:
                at = span[1]
        return spans, begins

    def _look_for(self, content: Any, at: int, limit: int) -> Span | None:
        """Templates leave out the space around a text, and some write it as JSON. Of one that they spell otherwise its
        first words are looked for."""
        if not isinstance(content, str) or not (text := content.strip()):
            return None
        for wanted in _spellings(text):
            if (begin := self._prompt.text.find(wanted, at, limit)) >= 0:
                return begin, begin + len(wanted)
        return None


def _spellings(text: str) -> Iterator[bytes]:
    whole = text.encode()
    yield whole
    yield json.dumps(text, ensure_ascii=False)[1:-1].encode()
    words = _PLAIN.match(whole)
    if words is not None and len(words[0]) >= _MIN_PREFIX:
        yield words[0][:_MAX_PREFIX]


def _ends(begin: int, end: int) -> Iterator[Span]:
    """A stretch, or its two ends if it is long."""
    if end - begin <= WHOLE_TOKENS:
        yield begin, end
    else:
        yield begin, begin + RESULT_TOKENS
        yield end - END_TOKENS, end


def fenced(text: bytes) -> Iterator[Span]:
    """Blocks of code as Markdown has them, their fences included; one that is not closed is none. In one pass, however
    many fences a text has."""
    opened: re.Match[bytes] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[0].strip().startswith(opened[1]) and not fence[0].strip().strip(opened[1][:1]):
            yield opened.start(), fence.end()
            opened = None
