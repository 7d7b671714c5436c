"""A real Chromium for the tests of the page: Playwright's own or the system's; where there is none they say so."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@contextmanager
def launched() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="left out: needs playwright (pip install playwright)")
    system = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    # A loop of its own: playwright's blocking interface refuses a thread that has one.
    with sync_api.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        if not own.exists() and system is None:
            pytest.skip("left out: needs Chromium (`playwright install chromium`, or Debian's chromium)")
        browser = playwright.chromium.launch(executable_path=None if own.exists() else system, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page that has no errors of its own by the end, and has asked nobody but its server."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
    page.on("request", lambda asked: errors.append(asked.url) if not is_own(asked.url, url) else None)
    try:
        page.goto(url)
        yield page
    finally:
        page.close()
    assert errors == []


def is_own(asked: str, url: str) -> bool:
    origin = re.match(r"https?://[^/]+", url)
    assert origin is not None
    return asked.startswith((origin[0] + "/", "data:", "blob:"))


def shows(where: Locator, text: str | re.Pattern[str]) -> None:
    from playwright.sync_api import expect

    expect(where).to_have_text(text, timeout=PATIENCE_MS)


def counts(where: Locator, n: int) -> None:
    from playwright.sync_api import expect

    expect(where).to_have_count(n, timeout=PATIENCE_MS)


def is_seen(where: Locator, seen: bool = True) -> None:
    from playwright.sync_api import expect

    expect(where).to_be_visible(visible=seen, timeout=PATIENCE_MS)


def has_focus(where: Locator) -> None:
    from playwright.sync_api import expect

    expect(where).to_be_focused(timeout=PATIENCE_MS)


def go_to(page: Page, view: str) -> None:
    """By keyboard, from another view. The browser tells the page of its new address behind the key press: only then the
    page shows the view, and gives it the focus."""
    page.locator(f"nav a[data-view={view}]").press("Enter")
    has_focus(page.locator(f"#{view}"))
