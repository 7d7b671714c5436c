"""KeyLimits: an Answerer in front of the one that answers, which holds each API key to its lanes, context and tokens.

Tokens count as they were computed: those of the prompt that no memory held, and those of the answer. It must not know
what is answered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from luce.supervisor.http.answering.answer_events import AnswerEvent, AnswerFinished
from luce.supervisor.http.app_context import Answerer, Answering, FastPath
from luce.supervisor.http.keys.key_account import KeyAccount
from luce.supervisor.http.keys.key_ring import KeyRing
from luce.supervisor.http.prompts.answer_request import AnswerRequest

if TYPE_CHECKING:
    from luce.supervisor.http.metrics import Metrics


class KeyLimits:
    def __init__(self, answerer: Answerer, keys: KeyRing, metrics: Metrics) -> None:
        self._answerer = answerer
        self._keys = keys
        self._metrics = metrics

    @asynccontextmanager
    async def open(self, answer_request: AnswerRequest) -> AsyncIterator[Answering]:
        account = self._keys.account(answer_request.client)
        if account is None:
            async with self._answerer.open(answer_request) as answering:
                yield answering
            return
        with account.lanes(answer_request.n):
            async with self._answerer.open(_bounded(answer_request, account)) as answering:
                counted = _Counted(answering, account)
                try:
                    yield counted
                finally:
                    n_read = counted.n_read
                    account.use_tokens(n_read + answering.n_generated)
                    self._metrics.key_tokens(account.key.name, n_read, answering.n_generated)

    async def count_tokens(self, answer_request: AnswerRequest) -> int:
        account = self._keys.account(answer_request.client)
        if account is not None:
            answer_request = _bounded(answer_request, account)
        return await self._answerer.count_tokens(answer_request)

    async def prompt_text(self, answer_request: AnswerRequest) -> str:
        return await self._answerer.prompt_text(answer_request)


def _bounded(answer_request: AnswerRequest, account: KeyAccount) -> AnswerRequest:
    return replace(answer_request, max_context=account.key.max_context)


class _Counted:
    def __init__(self, answering: Answering, account: KeyAccount) -> None:
        self._answering = answering
        self._account = account
        self.n_read = answering.n_prompt
        """Of the prompt; until the answer has ended, nobody says what memory held."""

    @property
    def n_prompt(self) -> int:
        return self._answering.n_prompt

    @property
    def n_generated(self) -> int:
        return self._answering.n_generated

    async def events(self, fast_path: FastPath | None = None) -> AsyncIterator[AnswerEvent]:
        async for event in self._answering.events(fast_path):
            if isinstance(event, AnswerFinished):
                self.n_read = max(event.usage.n_seen - event.usage.n_cached, 0)
                yield AnswerFinished(replace(event.usage, key=self._account.key.name))
            else:
                yield event
