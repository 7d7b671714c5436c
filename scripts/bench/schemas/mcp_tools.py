"""The schemas of the tools of real MCP servers: each server is run from a folder of npm packages and asked by stdio.

It must not know what is measured with them. Servers want keys for what they do, not for saying what they can do.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = {
    "@circleci/mcp-server-circleci": ("mcp-server-circleci", []),
    "@hubspot/mcp-server": ("mcp-hubspot", []),
    "@modelcontextprotocol/server-everything": ("mcp-server-everything", []),
    "@modelcontextprotocol/server-filesystem": ("mcp-server-filesystem", ["."]),
    "@modelcontextprotocol/server-github": ("mcp-server-github", []),
    "@modelcontextprotocol/server-gitlab": ("mcp-server-gitlab", []),
    "@modelcontextprotocol/server-google-maps": ("mcp-server-google-maps", []),
    "@modelcontextprotocol/server-memory": ("mcp-server-memory", []),
    "@modelcontextprotocol/server-sequential-thinking": ("mcp-server-sequential-thinking", []),
    "@modelcontextprotocol/server-slack": ("mcp-server-slack", []),
    "@notionhq/notion-mcp-server": ("notion-mcp-server", []),
    "@playwright/mcp": (
        "playwright-mcp",
        ["--caps=vision,pdf,testing,storage,network,devtools,config"],
    ),
    "@shopify/dev-mcp": ("shopify-dev-mcp", []),
    "@upstash/context7-mcp": ("context7-mcp", []),
    "chrome-devtools-mcp": ("chrome-devtools-mcp", []),
    "exa-mcp-server": ("exa-mcp-server", []),
    "firecrawl-mcp": ("firecrawl-mcp", []),
    "mongodb-mcp-server": ("mongodb-mcp-server", []),
    "tavily-mcp": ("tavily-mcp", []),
}
"""npm packages: their programs, and what these are given."""

_KEYS = (
    "GITHUB_PERSONAL_ACCESS_TOKEN", "GITLAB_PERSONAL_ACCESS_TOKEN", "GOOGLE_MAPS_API_KEY", "SLACK_BOT_TOKEN",
    "SLACK_TEAM_ID", "NOTION_TOKEN", "EXA_API_KEY", "FIRECRAWL_API_KEY", "TAVILY_API_KEY", "CIRCLECI_TOKEN",
    "PRIVATE_APP_ACCESS_TOKEN",
)  # fmt: skip
_TIMEOUT_S = 30.0


def tools_of_servers(folder: Path) -> dict[str, Any]:
    """By server and name; `folder` is where `npm install` put the packages."""
    found = {}
    for package, (program, arguments) in PACKAGES.items():
        for tool in _ask(folder, program, arguments):
            found[f"{package} {tool['name']}"] = tool["inputSchema"]
    return found


def _ask(folder: Path, program: str, arguments: list[str]) -> Iterator[dict[str, Any]]:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    requests = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}},
    ]
    command = [str(folder / "node_modules" / ".bin" / program), *arguments]
    environment = {**os.environ, **dict.fromkeys(_KEYS, "none")}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=folder,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdin.write("".join(json.dumps(request) + "\n" for request in requests))
            server.stdin.flush()
            for line in server.stdout:
                answer = json.loads(line) if line.startswith("{") else {}
                if answer.get("id") == 2:
                    yield from answer["result"]["tools"]
                    return
        except BrokenPipeError:
            return
        finally:
            server.kill()
