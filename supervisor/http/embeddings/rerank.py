"""POST /v1/rerank: how well documents fit a query, in the words that Jina's and Cohere's APIs share; with `texts` in
place of `documents` in those of text-embeddings-inference. Its other names are llama-server's and Cohere's.

Must not know how scores are made.
"""

from __future__ import annotations

from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, StrictBool, WithJsonSchema

from luce.supervisor.embedding.model import Relevance
from luce.supervisor.http.admin.openapi import NUMBER, TEXT, Operation, listed, record
from luce.supervisor.http.app_context import context_of
from luce.supervisor.http.embeddings.inputs import MAX_INPUTS, too_many
from luce.supervisor.http.embeddings.serving import compute, required
from luce.supervisor.http.keys.key_ring import charge
from luce.supervisor.http.openai_shared.fields import expect, refusal, whole
from luce.supervisor.http.openai_shared.shapes import json_response, new_id
from luce.supervisor.http.sampling_fields import INT32_MAX, Whole
from luce.supervisor.http.transport.body import read_body

PATHS = ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking")

_DOCUMENT = {"anyOf": [TEXT, record({"text": TEXT})]}
_DOCUMENTS = listed(_DOCUMENT, minItems=1, maxItems=MAX_INPUTS)
_RESULT = record({"index": NUMBER, "relevance_score": {"type": "number"}}, document=record({"text": TEXT}))
_USAGE = record({"prompt_tokens": NUMBER, "total_tokens": NUMBER})
_ANSWER = record({"id": TEXT, "object": {"const": "list"}, "model": TEXT, "results": listed(_RESULT), "usage": _USAGE})


class RerankBody(BaseModel):
    """Unknown fields are tolerated; null is the same as absent."""

    model_config = ConfigDict(extra="allow")

    query: str
    documents: Annotated[Any, WithJsonSchema(_DOCUMENTS)] = None
    model: str | None = Field(default=None, max_length=512)
    top_n: Whole | None = None
    return_documents: StrictBool | None = None
    raw_scores: StrictBool | None = Field(default=None, description="the head's logits, not from 0 to 1")
    texts: Any = None
    return_text: StrictBool | None = None


OPERATIONS = (Operation("post", "/v1/rerank", "How well documents fit a query (Jina, Cohere)", RerankBody, _ANSWER),)


def add_routes(router: web.UrlDispatcher) -> None:
    for path in PATHS:
        router.add_post(path, post_rerank)


async def post_rerank(request: web.Request) -> web.Response:
    model = required(context_of(request).supervisor.reranker, "rerank model", "--rerank-model")
    body = await read_body(request, RerankBody, chooses=False)
    is_tei = body.documents is None and body.texts is not None
    param = "texts" if is_tei else "documents"
    documents = read_documents(body.texts if is_tei else body.documents, param)
    top_n = whole(body.top_n, "top_n", 1, INT32_MAX) or len(documents)
    scores = await compute(request, model.rerank(body.query, documents), param, has_several=True)
    charge(request, sum(score.n_tokens for score in scores))
    best = _best(scores, raw=body.raw_scores is True)[:top_n]
    if is_tei:
        texts = [{"text": documents[number]} if body.return_text else {} for number, _ in best]
        rows = zip(best, texts, strict=True)
        return json_response([{"index": number, "score": score, **text} for (number, score), text in rows])
    n_tokens = sum(score.n_tokens for score in scores)
    results = [
        {"index": number, "relevance_score": score}
        | ({"document": {"text": documents[number]}} if body.return_documents else {})
        for number, score in best
    ]
    return json_response(
        {
            "id": new_id("rerank"),
            "object": "list",
            "model": body.model or model.path.stem,
            "results": results,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }
    )


def read_documents(value: Any, param: str) -> list[str]:
    documents = expect(value, list, param, "an array of strings, or of objects with a 'text'")
    if not documents:
        raise refusal(param, f"Invalid '{param}': it cannot be an empty array.", "empty_array")
    if len(documents) > MAX_INPUTS:
        raise too_many(param, len(documents))
    return [_document(item, f"{param}[{number}]", param) for number, item in enumerate(documents)]


def _document(item: Any, place: str, param: str) -> str:
    text = item.get("text") if isinstance(item, dict) else item
    if not isinstance(text, str):
        told = f"Invalid type for '{place}': expected a string or an object with a 'text'."
        raise refusal(param, told, "invalid_type")
    return text


def _best(scores: list[Relevance], *, raw: bool) -> list[tuple[int, float]]:
    """Numbers and scores, the best first; of equal ones the earlier."""
    order = sorted(range(len(scores)), key=lambda number: (-scores[number].logit, number))
    return [(number, scores[number].logit if raw else scores[number].probability) for number in order]
