"""ReplicatedModel: the replicas of a model as the HTTP side sees them: as one backend.

Implements ModelBackend. What only makes sense of one machine (files of texts, lanes by their number) is refused by
name. It must not know how replicas are reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from luce.protocol import ErrorCode, ReadingArgs
from luce.ray.dispatcher import Dispatcher
from luce.ray.replica_links import ReplicaLink
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.embedding.model import EmbeddingModel
from luce.supervisor.engine.generation import Compressed
from luce.supervisor.engine.image_file import ImageFile
from luce.supervisor.requests import EngineFailedError, GenerateRequest, RequestRefusedError
from luce.supervisor.scheduling.reading_policy import ReadingPolicy
from luce.supervisor.scheduling.remembered_texts import TextListing
from luce.supervisor.scheduling.text_files import SavedText
from luce.supervisor.service import Submission
from luce.supervisor.supervisor_status import SupervisorStatus
from luce.supervisor.text import TextError, TextModel
from luce.supervisor.text_side import TextSide


class ReplicatedModel:
    def __init__(self, config: SupervisorConfig, dispatcher: Dispatcher) -> None:
        self.config = config
        self.model = config.model
        self._dispatcher = dispatcher
        self._reading = ReadingPolicy.of(config.daemon_config(config.engine_configs()[0]))
        self._text = TextSide(self.model)
        self._n_ctx: int | None = None

    @property
    def n_ctx(self) -> int | None:
        known = [replica.n_ctx for replica in self._replicas if replica.n_ctx is not None]
        self._n_ctx = max(known, default=self._n_ctx)  # the last one's, while there is none
        return self._n_ctx

    @property
    def has_scorer(self) -> bool:
        return self.config.daemon_config(self.config.engine_configs()[0]).prefill_scorer is not None

    @property
    def has_images(self) -> bool:
        return False

    async def text(self) -> TextModel:
        return await self._text.get()

    async def submit(self, request: GenerateRequest) -> Submission:
        prompt = request.prompt_ids
        if prompt is None:
            assert request.prompt is not None
            try:
                prompt = (await self.text()).tokenize(request.prompt, add_special=True, parse_special=True)
            except TextError as error:
                raise RequestRefusedError(ErrorCode.BAD_ARGS, f"the prompt could not be tokenised: {error}") from error
        return Submission(self._dispatcher, await self._dispatcher.submit(request, prompt))

    async def compress(
        self,
        tokens: Sequence[int],
        share: float,
        *,
        keep: Sequence[tuple[int, int]] = (),
        blocks: Sequence[tuple[int, int]] = (),
    ) -> Compressed:
        asked = {"tokens": tuple(tokens), "share": share, "keep": tuple(keep), "blocks": tuple(blocks)}
        with suppress(EngineFailedError):  # once another one may do it
            return await self._compress(asked)
        return await self._compress(asked)

    async def _compress(self, asked: dict[str, object]) -> Compressed:
        chosen: Compressed = await self._dispatcher.ask(self._least_loaded(), "compress", **asked)
        return chosen

    def parts_from(self, reading: ReadingArgs) -> int | None:
        return self._reading.parts_from(reading, self.n_ctx)

    def status(self) -> SupervisorStatus:
        """Of all engines together, each under its replica's name."""
        told = [(replica.key, replica.status) for replica in self._replicas if replica.status is not None]
        return SupervisorStatus(
            engines=tuple(
                replace(engine, name=f"{key} {engine.name}") for key, status in told for engine in status.engines
            ),
            n_waiting=sum(status.n_waiting for _, status in told),
            n_requests=sum(status.n_requests for _, status in told),
            n_finished=sum(status.n_finished for _, status in told),
            n_failed=sum(status.n_failed for _, status in told),
            n_cancelled=sum(status.n_cancelled for _, status in told),
            n_resumes=sum(status.n_resumes for _, status in told) + self._dispatcher.n_failovers,
            n_tokens=sum(status.n_tokens for _, status in told),
        )

    async def engine_status(self, timeout_s: float = 1.0) -> list[dict[str, str]]:
        told = [replica for replica in self._replicas if replica.status is not None]
        counts = [len(replica.status.engines) for replica in told if replica.status is not None]
        asked = await asyncio.gather(*(self._figures(replica, timeout_s) for replica in told))
        figures = [[*said, *({} for _ in range(n))][:n] for said, n in zip(asked, counts, strict=True)]
        return [one for of_replica in figures for one in of_replica]

    async def _figures(self, replica: ReplicaLink, timeout_s: float) -> list[dict[str, str]]:
        try:
            async with asyncio.timeout(timeout_s + 0.5):
                said: list[dict[str, str]] = await self._dispatcher.ask(replica, "engine_status", timeout_s=timeout_s)
                return said
        except (TimeoutError, EngineFailedError):
            return []

    def close(self) -> None:
        self._text.close()

    @property
    def _replicas(self) -> list[ReplicaLink]:
        return list(self._dispatcher.links)

    def _least_loaded(self) -> ReplicaLink:
        """Raises EngineFailedError without one."""
        ready = [replica for replica in self._replicas if not replica.is_draining and replica.status is not None]
        if not ready:
            raise EngineFailedError("there is no replica now")
        return min(ready, key=lambda replica: replica.status.n_waiting if replica.status is not None else 0)

    # What is one machine's

    async def image_ids(self, file: ImageFile, salt: int | None = None) -> tuple[int, ...]:  # noqa: ARG002
        _refuse("images")

    def embedding_model(self) -> EmbeddingModel:
        _refuse("an embedding model")

    def reranker(self) -> EmbeddingModel:
        _refuse("a reranker")

    async def texts(self) -> list[TextListing | None]:
        return [None] * len(self.status().engines)

    async def hold_text(self, engine: int, page: str, *, on: bool) -> None:  # noqa: ARG002
        _refuse("texts that are held")

    async def forget_text(self, engine: int, page: str) -> None:  # noqa: ARG002
        _refuse("texts that are forgotten")

    async def park(self) -> None:
        _refuse("parked engines")

    async def unpark(self) -> None:
        _refuse("parked engines")

    async def save(self, tokens: Sequence[int], path: Path) -> SavedText:  # noqa: ARG002
        _refuse("files of texts")

    async def load(self, path: Path) -> int:  # noqa: ARG002
        _refuse("files of texts")

    def lane_text(self, lane: int) -> Sequence[int]:  # noqa: ARG002
        _refuse("files of texts")

    def forget_lane(self, lane: int) -> int:  # noqa: ARG002
        _refuse("lanes that are emptied")


def _refuse(what: str) -> NoReturn:
    text = f"a model on several replicas has no {what}: ask a server of its own (luce serve)"
    raise RequestRefusedError(ErrorCode.UNSUPPORTED, text)
