"""ModelBackend: what the HTTP side asks of whoever computes a model's answers: a Supervisor in its own process, or
something that hands requests on to several.

Knows values only; it must not know who answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from luce.protocol import ReadingArgs
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.embedding.model import EmbeddingModel
from luce.supervisor.engine.generation import Compressed
from luce.supervisor.engine.image_file import ImageFile
from luce.supervisor.requests import GenerateRequest
from luce.supervisor.scheduling.remembered_texts import TextListing
from luce.supervisor.scheduling.text_files import SavedText
from luce.supervisor.service import Submission
from luce.supervisor.supervisor_status import SupervisorStatus

if TYPE_CHECKING:
    from luce.supervisor.text import TextModel


class ModelBackend(Protocol):
    """Each raises as `Supervisor` says, and RequestRefusedError (`unsupported`) for what cannot be asked here."""

    @property
    def config(self) -> SupervisorConfig: ...

    @property
    def model(self) -> Path: ...

    @property
    def n_ctx(self) -> int | None: ...

    @property
    def has_scorer(self) -> bool: ...

    @property
    def has_images(self) -> bool: ...

    async def text(self) -> TextModel: ...

    async def submit(self, request: GenerateRequest) -> Submission: ...

    async def compress(
        self,
        tokens: Sequence[int],
        share: float,
        *,
        keep: Sequence[tuple[int, int]] = (),
        blocks: Sequence[tuple[int, int]] = (),
    ) -> Compressed: ...

    async def image_ids(self, file: ImageFile, salt: int | None = None) -> tuple[int, ...]: ...

    def parts_from(self, reading: ReadingArgs) -> int | None: ...

    def embedding_model(self) -> EmbeddingModel: ...

    def reranker(self) -> EmbeddingModel: ...

    def status(self) -> SupervisorStatus: ...

    async def engine_status(self, timeout_s: float = 1.0) -> list[dict[str, str]]: ...

    async def texts(self) -> list[TextListing | None]: ...

    async def hold_text(self, engine: int, page: str, *, on: bool) -> None: ...

    async def forget_text(self, engine: int, page: str) -> None: ...

    async def park(self) -> None: ...

    async def unpark(self) -> None: ...

    async def save(self, tokens: Sequence[int], path: Path) -> SavedText: ...

    async def load(self, path: Path) -> int: ...

    def lane_text(self, lane: int) -> Sequence[int]: ...

    def forget_lane(self, lane: int) -> int: ...
