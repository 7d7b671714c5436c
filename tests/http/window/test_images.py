"""Images in the chat, in a real Chromium, with a model that takes them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.serving import Server
from tests.http.window.browsing import browser, counts, opened
from tests.pictures import png

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

WEBP = base64.b64decode("UklGRiQAAABXRUJQVlA4IBgAAAAwAQCdASoBAAEAAwA0JaQAA3AA/vuUAAA=")


@pytest.fixture(scope="module")
def eyes(test_models: Path) -> Iterator[Server]:
    running = Server(test_models / "qwen3.gguf", {"mmproj": test_models / "mmproj" / "llava.gguf"})
    try:
        yield running.start()
    finally:
        running.stop()


def test_images_go_with_a_message_also_those_that_the_server_cannot_read(browser: Browser, eyes: Server) -> None:
    files: Any = [
        {"name": "a.png", "mimeType": "image/png", "buffer": png(40, 30, 1)},
        {"name": "b.webp", "mimeType": "image/webp", "buffer": WEBP},
        {"name": "c.png", "mimeType": "image/webp", "buffer": b"no picture"},
    ]
    with opened(browser, f"{eyes.url}/") as page:
        page.set_input_files("#attach-file", files)
        counts(page.locator("#attached .attachment img"), 2)
        assert "c.png: this browser cannot read it" in (page.locator("#attached .failure").text_content() or "")
        page.click("#show-settings")
        page.fill("#settings [name=max_tokens]", "4")
        page.click("#settings button.main")
        page.fill("#prompt", "What is this?")
        with page.expect_request("**/v1/chat/completions") as asked:
            page.press("#prompt", "Enter")
        (message,) = json.loads(asked.value.post_data or "")["messages"]
        kinds = [
            part.get("image_url", {}).get("url", part.get("text")).partition(",")[0] for part in message["content"]
        ]
        assert kinds == ["data:image/png;base64"] * 2 + ["What is this?"]
        counts(page.locator(".message .figures"), 1)
        counts(page.locator(".message .failure"), 0)
        page.reload()
        counts(page.locator(".message.user .attachment img"), 2)
        width = "one => one.decode().then(() => one.naturalWidth)"
        widths = page.locator(".message.user .attachment img").evaluate_all(f"all => Promise.all(all.map({width}))")
        assert widths == [40, 1]
