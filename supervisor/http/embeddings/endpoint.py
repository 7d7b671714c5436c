"""POST /v1/embeddings: OpenAI's vectors of texts; and /embedding and /embeddings, which are the same in llama-server's
words.

Must not know how vectors are made.
"""

from __future__ import annotations

import asyncio
import base64
import math
import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from luce.supervisor.embedding.model import EmbeddingModel, TextVector
from luce.supervisor.http.admin.openapi import COUNT, NUMBER, TEXT, Operation, listed, record
from luce.supervisor.http.app_context import context_of
from luce.supervisor.http.embeddings.inputs import MAX_INPUTS, are_several, read_inputs
from luce.supervisor.http.embeddings.serving import compute, required
from luce.supervisor.http.keys.key_ring import charge
from luce.supervisor.http.openai_shared.fields import refusal, whole
from luce.supervisor.http.openai_shared.shapes import text_json
from luce.supervisor.http.sampling_fields import Whole
from luce.supervisor.http.transport.body import read_body

_LONG = 1 << 16  # values; writing more of them takes longer than a thread takes to begin

_IDS = listed(COUNT, minItems=1)
_INPUT = {"anyOf": [TEXT, listed(TEXT, minItems=1, maxItems=MAX_INPUTS), _IDS, listed(_IDS, minItems=1)]}
_USAGE = record({"prompt_tokens": NUMBER, "total_tokens": NUMBER})
_VECTOR = record(
    {
        "object": {"const": "embedding"},
        "index": NUMBER,
        "embedding": {"anyOf": [listed({"type": "number"}), TEXT]},
    }
)
_ANSWER = record({"object": {"const": "list"}, "data": listed(_VECTOR), "model": TEXT, "usage": _USAGE})


class EmbeddingsBody(BaseModel):
    """Unknown fields are tolerated; null is the same as absent."""

    model_config = ConfigDict(extra="allow")

    input: Annotated[Any, WithJsonSchema(_INPUT)]
    model: str | None = Field(default=None, max_length=512)
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole | None = None
    user: Any = None


class LlamaEmbeddingBody(BaseModel):
    model_config = ConfigDict(extra="allow")

    input: Any = None
    content: Any = None
    encoding_format: Literal["float", "base64"] | None = None
    embd_normalize: Whole | None = None


OPERATIONS = (Operation("post", "/v1/embeddings", "Vectors of texts (OpenAI)", EmbeddingsBody, _ANSWER),)


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_post("/v1/embeddings", post_embeddings)
    router.add_post("/embeddings", post_llama_embedding)
    router.add_post("/embedding", post_llama_embedding)


async def post_embeddings(request: web.Request) -> web.Response:
    model = _model(request)
    body = await read_body(request, EmbeddingsBody, chooses=False)
    n_values = whole(body.dimensions, "dimensions", 1, model.n_values) or model.n_values
    vectors = await _vectors(request, model, body.input, "input")
    name = text_json(body.model or model.path.stem)
    n_tokens = b"%d" % sum(vector.n_tokens for vector in vectors)

    def write() -> bytes:
        cut = [shortened(vector.values, n_values) for vector in vectors]
        data = b",".join(
            b'{"object":"embedding","index":%d,"embedding":%b}' % (number, _written(values, body.encoding_format))
            for number, values in enumerate(cut)
        )
        usage = b'{"prompt_tokens":%b,"total_tokens":%b}' % (n_tokens, n_tokens)
        return b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (data, name, usage)

    return await _response(write, vectors)


async def post_llama_embedding(request: web.Request) -> web.Response:
    model = _model(request)
    body = await read_body(request, LlamaEmbeddingBody, chooses=False)
    if body.embd_normalize not in (None, 2):
        told = "'embd_normalize' can only be 2: all vectors are of unit length."
        raise refusal("embd_normalize", told, "unsupported_value")
    param = "input" if body.input is not None else "content"
    vectors = await _vectors(request, model, body.input if param == "input" else body.content, param)

    def write() -> bytes:
        texts = (_written(vector.values, body.encoding_format) for vector in vectors)
        is_text = body.encoding_format == "base64"
        rows = (text if is_text else b"[%b]" % text for text in texts)
        return b"[%b]" % b",".join(b'{"index":%d,"embedding":%b}' % row for row in enumerate(rows))

    return await _response(write, vectors)


def _model(request: web.Request) -> EmbeddingModel:
    return required(context_of(request).supervisor.embedding_model, "embedding model", "--embedding-model")


async def _vectors(request: web.Request, model: EmbeddingModel, value: Any, param: str) -> list[TextVector]:
    text = await model.text()

    async def work() -> list[TextVector]:
        inputs = await asyncio.to_thread(read_inputs, value, param, text)
        return await model.embed(inputs)

    vectors = await compute(request, work(), param, has_several=are_several(value))
    charge(request, sum(vector.n_tokens for vector in vectors))
    return vectors


async def _response(write: Any, vectors: Sequence[TextVector]) -> web.Response:
    """In a thread where it is long, so that others are served meanwhile."""
    is_long = sum(len(vector.values) for vector in vectors) > _LONG
    body = await asyncio.to_thread(write) if is_long else write()
    return web.Response(body=body, content_type="application/json")


def shortened(values: array[float], n_values: int) -> array[float]:
    """The first ones, of unit length again: what models trained for it (Matryoshka) mean by fewer dimensions."""
    if n_values >= len(values):
        return values
    first = values[:n_values]
    length = math.sqrt(math.fsum(value * value for value in first))
    return first if length == 0 else array("f", (value / length for value in first))


def _written(values: array[float], encoding_format: str | None) -> bytes:
    """As JSON: numbers that read back as the same single-precision ones, or their bytes, little endian, in base64."""
    if encoding_format == "base64":
        data = array("f", values)
        if sys.byteorder == "big":
            data.byteswap()
        return b'"%b"' % base64.b64encode(data.tobytes())
    return b"[%b]" % ",".join(map("%.9g".__mod__, values)).encode()
