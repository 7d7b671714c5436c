"""/v1/rerank and its other names, over real engines: the shapes of Jina, Cohere, llama-server and TEI."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.conftest import MakeServer
from tests.http.serving import Server

QUERY = "what is machine learning"
DOCUMENTS = ["a river in france", "machine learning is a model", "paris", "the mountain", "paris"]
ROUNDING = 1e-4


@pytest.fixture(scope="module")
def server(tiny_model: Path, test_models: Path) -> Iterator[Server]:
    running = Server(tiny_model, {"rerank_model": test_models / "embeddings" / "bert-rank.gguf"})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as opened:
        yield opened


def rerank(client: httpx.Client, path: str = "/v1/rerank", **body: Any) -> Any:
    answer = client.post(path, json={"query": QUERY, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def by_index(body: Any) -> dict[int, float]:
    return {row["index"]: row["relevance_score"] for row in body["results"]}


def test_the_best_document_comes_first(client: httpx.Client) -> None:
    body = rerank(client, documents=DOCUMENTS, model="any")
    assert body.keys() == {"id", "object", "model", "results", "usage"}
    assert (body["object"], body["model"]) == ("list", "any")
    scores = [row["relevance_score"] for row in body["results"]]
    assert sorted(row["index"] for row in body["results"]) == list(range(len(DOCUMENTS)))
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    found = by_index(body)
    assert found[2] == pytest.approx(found[4], abs=ROUNDING)
    assert found[0] != pytest.approx(found[1], abs=0.01)


def test_a_documents_score_does_not_depend_on_the_others(client: httpx.Client) -> None:
    together = by_index(rerank(client, documents=DOCUMENTS))
    for number, document in enumerate(DOCUMENTS):
        (alone,) = rerank(client, documents=[document])["results"]
        assert alone["relevance_score"] == pytest.approx(together[number], abs=ROUNDING)


def test_raw_scores_are_the_heads(client: httpx.Client) -> None:
    chances = by_index(rerank(client, documents=DOCUMENTS))
    logits = by_index(rerank(client, documents=DOCUMENTS, raw_scores=True))
    for number, chance in chances.items():
        assert chance == pytest.approx(1 / (1 + math.exp(-logits[number])), abs=ROUNDING)


def test_usage_counts_the_query_with_each_document(client: httpx.Client) -> None:
    """[CLS] query [SEP] document [SEP]."""
    usage = rerank(client, documents=["paris", "the city of paris"])["usage"]
    n_query = 4
    assert usage == {"prompt_tokens": 2 * (3 + n_query) + 1 + 4, "total_tokens": 2 * (3 + n_query) + 1 + 4}


@pytest.mark.parametrize(("top_n", "n"), [(None, 5), (2, 2), (5, 5), (99, 5)])
def test_top_n(client: httpx.Client, top_n: int | None, n: int) -> None:
    assert len(rerank(client, documents=DOCUMENTS, top_n=top_n)["results"]) == n
    assert len(rerank(client, texts=DOCUMENTS, top_n=top_n)) == n


def test_documents_come_back_on_demand(client: httpx.Client) -> None:
    documents = [{"text": document, "id": 5} for document in DOCUMENTS]
    for row in rerank(client, documents=documents, return_documents=True)["results"]:
        assert row["document"] == {"text": DOCUMENTS[row["index"]]}
    assert all("document" not in row for row in rerank(client, documents=documents)["results"])


@pytest.mark.parametrize("path", ["/rerank", "/v1/reranking", "/reranking", "/v2/rerank"])
def test_other_names(client: httpx.Client, path: str) -> None:
    found = by_index(rerank(client, path, documents=DOCUMENTS))
    assert found == pytest.approx(by_index(rerank(client, documents=DOCUMENTS)), abs=ROUNDING)


def test_text_embeddings_inference(client: httpx.Client) -> None:
    expected = by_index(rerank(client, documents=DOCUMENTS))
    rows = rerank(client, "/rerank", texts=DOCUMENTS, return_text=True)
    assert {row["index"]: row["score"] for row in rows} == pytest.approx(expected, abs=ROUNDING)
    assert [row["text"] for row in rows] == [DOCUMENTS[row["index"]] for row in rows]
    assert rerank(client, "/rerank", texts=DOCUMENTS)[0].keys() == {"index", "score"}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"documents": []}, "documents", "empty_array"),
        ({"documents": None}, "documents", "invalid_type"),
        ({}, "documents", "invalid_type"),
        ({"documents": 123}, "documents", "invalid_type"),
        ({"documents": "text"}, "documents", "invalid_type"),
        ({"documents": [1, 2, 3]}, "documents", "invalid_type"),
        ({"documents": ["a", None]}, "documents", "invalid_type"),
        ({"documents": [{"title": "a"}]}, "documents", "invalid_type"),
        ({"documents": ["a"] * 2049}, "documents", "array_above_max_length"),
        ({"documents": ["a"], "top_n": 0}, "top_n", "integer_below_min_value"),
        ({"documents": ["a"], "top_n": "1"}, "top_n", "invalid_value"),
        ({"documents": ["a"], "return_documents": "yes"}, "return_documents", "invalid_value"),
        ({"documents": ["a", "river " * 600]}, "documents", "context_length_exceeded"),
        ({"documents": ["a"], "query": "river " * 600}, "documents", "context_length_exceeded"),
        ({"documents": ["a"], "query": 5}, "query", "invalid_value"),
        ({"documents": ["a"], "query": None}, "query", "invalid_value"),
        ({"texts": [5]}, "texts", "invalid_type"),
    ],
)
def test_what_is_refused(client: httpx.Client, body: dict[str, Any], param: str, code: str) -> None:
    answer = client.post("/v1/rerank", json={"query": QUERY, **body})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)


def test_a_document_that_is_too_long_is_named(client: httpx.Client) -> None:
    answer = client.post("/v1/rerank", json={"query": QUERY, "documents": ["a", "river " * 600]})
    assert answer.json()["error"]["message"].startswith("'documents[1]':")


async def test_a_decoder_reads_its_own_template(make_server: MakeServer, test_models: Path) -> None:
    path = test_models / "embeddings" / "qwen3-rank.gguf"
    async with make_server(rerank_model=path) as server, httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        body = {"query": "{document}", "documents": ["one", "another {query}"], "raw_scores": False}
        answer = (await client.post("/v1/rerank", json=body)).json()
        text = server.call(server.supervisor.reranker().text)
        template = text.info.rerank_template
        assert template is not None
        before, after = template.replace("{query}", "{document}", 1).rsplit("{document}", 1)
        prompts = [before + document + after for document in ("one", "another {query}")]
        assert answer["usage"]["prompt_tokens"] == sum(len(text.tokenize(one, parse_special=True)) for one in prompts)
        assert {row["index"] for row in answer["results"]} == {0, 1}
        assert all(0 < row["relevance_score"] < 1 for row in answer["results"])
        models = (await client.get("/v1/models")).json()["data"]
        assert [model.get("task") for model in models] == [None, "rerank"]
