"""A client of the module's own `server`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.http.serving import Server


@pytest.fixture
def sdk(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
