"""EmbeddingModel: a model that gives vectors, or a reranker: its text side, and the queue in front of its engine.

What it takes are texts or token ids. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
import math
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from luce.supervisor.config import SupervisorConfig
from luce.supervisor.embedding.vector_queue import VectorQueue
from luce.supervisor.engine.monitor import EngineMonitor
from luce.supervisor.engine.watchdog import EngineState

if TYPE_CHECKING:
    from luce.supervisor.text import TextModel

Input = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class TextVector:
    values: array[float]  # single precision, of unit length
    n_tokens: int  # of its text


@dataclass(frozen=True, slots=True)
class Relevance:
    logit: float
    probability: float
    n_tokens: int  # of the query and the document together


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingStatus:
    name: str  # embedding, rerank
    model: str
    created: int  # when its file was written, in seconds since 1970
    state: EngineState
    n_deaths: int
    n_waiting: int  # requests of which nothing is computed yet
    n_texts: int
    n_tokens: int
    n_retries: int
    n_values: int | None  # of a vector; None: its engine was never ready
    n_ctx: int | None  # tokens of the longest text
    last_failure: str | None

    @property
    def is_ready(self) -> bool:
        return self.state is EngineState.READY


class EmbeddingModel:
    """One engine, which `monitor` keeps running."""

    def __init__(self, name: str, config: SupervisorConfig, monitor: EngineMonitor) -> None:
        self.name = name
        self.path: Path = config.model
        self.monitor = monitor
        self.queue = VectorQueue(config)
        self.created = int(self.path.stat().st_mtime) if self.path.is_file() else 0
        self._text: TextModel | None = None
        self._text_lock = asyncio.Lock()

    @property
    def n_values(self) -> int:
        """Of a vector."""
        return 0 if self.queue.info is None else self.queue.info.n_embedding or 0

    async def text(self) -> TextModel:
        """The vocabulary, opened on first use."""
        async with self._text_lock:
            if self._text is None:
                from luce.supervisor.text import TextModel

                self._text = await asyncio.to_thread(TextModel, self.path)
            return self._text

    async def embed(self, inputs: Sequence[Input]) -> list[TextVector]:
        """The vector of each input, in their order. Raises RequestError, TextError."""
        text = await self.text()
        ids = await asyncio.to_thread(_ids_of, text, inputs)
        return [TextVector(_floats(vector.values), vector.n_tokens) for vector in await self.queue.embed(ids)]

    async def rerank(self, query: str, documents: Sequence[str]) -> list[Relevance]:
        """How well each document fits the query, in their order. Raises RequestError, TextError."""
        text = await self.text()
        pairs = await asyncio.to_thread(_pairs, text, query, documents)
        is_logit = self.queue.info is not None and self.queue.info.gives_logits
        answers = await self.queue.embed(pairs)
        return [_relevance(_floats(answer.values), answer.n_tokens, is_logit=is_logit) for answer in answers]

    def status(self) -> EmbeddingStatus:
        info, totals, monitor = self.queue.info, self.queue.totals, self.monitor
        return EmbeddingStatus(
            name=self.name,
            model=self.path.stem,
            created=self.created,
            state=monitor.state,
            n_deaths=monitor.n_deaths,
            n_waiting=self.queue.n_waiting,
            n_texts=totals.n_texts,
            n_tokens=totals.n_tokens,
            n_retries=totals.n_retries,
            n_values=None if info is None else info.n_embedding,
            n_ctx=None if info is None else info.ctx,
            last_failure=None if monitor.last_failure is None else str(monitor.last_failure),
        )

    def close(self) -> None:
        self.queue.close()
        if self._text is not None:
            self._text.close()


def _ids_of(text: TextModel, inputs: Sequence[Input]) -> list[Sequence[int]]:
    """As llama-server: spellings of special tokens are these tokens, as in the models' own tokenizers."""
    return [
        packed(text.tokenize(item, add_special=True, parse_special=True)) if isinstance(item, str) else item
        for item in inputs
    ]


def packed(ids: Sequence[int]) -> array[int]:
    """In a tenth of the memory that a list takes: there may be millions."""
    return array("i", ids)


def _pairs(text: TextModel, query: str, documents: Sequence[str]) -> list[Sequence[int]]:
    """A query and each document as the reranker reads them: by its template, if it has one, else with the tokens that
    its vocabulary puts around and between two texts."""
    info = text.info
    template = info.rerank_template
    if template is not None:
        before, _, after = template.partition("{document}")
        head, tail = before.replace("{query}", query), after.replace("{query}", query)
        return [packed(text.tokenize(head + document + tail, parse_special=True)) for document in documents]
    is_bert = info.kind == "wpm"  # [CLS] query [SEP] document [SEP], whatever the file says of its tokens
    end = info.eos if info.eos is not None and not is_bert else info.sep
    first = [info.bos] if (info.add_bos or is_bert) and info.bos is not None else []
    last = [end] if (info.add_eos or is_bert) and end is not None else []
    between = [*last, *([info.sep] if info.add_sep and not is_bert and info.sep is not None else [])]
    head_ids = [*first, *text.tokenize(query), *between]
    return [packed([*head_ids, *text.tokenize(document), *last]) for document in documents]


def _floats(values: bytes) -> array[float]:
    return array("f", struct.unpack(f"<{len(values) // 4}f", values))


def _relevance(values: Sequence[float], n_tokens: int, *, is_logit: bool) -> Relevance:
    """The first value is the one that says yes."""
    score = values[0]
    if is_logit:
        return Relevance(score, _sigmoid(score), n_tokens)
    odds = max(score, 1e-30) / max(1 - score, 1e-30)
    return Relevance(math.log(odds), score, n_tokens)


def _sigmoid(logit: float) -> float:
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    small = math.exp(logit)
    return small / (1 + small)
