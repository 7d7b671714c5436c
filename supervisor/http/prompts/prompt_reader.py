"""PromptReader: a request's prompt -> ids, with what may be done to a conversation on the way: a summary answered from
the conversation in memory, messages cleared or left out. Knows the engine's context, and nothing of answers.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from luce.supervisor.http.errors import ApiError, ErrorKind, api_error
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt, TextPrompt
from luce.supervisor.http.prompts.compaction import LiveConversations
from luce.supervisor.http.prompts.context_edits import AppliedEdit, cleared, is_triggered
from luce.supervisor.http.prompts.message_images import without_images
from luce.supervisor.http.prompts.prompt_images import PromptImages
from luce.supervisor.http.prompts.rendering import Rendered, Renderer
from luce.supervisor.http.prompts.truncation import MAX_STEPS, least_steps, without_oldest
from luce.supervisor.requests import PromptTooLongError
from luce.supervisor.text import TextError

if TYPE_CHECKING:
    from luce.supervisor.http.settings import ServeSettings
    from luce.supervisor.model_backend import ModelBackend


class Isolation(Protocol):
    def owner(self, client: str) -> str:
        """In whose name what is made of a client's prompts is kept."""

    def salt_value(self, client: str) -> int:
        """The same for what the engine keeps."""


class PromptReader:
    """For one supervisor and its model."""

    def __init__(
        self,
        supervisor: ModelBackend,
        settings: ServeSettings,
        renderer: Renderer,
        images: PromptImages,
        isolation: Isolation | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._renderer = renderer
        self._images = images
        self._isolation = isolation
        self._live = LiveConversations() if settings.compaction == "live" else None

    async def readable(self, asked: AnswerRequest) -> AnswerRequest:
        """As the model can read it. Raises ApiError."""
        return await self._images.readable(asked, self._owner_and_salt(asked)[1])

    async def read(self, answer_request: AnswerRequest) -> Rendered:
        """REQUIRES: the model can read it."""
        if isinstance(answer_request.prompt, TextPrompt):
            return await self._render_whole(answer_request)
        self._check_count(answer_request, answer_request.prompt)
        if (summary := await self._summarise_live(answer_request, answer_request.prompt)) is not None:
            return summary
        rendered = await self._render_whole(answer_request)
        if answer_request.prompt.edits:
            answer_request, rendered = await self._edit(answer_request, answer_request.prompt, rendered)
        return await self._truncate(answer_request, rendered)

    async def prompt_text(self, asked: AnswerRequest) -> str:
        """Of a conversation as it was sent, with nothing cleared or summarised. Raises ApiError, or TextError."""
        prompt = asked.prompt
        assert isinstance(prompt, ChatPrompt)
        if not self._supervisor.has_images:
            prompt = replace(prompt, messages=without_images(prompt.messages))
        owner, _ = self._owner_and_salt(asked)
        return await asyncio.to_thread(self._renderer.prompt_text, prompt, owner, asked.client)

    def _check_count(self, asked: AnswerRequest, prompt: ChatPrompt) -> None:
        """Each message takes a token at least. To render hundreds of thousands of them, only to find that out, would
        keep the server busy for minutes."""
        n_ctx, n_messages = asked.window(self._supervisor.n_ctx), len(prompt.messages)
        if n_ctx is not None and n_messages > n_ctx and self._supervisor.parts_from(asked.reading) is None:
            raise api_error(PromptTooLongError(n_messages, n_ctx))

    async def _summarise_live(self, asked: AnswerRequest, prompt: ChatPrompt) -> Rendered | None:
        """The conversation in memory that the request summarises, with what it asks for appended; None: there is none,
        nobody wants that, or it leaves no room for an answer."""
        if self._live is None:
            return None
        live = await asyncio.to_thread(self._live.find, asked.client, prompt)
        if live is None:
            return None
        rendered = await self._render_whole(replace(asked, prompt=live))
        if self._leaves_room(asked, rendered):
            return replace(rendered, is_live_summary=True)
        rendered.close()
        return None

    async def note(self, asked: AnswerRequest, rendered: Rendered) -> None:
        if self._live is not None and isinstance(asked.prompt, ChatPrompt) and not rendered.is_live_summary:
            await asyncio.to_thread(self._live.note, asked.client, asked.prompt)

    def _leaves_room(self, asked: AnswerRequest, rendered: Rendered) -> bool:
        """Of one that is read in parts, the engine sees to that."""
        n_ctx = asked.window(self._supervisor.n_ctx)
        return (
            n_ctx is None
            or rendered.in_parts
            or len(rendered.ids) <= n_ctx - min(asked.max_tokens or n_ctx, n_ctx // 8)
        )

    async def _edit(
        self, asked: AnswerRequest, prompt: ChatPrompt, rendered: Rendered
    ) -> tuple[AnswerRequest, Rendered]:
        """With what the client wants cleared of a long prompt."""
        for edit in prompt.edits:
            n_before = len(rendered.ids)
            messages, n_cleared = cleared(edit, prompt.messages)
            if n_cleared == 0 or not is_triggered(edit, prompt.messages, n_before):
                continue
            shorter = replace(prompt, messages=messages)
            edited = await self._render_whole(replace(asked, prompt=shorter))
            n_saved = n_before - len(edited.ids)
            if n_saved < edit.at_least_tokens:
                edited.close()
                continue
            rendered.close()
            applied = (*rendered.edits, AppliedEdit(edit, n_cleared, n_saved))
            prompt, rendered = shorter, replace(edited, edits=applied)
        return replace(asked, prompt=prompt), rendered

    async def _truncate(self, asked: AnswerRequest, rendered: Rendered) -> Rendered:
        """Without what came first, if it does not fit and the client wants it so."""
        prompt, n_ctx = asked.prompt, asked.window(self._supervisor.n_ctx)
        if isinstance(prompt, TextPrompt) or not prompt.drops_oldest or n_ctx is None:
            return rendered
        for n_steps in range(least_steps(len(rendered.ids), n_ctx), MAX_STEPS):
            if self._leaves_room(asked, rendered):
                break
            messages = without_oldest(prompt.messages, n_steps, n_ctx)
            if messages is None:
                break
            rendered.close()
            rendered = await self._render_whole(replace(asked, prompt=replace(prompt, messages=messages)))
        return rendered

    def _owner_and_salt(self, asked: AnswerRequest) -> tuple[str, int | None]:
        if self._isolation is None:
            return "", None
        return self._isolation.owner(asked.client), self._isolation.salt_value(asked.client)

    async def _render_whole(self, answer_request: AnswerRequest) -> Rendered:
        owner, salt = self._owner_and_salt(answer_request)
        images = await self._images.ids_of(answer_request.prompt, salt)
        try:
            rendered = await asyncio.to_thread(
                self._renderer.render,
                answer_request.prompt,
                owner,
                answer_request.client,
                images,
                self._supervisor.parts_from(answer_request.reading),
            )
        except TextError as error:
            raise api_error(error) from error
        if not rendered.ids:
            raise ApiError(ErrorKind.INVALID, "empty_prompt", "the prompt is empty: it needs at least one token")
        return rendered
