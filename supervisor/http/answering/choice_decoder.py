"""A choice: one answer on its way from tokens to pieces. A chat is read by the format of its template, a text is not.

Knows text, no engine and no dialect: it says when a stop string has come, others act on it.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from luce.supervisor.engine.generation import TokenEvent
from luce.supervisor.http.answering.answer_events import (
    ChoiceFinished,
    ContentPiece,
    FinishedToolCall,
    FinishReason,
    Logprob,
    Piece,
    ReasoningPiece,
    TokenLogprob,
    ToolCallPiece,
)
from luce.supervisor.http.answering.call_repair import CallHold
from luce.supervisor.http.answering.leading_calls import RepairedCall
from luce.supervisor.http.answering.loop_guard import LoopGuard
from luce.supervisor.http.answering.shown_logprobs import ShownLogprobs
from luce.supervisor.text import (
    AnswerParser,
    ContentDelta,
    Delta,
    ReasoningDelta,
    RenderedChat,
    StopStrings,
    TextModel,
    ToolCallDelta,
)

logger = logging.getLogger("luce.http.answering")


class Reading(Protocol):
    """What a format makes of tokens. One for each choice."""

    n_mended: int
    """Places of the content that the format has none for; of a finished answer, as is the next."""
    n_unaccounted: int
    """Bytes that are in no field, though they are no marks of the format."""

    def feed(self, token: int) -> Sequence[Delta]: ...

    def feed_many(self, tokens: Sequence[int]) -> Sequence[tuple[int, Sequence[Delta]]]:
        """The same in steps: a number of tokens, and what they add."""

    def finish(self, *, truncated: bool) -> Sequence[Delta]:
        """What is still missing."""

    def close(self) -> None: ...


class PlainReading:
    """Text as the tokens spell it."""

    def __init__(self, model: TextModel) -> None:
        self._detokenizer = model.detokenizer()
        self.n_mended = self.n_unaccounted = 0

    def feed(self, token: int) -> Sequence[Delta]:
        text = self._detokenizer.feed(token)
        return (ContentDelta(text),) if text else ()

    def feed_many(self, tokens: Sequence[int]) -> Sequence[tuple[int, Sequence[Delta]]]:
        text = "".join(map(self._detokenizer.feed, tokens))
        return ((len(tokens), (ContentDelta(text),) if text else ()),)

    def finish(self, *, truncated: bool) -> Sequence[Delta]:  # noqa: ARG002  a text has no format
        text = self._detokenizer.finish()
        return (ContentDelta(text),) if text else ()

    def close(self) -> None:
        pass


class ChatReading:
    """A chat model's answer in the format that its template sets."""

    def __init__(self, chat: RenderedChat, *, by_grammar: bool = False) -> None:
        self._parser = AnswerParser(chat, by_grammar=by_grammar)
        self.n_mended = self.n_unaccounted = 0

    def feed(self, token: int) -> Sequence[Delta]:
        return self._parser.feed(token)

    def feed_many(self, tokens: Sequence[int]) -> Sequence[tuple[int, Sequence[Delta]]]:
        return self._parser.feed_many(tokens)

    def finish(self, *, truncated: bool) -> Sequence[Delta]:
        finished = self._parser.finish(truncated=truncated)
        self.n_mended, self.n_unaccounted = finished.n_mended, finished.n_unaccounted
        if self.n_mended:
            logger.warning("an answer has text outside the format of the model's template: it becomes content")
        if self.n_unaccounted:
            logger.warning("%d bytes of an answer are in no field", self.n_unaccounted)
        return finished.deltas

    def close(self) -> None:
        self._parser.close()


class LogprobReader:
    def __init__(self, model: TextModel, n_likeliest: int) -> None:
        self._model = model
        self._n_likeliest = n_likeliest

    def read(self, entries: Sequence[tuple[int, float]]) -> TokenLogprob:
        """Of token ids, as those of bytes. `entries`: the chosen token first, then the likeliest."""
        chosen, *others = [
            Logprob(token, self._model.piece(token, special=True), logprob)
            for token, logprob in entries[: self._n_likeliest + 1]
        ]
        return TokenLogprob(chosen, others)


class ChoiceDecoder:
    """One reader: `feed` what has come, `finish` once. `has_stopped`: no more is wanted."""

    def __init__(
        self,
        index: int,
        reading: Reading,
        *,
        stops: Sequence[str],
        own_stops: Sequence[str] = (),
        max_calls: int | None = None,
        ends: frozenset[int],
        logprobs: LogprobReader | None,
        keeps_all_logprobs: bool = False,
        hold: CallHold | None = None,
        guard: LoopGuard | None = None,
    ) -> None:
        """`own_stops` are the template's: they end an answer as an end token does. `keeps_all_logprobs`: each token has
        an entry, the end token too, if one without text. `max_calls`: so many tool calls, and
        a further one ends it. `ends`: tokens that are no text. `hold`: reads calls that come as text; None: they are
        shown. `guard`: ends an answer that goes round in circles, as a limit would."""
        self._index = index
        self._reading = reading
        self._ends = ends
        self._stops = StopStrings([*stops, *own_stops]) if stops or own_stops else None
        self._own_stops = frozenset(own_stops) - frozenset(stops)
        self._logprobs = logprobs
        self._shown = None if logprobs is None else ShownLogprobs(keeps_all=keeps_all_logprobs)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._max_calls = max_calls
        self._hold = hold
        self._guard = guard
        self.n_repaired = 0
        """Calls that had come as text."""
        self._has_called = False
        self._is_whole = False
        self._reasons = False
        self.n_reasoning = 0
        self.tokens: list[int] = []
        """All that were fed, end tokens too."""

    @property
    def n_mended(self) -> int:
        return self._reading.n_mended

    @property
    def n_unaccounted(self) -> int:
        return self._reading.n_unaccounted

    @property
    def has_stopped(self) -> bool:
        is_called = self._has_called or (self._hold is not None and self._hold.has_ended)
        return is_called or (self._stops is not None and self._stops.match is not None)

    @property
    def has_looped(self) -> bool:
        return self._guard is not None and self._guard.has_looped

    @property
    def stop(self) -> str | None:
        """The stop string that came, the template's own too."""
        return None if self._stops is None or self._stops.match is None else self._stops.match.stop

    def feed(self, items: Sequence[int | TokenEvent]) -> list[Piece]:
        """Pieces of what has come; neighbours of a kind are one."""
        pieces: list[Piece] = []
        can_stop = self._stops is not None or self._max_calls is not None or self._guard is not None
        can_stop = can_stop or (self._hold is not None and self._hold.may_end)
        if len(items) > 1 and not can_stop and self._logprobs is None and self._feed_plain(items, pieces):
            return pieces
        for item in items:
            if can_stop and (self.has_stopped or self.has_looped):
                break  # what came before the engine heard of it
            token = item if isinstance(item, int) else item.token
            self.tokens.append(token)
            is_end = token in self._ends
            self._note_logprobs(item, is_end=is_end)
            if is_end:
                continue
            deltas = self._reading.feed(token)
            if deltas:
                self._reasons = isinstance(deltas[-1], ReasoningDelta)
                self._show(deltas, pieces)
            self.n_reasoning += self._reasons
            if self._guard is not None and self._guard.feed(token):
                logger.warning("an answer repeats itself: it was ended after %d tokens", len(self.tokens))
        return pieces

    def _note_logprobs(self, item: int | TokenEvent, *, is_end: bool) -> None:
        if self._logprobs is None or self._shown is None or isinstance(item, int) or item.logprobs is None:
            return
        entry = self._logprobs.read(item.logprobs)
        if is_end:
            self._shown.end(entry)
        else:
            self._shown.write(entry)

    def _feed_plain(self, items: Sequence[int | TokenEvent], pieces: list[Piece]) -> bool:
        """All at once, where none of them can end the answer and nobody wants to know of each."""
        tokens = [item if isinstance(item, int) else item.token for item in items]
        if not self._ends.isdisjoint(tokens):
            return False
        self.tokens += tokens
        for n_tokens, deltas in self._reading.feed_many(tokens):
            if deltas:
                self._reasons = isinstance(deltas[-1], ReasoningDelta)
                self._show(deltas, pieces)
            self.n_reasoning += n_tokens * self._reasons
        return True

    def finish(self, *, truncated: bool) -> tuple[list[Piece], ChoiceFinished]:
        """`truncated`: a limit cut it off. The pieces that are still missing, and the whole."""
        pieces: list[Piece] = []
        has_stopped = self.has_stopped
        self._is_whole = has_stopped or not truncated
        truncated = truncated or self.has_looped
        if not has_stopped:
            self._show(self._reading.finish(truncated=truncated), pieces)
            self._release_stops(pieces)
        has_stopped = self.has_stopped
        self._end_hold(pieces, reads_calls=not (has_stopped or truncated))
        if self._shown is not None and (rest := self._shown.finish()):
            _append(pieces, ContentPiece(self._index, "", rest))
        stop = None if self.stop in self._own_stops else self.stop
        finished = ChoiceFinished(
            choice=self._index,
            reason=self._reason(stop, truncated=truncated and not has_stopped),
            stop_text=stop,
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(call.finished() for call in self._calls),
            logprobs=() if self._shown is None else self._shown.all,
        )
        return pieces, finished

    def message(self, *, continues: bool = False) -> dict[str, Any] | None:
        """As a client would send it back that changes nothing; as far as it went, if nobody reads it any more. None
        where a message says less than the tokens, or nothing. `continues`: one that goes on from another may be white
        space, or reasoning alone."""
        content = "".join(self._content)
        has_parts = self._has_called or (self._calls and not self._is_whole)
        is_something = bool(content or self._reasoning if continues else content.strip())
        if has_parts or not (is_something or self._calls) or not all(call.is_whole() for call in self._calls):
            return None
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [call.part() for call in self._calls]
        return message

    def close(self) -> None:
        self._reading.close()

    def _reason(self, stop: str | None, *, truncated: bool) -> FinishReason:
        if stop is not None:
            return FinishReason.STOP_TEXT
        if truncated:
            return FinishReason.LENGTH
        if any(call.is_whole() for call in self._calls):
            return FinishReason.TOOL_CALLS
        return FinishReason.STOP

    def _show(self, deltas: Sequence[Delta], pieces: list[Piece]) -> None:
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                text = delta.text if self._stops is None else self._stops.feed(delta.text)
                if text:
                    self._show_text(text, pieces)
                if self.has_stopped:
                    return
                continue
            self._release_stops(pieces)
            self._release_hold(pieces)
            if isinstance(delta, ReasoningDelta):
                self._reasoning.append(delta.text)
                if self._shown is not None:
                    self._shown.pass_over(delta.text)
                _append(pieces, ReasoningPiece(self._index, delta.text))
            else:
                self._hold = None
                call = replace(delta, index=self.n_repaired + delta.index)
                if call.index == self._max_calls:
                    self._has_called = True
                    return
                self._add_call(call, pieces)

    def _release_stops(self, pieces: list[Piece]) -> None:
        """What was held back as the beginning of a stop string is text, since the content does not go on."""
        if self._stops is not None and not self.has_stopped and (held := self._stops.finish()):
            self._show_text(held, pieces)

    def _show_text(self, text: str, pieces: list[Piece]) -> None:
        if self._hold is not None:
            calls, text = self._hold.feed(text)
            self._add_repaired(calls, pieces)
        if text:
            self._add_content(text, pieces)

    def _release_hold(self, pieces: list[Piece]) -> None:
        """What is held back is shown, since the content does not go on."""
        if self._hold is not None and (held := self._hold.release()):
            self._add_content(held, pieces)

    def _end_hold(self, pieces: list[Piece], *, reads_calls: bool) -> None:
        """What is held back is the calls that it is, or shown."""
        if self._hold is None or not reads_calls:
            self._release_hold(pieces)
            return
        calls, text = self._hold.finish()
        self._add_repaired(calls[: self._max_calls], pieces)
        if text:
            self._add_content(text, pieces)

    def _add_repaired(self, calls: Sequence[RepairedCall], pieces: list[Piece]) -> None:
        for call in calls:
            logger.info("a call of %s came as text, outside the model's format: it is read as a call", call.name)
            self._add_call(ToolCallDelta(len(self._calls), "", call.name, call.arguments), pieces)
            self.n_repaired += 1

    def _add_content(self, text: str, pieces: list[Piece]) -> None:
        self._content.append(text)
        _append(pieces, ContentPiece(self._index, text, () if self._shown is None else self._shown.show(text)))

    def _add_call(self, delta: ToolCallDelta, pieces: list[Piece]) -> None:
        if self._shown is not None:
            self._shown.pass_over(None)
        if delta.index == len(self._calls):
            call = _Call(delta.id or f"call_{secrets.token_hex(12)}", delta.name, sum(map(len, self._content)))
            self._calls.append(call)
            pieces.append(ToolCallPiece(self._index, delta.index, call.id, call.name, delta.arguments))
        else:
            call = self._calls[delta.index]
            _append(pieces, ToolCallPiece(self._index, delta.index, "", "", delta.arguments))
        call.arguments.append(delta.arguments)


class _Call:
    def __init__(self, id_: str, name: str, n_before: int) -> None:
        self.id = id_
        self.name = name
        self.n_before = n_before
        self.arguments: list[str] = []

    def is_whole(self) -> bool:
        try:
            json.loads("".join(self.arguments))
        except (ValueError, RecursionError):
            return False
        return True

    def part(self) -> dict[str, Any]:
        """Of a message."""
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}

    def finished(self) -> FinishedToolCall:
        return FinishedToolCall(self.id, self.name, "".join(self.arguments), self.n_before)


def _append(pieces: list[Piece], piece: Piece) -> None:
    """`piece`, joined with the one before it if that is the same field's."""
    if not pieces:
        pieces.append(piece)
        return
    last = pieces[-1]
    if isinstance(piece, ContentPiece) and isinstance(last, ContentPiece):
        pieces[-1] = ContentPiece(piece.choice, last.text + piece.text, (*last.logprobs, *piece.logprobs))
    elif isinstance(piece, ReasoningPiece) and isinstance(last, ReasoningPiece):
        pieces[-1] = ReasoningPiece(piece.choice, last.text + piece.text)
    elif isinstance(piece, ToolCallPiece) and isinstance(last, ToolCallPiece) and last.index == piece.index:
        pieces[-1] = replace(last, arguments=last.arguments + piece.arguments)
    else:
        pieces.append(piece)
