"""What the OpenAPI document promises holds for whatever schemathesis makes of it: no 5xx, no answer of another shape.

Only the prompts are held short: what is tested is the door, not the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from tests.http.infill_models import write_infill_model
from tests.http.serving import Server
from tests.needles import SCORER

N_SHORT, N_FULL = 9, 200
BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
BOUNDED = {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/completion", "/infill"}
MESSAGES = {"messages": [{"role": "user", "content": "Hi"}]}
SOUND: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": MESSAGES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/apply-template": MESSAGES,
    "/v1/responses": {"input": "Hi"},
    "/v1/completions": {"prompt": "Hi"},
    "/completion": {"prompt": "Hi"},
    "/infill": {"input_prefix": "Hi", "input_suffix": "Ho", "prompt": ""},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/rerank": {"query": "Hi", "documents": ["Hi"]},
    "/compress": {"content": "Hi", "share": 1},
}
"""What a body has to have that a schema does not tell in full: bodies made from it alone hardly ever hold a prompt."""
CHECKS = [not_a_server_error, response_schema_conformance]


@pytest.fixture(scope="module")
def server(tiny_model: Path, test_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that serves every operation."""
    folder = test_models / "embeddings"
    options = {
        "embedding_model": folder / "bert.gguf",
        "rerank_model": folder / "bert-rank.gguf",
        "prefill_scorer": SCORER,
        "slot_save_path": tmp_path_factory.mktemp("slots"),
    }
    running = Server(write_infill_model(tiny_model, tmp_path_factory.mktemp("model") / "infill.gguf"), options)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def schema(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def operations(server: Server) -> list[tuple[str, str]]:
    paths = httpx.get(f"{server.url}/openapi.json", timeout=120).json()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


def repair(body: Any, path: str, n_kept: int) -> Any:
    """A body that holds a prompt, and as many of the others' fields."""
    if path not in SOUND:
        return body
    return {**dict(list(body.items() if isinstance(body, dict) else ())[:n_kept]), **SOUND[path]}


def bound(path: str, body: Any) -> None:
    """Answers are short, and there are few of them."""
    if path not in BOUNDED or not isinstance(body, dict):
        return
    for name in BOUNDS:
        if isinstance(body.get(name), int) and (body[name] > 4 or body[name] == -1):  # llama-server's for none
            body[name] = 4
    if not any(isinstance(body.get(name), int) for name in BOUNDS):
        body[BOUNDS[2] if path == "/v1/responses" else BOUNDS[0]] = 4
    for name in ("n", "best_of"):
        if isinstance(body.get(name), int):
            body[name] = min(body[name], 2)


def test_what_the_document_says(server: Server, schema: Any, full: bool) -> None:
    """Every operation, with bodies that fit its schema and bodies that do not."""
    found = operations(server)
    assert len(found) > 8
    failures = []
    for method, path in found:
        try:
            statuses = check_operation(schema[path][method.upper()], path, N_FULL if full else N_SHORT)
        except Exception as error:  # noqa: BLE001  whatever it is: the other operations are tried as well
            failures.append(f"{method} {path}: {error!r}")
            continue
        print(f"{method} {path}: {statuses.total()} cases, {dict(statuses)}")
        if path in SOUND and statuses[200] == 0:
            failures.append(f"{method} {path}: only {dict(statuses)}")
    assert failures == []
    assert server.supervisor.status().engines[0].n_deaths == 0


def check_operation(operation: Any, path: str, n_examples: int) -> Counter[int]:
    """The statuses that came."""
    statuses: Counter[int] = Counter()
    fitting = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    unfitting = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    cases = fitting | unfitting if operation.body else fitting

    @hypothesis.given(case=cases, n_kept=st.none() | st.integers(0, 4))
    @hypothesis.settings(
        max_examples=n_examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    def check(case: Any, n_kept: int | None) -> None:
        if n_kept is not None:
            case.body = repair(case.body, path, n_kept)
        bound(path, case.body)
        response = case.call(timeout=120)
        statuses[response.status_code] += 1
        if response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
            assert response.status_code == 200
        else:
            case.validate_response(response, checks=CHECKS)

    check()
    return statuses
