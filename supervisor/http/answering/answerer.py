"""ChatAnswerer: answers an AnswerRequest: its prompt rendered, its requests submitted, their tokens read as pieces.

Composes rendering, the token replay cache and choices over the supervisor. It must know no dialect and no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from luce.protocol import Reading, StopReason
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.engine.generation import TokenEvent
from luce.supervisor.http.answer_defaults import ModelDefaults
from luce.supervisor.http.answering.answer_events import (
    AnswerEvent,
    AnswerFinished,
    ChoiceFinished,
    ContentPiece,
    Piece,
    Progress,
    PromptLogprobs,
    Usage,
    added,
)
from luce.supervisor.http.answering.answer_log import AnswerLog, LoggedAnswer
from luce.supervisor.http.answering.call_repair import CallHold
from luce.supervisor.http.answering.choice_decoder import (
    ChatReading,
    ChoiceDecoder,
    LogprobReader,
    PlainReading,
)
from luce.supervisor.http.answering.choice_requests import engine_request
from luce.supervisor.http.answering.common_prompts import common_heads
from luce.supervisor.http.answering.loop_guard import LoopGuard
from luce.supervisor.http.answering.prompt_scores import PromptScores
from luce.supervisor.http.answering.tenant_isolation import TenantIsolation
from luce.supervisor.http.answering.told_notes import tell_notes
from luce.supervisor.http.errors import ApiError, ErrorKind, api_error
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt, TextPrompt
from luce.supervisor.http.prompts.answer_spellings import AnswerSpellings
from luce.supervisor.http.prompts.prompt_images import PromptImages
from luce.supervisor.http.prompts.prompt_reader import PromptReader
from luce.supervisor.http.prompts.rendering import Rendered, Renderer
from luce.supervisor.http.prompts.token_replay_cache import TokenReplayCache
from luce.supervisor.http.request_records import current_record
from luce.supervisor.requests import (
    FinishedEvent,
    GenerateRequest,
    PrefillEvent,
    PromptTokenEvent,
    PromptTooLongError,
    RequestError,
)
from luce.supervisor.scheduling.in_flight_request import Item
from luce.supervisor.service import Submission

MAX_LOG_BYTES = 16 << 20  # read at the start: about a second

if TYPE_CHECKING:
    from luce.supervisor.http.app_context import FastPath
    from luce.supervisor.http.metrics import Metrics
    from luce.supervisor.http.settings import ServeSettings
    from luce.supervisor.model_backend import ModelBackend
    from luce.supervisor.text import TextModel


class ChatAnswerer:
    """For one supervisor and its model. Implements app_context.Answerer. Raises ConfigError, TextError."""

    def __init__(
        self,
        supervisor: ModelBackend,
        text: TextModel,
        settings: ServeSettings,
        metrics: Metrics,
        defaults: ModelDefaults | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._text = text
        self._settings = settings
        self._metrics = metrics
        self._defaults = ModelDefaults(settings, settings.profiles) if defaults is None else defaults
        self._known = TokenReplayCache(text, settings.answers_kept_bytes)
        self._spellings = AnswerSpellings(settings.answers_kept_bytes if settings.restores_answers else 0)
        self._renderer = Renderer(text, self._known, self._spellings)
        self._images = PromptImages(supervisor)
        self._isolation = None
        if settings.cache_isolation == "key":
            self._isolation = TenantIsolation(common_heads(settings.common_prompts, text))
        self._prompts = PromptReader(supervisor, settings, self._renderer, self._images, self._isolation)
        self._log = _answer_log(supervisor.config, text, settings.answers_kept_bytes)
        for answer in self._log.read() if self._log is not None else ():
            self._keep_answer(answer)

    @asynccontextmanager
    async def open(self, answer_request: AnswerRequest) -> AsyncIterator[ChatAnswering]:
        """Raises ApiError where the request cannot be served."""
        asked_s = time.monotonic()
        self._check(answer_request)
        answer_request = await self._prompts.readable(self._defaults.apply(answer_request))
        rendered = await self._prompts.read(answer_request)
        tell_notes(rendered.schema_notes)
        submissions: list[Submission] = []
        choices: list[ChoiceDecoder] = []
        with ExitStack() as stack:
            stack.callback(rendered.close)
            max_tokens = self._room_for(answer_request, rendered)
            stack.callback(self._note_answers, rendered, choices)
            isolation = self._isolation
            salt = None if isolation is None else isolation.salt(answer_request.client, rendered.ids)
            for index in range(answer_request.n):
                request = engine_request(
                    answer_request,
                    rendered,
                    index,
                    self._settings,
                    max_tokens=max_tokens,
                    n_vocab=self._text.n_vocab,
                    salt=salt,
                    seed=self._supervisor.config.seed,
                    images=self._images.placed(
                        answer_request.prompt, rendered.images, None if salt is None else salt.value
                    ),
                )
                submission = await self._submit(request)
                stack.callback(submission.close)
                submissions.append(submission)
                choice = self._choice(answer_request, rendered, index)
                stack.callback(choice.close)
                choices.append(choice)
            await self._prompts.note(answer_request, rendered)
            scores = self._scores(answer_request, rendered)
            is_judged = answer_request.prompt.grammar is not None or answer_request.pins or scores is not None
            if is_judged or self._may_not_fit(rendered):
                await self._await_consent(submissions[0])
            answering = ChatAnswering(
                submissions, choices, self._metrics, asked_s, answer_request.max_predict_s, rendered, scores
            )
            stack.callback(answering.close)
            yield answering

    async def count_tokens(self, answer_request: AnswerRequest) -> int:
        rendered = await self._prompts.read(await self._prompts.readable(self._defaults.apply(answer_request)))
        rendered.close()
        return len(rendered.ids)

    async def prompt_text(self, answer_request: AnswerRequest) -> str:
        return await self._prompts.prompt_text(self._defaults.apply(answer_request))

    def _check(self, answer_request: AnswerRequest) -> None:
        if not 1 <= answer_request.n <= self._settings.max_choices:
            text = f"n={answer_request.n}: it must be from 1 to {self._settings.max_choices}"
            raise ApiError(ErrorKind.INVALID, "bad_n", text, param="n")
        if answer_request.reading.prefill in {Reading.SPARSE, Reading.AUTO} and not self._supervisor.has_scorer:
            text = (
                "this server reads prompts whole: it was started without a small model that chooses parts of them"
                " (--prefill-scorer). Ask for prefill full, or leave it out"
            )
            raise ApiError(ErrorKind.INVALID, "no_prefill_scorer", text, param="luce.prefill")
        is_scored = answer_request.n_prompt_logprobs is not None
        if is_scored and answer_request.reading.prefill in {Reading.SPARSE, Reading.AUTO}:
            text = "the log-probabilities of a prompt need all of it: they do not go with luce.prefill sparse or auto"
            raise ApiError(ErrorKind.INVALID, "bad_logprobs", text, param="luce.prefill")

    def _room_for(self, answer_request: AnswerRequest, rendered: Rendered) -> int:
        """How many tokens the answer may have. How much of the context parts of a prompt take, only the engine knows:
        it ends the answer where the context is full."""
        n_ctx, n_prompt = answer_request.window(self._supervisor.n_ctx), len(rendered.ids)
        if n_ctx is None:
            return 2**31 - 1 if answer_request.max_tokens is None else answer_request.max_tokens
        room = n_ctx if rendered.in_parts else n_ctx - n_prompt
        if room < 0 or (room == 0 and answer_request.max_tokens != 0):
            raise api_error(PromptTooLongError(n_prompt, n_ctx))
        return room if answer_request.max_tokens is None else min(answer_request.max_tokens, room)

    def _may_not_fit(self, rendered: Rendered) -> bool:
        n_ctx = self._supervisor.n_ctx
        return rendered.in_parts and n_ctx is not None and len(rendered.ids) >= n_ctx

    async def _submit(self, request: GenerateRequest) -> Submission:
        try:
            return await self._supervisor.submit(request)
        except RequestError as error:
            raise api_error(error) from error

    async def _await_consent(self, submission: Submission) -> None:
        """Only the engine can judge a grammar, whether pins fit its pool, whether parts of a prompt fit its context, or
        if it tells a prompt's logprobs: its refusal is to be a status, not an event in a stream that has begun.
        What it takes long for, it does not refuse any more, or it is busy."""
        try:
            async with asyncio.timeout(self._settings.keep_alive_s):
                await submission.begun()
        except TimeoutError:
            pass
        except RequestError as error:
            raise api_error(error) from error

    def _note_answers(self, rendered: Rendered, choices: Sequence[ChoiceDecoder]) -> None:
        if rendered.place is None:
            return
        for choice in choices:
            message = choice.message(continues=rendered.continues)
            answer = LoggedAnswer(
                rendered.turn, tuple(choice.tokens), choice.stop, rendered.place, message, rendered.continues
            )
            self._keep_answer(answer)
            if self._log is not None and answer.tokens:
                self._log.append(answer)

    def _keep_answer(self, answer: LoggedAnswer) -> None:
        given = None
        if answer.place is not None and answer.message is not None:
            given = self._spellings.keep(answer.place, answer.message, continues=answer.continues)
        if answer.turn is not None:
            self._known.keep(answer.turn, answer.tokens, answer.stop, given)

    def _scores(self, answer_request: AnswerRequest, rendered: Rendered) -> PromptScores | None:
        n_likeliest = answer_request.n_prompt_logprobs
        return None if n_likeliest is None else PromptScores(self._text, rendered.ids, n_likeliest)

    def _choice(self, answer_request: AnswerRequest, rendered: Rendered, index: int) -> ChoiceDecoder:
        chat = rendered.chat
        by_grammar = rendered.constraint.grammar is not None and not rendered.constraint.grammar_lazy
        return ChoiceDecoder(
            index,
            PlainReading(self._text) if chat is None else ChatReading(chat, by_grammar=by_grammar),
            stops=answer_request.stops,
            own_stops=() if chat is None else chat.additional_stops,
            # Grammars do not see to that in every format.
            max_calls=rendered.max_calls,
            ends=self._text.info.eog | frozenset(answer_request.stop_tokens),
            logprobs=None
            if answer_request.n_logprobs is None
            else LogprobReader(self._text, answer_request.n_logprobs),
            keeps_all_logprobs=chat is None,
            guard=LoopGuard() if self._settings.guards_loops else None,
            hold=call_hold(answer_request.prompt) if self._settings.repairs_calls else None,
        )


class ChatAnswering:
    """Implements app_context.Answering."""

    def __init__(
        self,
        submissions: Sequence[Submission],
        choices: Sequence[ChoiceDecoder],
        metrics: Metrics,
        asked_s: float,
        max_predict_s: float | None,
        rendered: Rendered,
        scores: PromptScores | None = None,
    ) -> None:
        pairs = zip(submissions, choices, strict=True)
        self._streams = [_Stream(submission, choice, max_predict_s) for submission, choice in pairs]
        self._metrics = metrics
        self._asked_s = asked_s
        self._rendered = rendered
        self._scores = scores
        self._told: PromptLogprobs | None = None
        self._early: list[AnswerEvent] = []  # they wait for the prompt's log-probabilities
        self._record = current_record()  # tokens come in another context
        self._last_s: float | None = None
        self._progress = Progress(0, submissions[0].n_prompt)  # as far as has been told
        self._waits: dict[asyncio.Task[Sequence[Item]], _Stream] = {}  # of several choices, for what comes next
        self._failure: Exception | None = None  # of what was to go to the fast path

    @property
    def n_prompt(self) -> int:
        return self._streams[0].submission.n_prompt

    @property
    def n_generated(self) -> int:
        return sum(len(stream.choice.tokens) for stream in self._streams)

    async def events(self, fast_path: FastPath | None = None) -> AsyncGenerator[AnswerEvent, None]:
        try:
            for event in self._in_order([]):
                yield event
            if len(self._streams) == 1:
                stream = self._streams[0]
                show = None if fast_path is None else partial(self._show_on_fast_path, stream, fast_path)
                while not stream.is_finished:
                    items = await stream.submission.take(show)
                    if self._failure is not None:
                        raise self._failure
                    for event in self._read(stream, items):
                        yield event
            else:
                self._waits = {_take(stream): stream for stream in self._streams}
                while self._waits:
                    done, _ = await asyncio.wait(self._waits, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        stream = self._waits.pop(task)
                        for event in self._read(stream, task.result()):
                            yield event
                        if not stream.is_finished:
                            self._waits[_take(stream)] = stream
        except RequestError as error:
            raise api_error(error) from error
        yield AnswerFinished(self._usage())

    def close(self) -> None:
        """Nobody reads it any more."""
        for task in self._waits:
            task.cancel()

    def _show_on_fast_path(self, stream: _Stream, fast_path: FastPath, tokens: Sequence[int]) -> bool:
        """Whether the fast path has them."""
        if not fast_path.is_clear():
            return False
        try:
            fast_path.show(self._read_tokens(stream, tokens))
        except Exception as error:  # noqa: BLE001  raised where the answer is read: here it would be the engine's
            self._failure = error
            return False
        return True

    def _read(self, stream: _Stream, items: Sequence[Item]) -> Sequence[AnswerEvent]:
        events: list[AnswerEvent] = []
        tokens: list[int | TokenEvent] = []
        for item in items:
            if isinstance(item, int | TokenEvent):
                tokens.append(item)
            elif isinstance(item, PrefillEvent):
                if stream is self._streams[0]:
                    self._progress = Progress(item.n_done, item.n_total)
                    events.append(self._progress)
            elif isinstance(item, PromptTokenEvent):
                assert self._scores is not None
                self._scores.add(item)
            else:
                stream.finished = item
        if tokens:
            events += self._read_tokens(stream, tokens)
        if stream.finished is not None:
            events += stream.finish()
        return self._in_order(events)

    def _in_order(self, events: Sequence[AnswerEvent]) -> Sequence[AnswerEvent]:
        """What is told of the prompt comes before what is told of any choice: of several, one reads the prompt."""
        if self._scores is None:
            return events
        early: list[AnswerEvent] = []
        if self._told is None:
            self._early += events
            if not self._scores.is_whole:
                return ()
            self._told = self._scores.told()
            events, self._early = self._early, []
            early = [self._told]
        told = self._told
        return early + [
            replace(event, prompt_logprobs=told) if isinstance(event, ChoiceFinished) else event for event in events
        ]

    def _read_tokens(self, stream: _Stream, tokens: Sequence[int | TokenEvent]) -> Sequence[AnswerEvent]:
        is_first = self._last_s is None
        self._note_tokens(len(tokens))
        events = stream.feed(tokens)
        n_total = self._progress.n_total  # of the prompt, or of the parts of it that are read
        if is_first and self._progress.n_done != n_total:
            return [Progress(n_total, n_total), *events]  # the engine tells of long ones, now and then
        return events

    def _note_tokens(self, n_tokens: int) -> None:
        now_s = time.monotonic()
        if self._last_s is None:
            self._metrics.first_token(now_s - self._asked_s)
            if self._record is not None:
                self._record.first_token_s = now_s - self._asked_s
        else:
            self._metrics.token_gaps((now_s - self._last_s) / n_tokens, n_tokens)
        self._last_s = now_s

    def _usage(self) -> Usage:
        usages = [stream.usage() for stream in self._streams]
        usage = replace(
            usages[0],
            edits=self._rendered.edits,
            schema_notes=self._rendered.schema_notes,
            n_restored=self._rendered.n_restored,
            is_live_summary=self._rendered.is_live_summary,
            n_generated=sum(usage.n_generated for usage in usages),
            n_reasoning=sum(usage.n_reasoning for usage in usages),
            decode_s=max(usage.decode_s for usage in usages),
            n_resumes=sum(usage.n_resumes for usage in usages),
            speculation=added(usage.speculation for usage in usages),
            experts=added(usage.experts for usage in usages),
            n_loops=sum(usage.n_loops for usage in usages),
        )
        if self._record is not None:
            self._record.usage = usage
        self._metrics.queued(usage.queue_s)
        self._metrics.prompt(usage.n_prompt, usage.n_cached, tier=usage.cache_tier, miss=usage.cache_miss)
        self._metrics.generated(usage.n_generated)
        self._metrics.looped(usage.n_loops)
        self._metrics.calls_repaired(sum(stream.choice.n_repaired for stream in self._streams))
        for stream in self._streams:
            self._metrics.accounted(is_mended=stream.choice.n_mended > 0, n_lost=stream.choice.n_unaccounted)
        if usage.speculation is not None:
            self._metrics.speculated(usage.speculation)
        if usage.experts is not None:
            self._metrics.experts_read(usage.experts)
        return usage


class _Stream:
    """A submission and the choice that its tokens are."""

    def __init__(self, submission: Submission, choice: ChoiceDecoder, max_predict_s: float | None = None) -> None:
        self.submission = submission
        self.choice = choice
        self.finished: FinishedEvent | None = None
        self._is_told = False
        self._max_predict_s = max_predict_s
        self._first_s: float | None = None
        self._has_line = False
        self._is_late = False

    @property
    def is_finished(self) -> bool:
        return self.finished is not None

    def feed(self, tokens: Sequence[int | TokenEvent]) -> Sequence[AnswerEvent]:
        pieces = self.choice.feed(tokens)
        self._is_late = self._is_late or (self._max_predict_s is not None and self._is_over(pieces))
        if (self.choice.has_stopped or self.choice.has_looped or self._is_late) and not self._is_told:
            self._is_told = True
            self.submission.end()
        return pieces

    def _is_over(self, pieces: Sequence[Piece]) -> bool:
        """Whether its time is, and a line has ended by then, as llama-server has it."""
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
        self._has_line = self._has_line or any(
            "\n" in piece.text for piece in pieces if isinstance(piece, ContentPiece)
        )
        assert self._max_predict_s is not None
        return self._has_line and now_s - self._first_s > self._max_predict_s

    def finish(self) -> Sequence[AnswerEvent]:
        assert self.finished is not None
        is_cut_off = self.finished.reason is StopReason.LIMIT or self._is_late
        pieces, finished = self.choice.finish(truncated=is_cut_off)
        return [*pieces, replace(finished, usage=self.usage())]

    def usage(self) -> Usage:
        """REQUIRES: it is finished."""
        end = self.finished
        assert end is not None
        return Usage(
            n_prompt=end.n_prompt,
            n_cached=end.n_reused,
            cache_tier=end.tier,
            cache_miss=end.miss,
            n_generated=len(self.choice.tokens),
            n_reasoning=self.choice.n_reasoning,
            queue_s=end.queue_s,
            prefill_s=end.prefill_s,
            decode_s=end.decode_s,
            n_resumes=end.n_resumes,
            n_read=end.n_read,
            speculation=end.speculation,
            experts=end.experts,
            n_loops=int(self.choice.has_looped),
        )


def call_hold(prompt: ChatPrompt | TextPrompt) -> CallHold | None:
    """Where calls may come, and nothing but the model keeps them in their format."""
    if isinstance(prompt, TextPrompt) or not prompt.tools or prompt.tool_choice != "auto":
        return None
    if prompt.json_schema is not None or prompt.grammar is not None:
        return None
    # A model that calls beside its format goes on with calls that nobody wants, unless several are asked for.
    return CallHold(prompt.tools, prompt.max_tool_calls if prompt.parallel_tool_calls else 1)


def _take(stream: _Stream) -> asyncio.Task[Sequence[Item]]:
    return asyncio.ensure_future(stream.submission.take())


def _answer_log(config: SupervisorConfig, text: TextModel, kept_bytes: int) -> AnswerLog | None:
    """Beside the pages that the answers are good for."""
    folders = (config.daemon_config(engine).disk_cache for engine in config.engine_configs())
    folder = next((folder for folder in folders if folder is not None), None)
    if folder is None or kept_bytes == 0:
        return None
    return AnswerLog(Path(folder), text, min(kept_bytes, MAX_LOG_BYTES))
