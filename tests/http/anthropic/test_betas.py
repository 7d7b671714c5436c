"""The header `anthropic-beta` on the wire: what a client learns of the context, and what the log says of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.http.serving import Server

HELLO: Any = [{"role": "user", "content": "Hello, tell me a story"}]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    """With a context that is soon full."""
    running = Server(tiny_model, {"ctx": 1024})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="any", max_retries=0, timeout=120) as made:
        yield made


def test_a_client_that_asks_for_a_larger_window_is_told_the_true_one(
    client: Anthropic, caplog: pytest.LogCaptureFixture
) -> None:
    """A prompt beyond it is refused in the words on which clients compact."""
    large = "context-1m-2025-08-07"
    with caplog.at_level("INFO", "luce.http.anthropic"):
        for _ in range(2):
            answer = client.beta.messages.with_raw_response.create(
                model="m", max_tokens=2, messages=HELLO, betas=[large, "of-tomorrow-2031-01-01"]
            )
            assert answer.headers["luce-context-window"] == "1024"
        long: Any = [{"role": "user", "content": "a " * 2000}]
        with pytest.raises(anthropic.BadRequestError, match=r"too long: \d+ tokens > 1024 maximum") as refused:
            client.beta.messages.create(model="m", max_tokens=2, messages=long, betas=[large], stream=True)
    assert refused.value.response.headers["luce-context-window"] == "1024"
    told = [record.getMessage() for record in caplog.records if "anthropic-beta" in record.getMessage()]
    assert len(told) == 2
    assert "1,000,000" in told[0]
    assert "1,024" in told[0]
    assert "of-tomorrow" in told[1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("betas", "reason"),
    [
        ([], "max_tokens"),
        (["model-context-window-exceeded-2025-08-26"], "model_context_window_exceeded"),
    ],
)
def test_an_answer_that_fills_the_context(client: Anthropic, betas: list[str], reason: str, stream: bool) -> None:
    """Only a client that says so knows the word for it."""
    asked: Any = [{"role": "user", "content": "a " * 978}]
    n_left = 1024 - client.messages.count_tokens(model="m", messages=asked).input_tokens
    assert 0 < n_left < 100
    body: dict[str, Any] = {"model": "m", "max_tokens": 1024, "messages": asked, "betas": betas}
    endless = {"grammar": "root ::= [a-z ] root"}
    if stream:
        with client.beta.messages.stream(**body, extra_body=endless) as events:
            message = events.get_final_message()
    else:
        message = client.beta.messages.create(**body, extra_body=endless)
    assert (message.stop_reason, message.usage.output_tokens) == (reason, n_left)
