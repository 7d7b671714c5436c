"""The official npm SDKs of OpenAI and Anthropic as clients: what they accumulate is what a whole answer is."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import Server

ROOT = Path(__file__).resolve().parents[2]
SDKS = ("openai@7.55.0", "@anthropic-ai/sdk@1.11.0")
SCRIPT = Path(__file__).with_name("npm_sdks.mjs")
INSTALL_S = 300
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def sdks() -> Path:
    """A folder with the SDKs, and the script beside them, because that is where node looks for them."""
    if shutil.which("npm") is None:
        pytest.skip("left out: npm is not installed")
    folder = ROOT / "build" / "clients" / "-".join(sdk.rsplit("@")[-1] for sdk in SDKS)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / "@anthropic-ai" / "sdk").is_dir():
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error", *SDKS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode != 0:
            pytest.skip(f"left out: npm could not install the SDKs: {done.stderr.strip().splitlines()[-1:]}")
    shutil.copy(SCRIPT, folder / SCRIPT.name)
    return folder


@pytest.fixture(scope="module")
def found(sdks: Path, tiny_model: Path) -> dict[str, Any]:
    server = Server(tiny_model, {}).start()
    try:
        done = subprocess.run(
            ["node", SCRIPT.name, server.url],
            cwd=sdks, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def test_openai_chat(found: dict[str, Any]) -> None:
    text = found["chat"]["choices"][0]["message"]["content"]
    assert text
    assert found["chatAccumulated"]["choices"][0]["message"]["content"] == text
    pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in found["chatChunks"] if chunk["choices"]]
    assert "".join(pieces) == text
    last = found["chatChunks"][-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == found["chat"]["usage"]["completion_tokens"]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_openai_tool_calls(found: dict[str, Any]) -> None:
    choice = found["chatTool"]["choices"][0]
    assert choice["finish_reason"] in {"tool_calls", "length"}
    call = choice["message"]["tool_calls"][0]
    assert call["function"]["name"] == "get_weather"
    if choice["finish_reason"] == "tool_calls":
        assert "city" in json.loads(call["function"]["arguments"])


def test_openai_completions_and_models(found: dict[str, Any]) -> None:
    assert found["completion"]["choices"][0]["text"]
    assert found["completion"]["usage"]["completion_tokens"] <= 8
    assert found["models"][0]["object"] == "model"


def test_openai_responses(found: dict[str, Any]) -> None:
    assert found["response"]["output_text"] == found["chat"]["choices"][0]["message"]["content"]
    assert found["responseAccumulated"]["output_text"] == found["response"]["output_text"]
    events = found["responseEvents"]
    assert events[:2] == ["response.created", "response.in_progress"]
    assert events[-1] in {"response.completed", "response.incomplete"}
    assert "response.output_text.delta" in events


def test_anthropic_messages(found: dict[str, Any]) -> None:
    assert found["message"]["content"][0]["text"] == found["chat"]["choices"][0]["message"]["content"]
    assert found["messageAccumulated"]["content"][0]["text"] == found["message"]["content"][0]["text"]
    events = found["messageEvents"]
    assert events[0] == "message_start"
    assert events[-2:] == ["message_delta", "message_stop"]
    usage = found["messageAccumulated"]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] >= found["counted"]["input_tokens"]


def test_anthropic_tool_calls(found: dict[str, Any]) -> None:
    blocks = [block for block in found["messageTool"]["content"] if block["type"] == "tool_use"]
    assert blocks[0]["name"] == "get_weather"
    assert blocks[0]["id"].startswith("toolu_")


def test_refusals_are_the_sdks_own_errors(found: dict[str, Any]) -> None:
    assert found["refusals"] == ["BadRequestError"] * 3
