"""The documentation builds as a site without a warning: every page is in the navigation, every link and anchor leads
somewhere. Needs no network."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.docs_hooks import all_commands, engine_flags

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def text_of(page: Path) -> str:
    """What a reader sees."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text("utf-8")))


def test_nothing_is_left_unfilled(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) >= 20
    for page in pages:
        assert "<!-- include" not in page.read_text("utf-8"), page
        assert "<!-- commands" not in page.read_text("utf-8"), page


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        tags = re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*>', page.read_text("utf-8"))
        loaded = [address for tag in tags for address in re.findall(r' (?:src|href)="([^"]+)"', tag)]
        assert [address for address in loaded if "://" in address or address.startswith("//")] == []


def test_every_command_and_option_is_on_its_page(site: Path) -> None:
    text = text_of(site / "commands.html")
    reference = text_of(site / "reference" / "options.html")
    for name, command in all_commands().items():
        assert name in text
        for option in command.params:
            for flag in () if getattr(option, "hidden", False) else option.opts:
                assert flag in text or (flag in engine_flags() and flag in reference), f"{name} {flag}"


def test_the_protocol_is_included_whole(site: Path) -> None:
    text = text_of(site / "protocol.html")
    for heading in re.findall(r"^## (.+)$", (ROOT / "protocol" / "PROTOCOL.md").read_text(), re.MULTILINE):
        assert heading in text
