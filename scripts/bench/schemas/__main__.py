"""How much of JSON schemas engines enforce: `python -m scripts.bench.schemas --folder DIR [--engine NAME]`.

DIR takes the test suite, and has the MCP servers that `npm install` put there (mcp_tools.PACKAGES). Prints the tables
of docs/benchmarks/schemas.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scripts.bench.schemas.engines import ENGINES, Compiled, RefusedError
from scripts.bench.schemas.mcp_tools import tools_of_servers
from scripts.bench.schemas.suite import DRAFTS, Group, fetch, groups

Engine = Callable[[Any], Compiled]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--engine", choices=ENGINES, action="append")
    chosen = parser.parse_args()
    suite = fetch(chosen.folder)
    engines = {name: ENGINES[name] for name in chosen.engine or ENGINES}
    print(
        "| suite | engine | taken whole | partly, told | refused schemas | valid refused | wrongly accepted, untold |"
    )
    for draft in DRAFTS:
        for name, engine in engines.items():
            print(f"| {draft} | {name} | {suite_row(engine, groups(suite, draft))} |")
    tools = tools_of_servers(chosen.folder)
    print("| tools | engine | taken whole | partly, told | refused | compile, median | compile, worst |")
    for name, engine in engines.items():
        print(f"| {len(tools)} | {name} | {tools_row(engine, tools)} |")


def suite_row(engine: Engine, listed: Iterable[Group]) -> str:
    counts: Counter[str] = Counter()
    for group in listed:
        try:
            compiled = engine(group.schema)
            accepts = compiled.accepts()
        except RefusedError:
            counts["refused"] += 1
            continue
        counts["whole" if compiled.is_whole else "partly"] += 1
        for value, is_valid in group.instances:
            is_accepted = any(map(accepts, spellings(value)))
            counts["valid"] += is_valid
            counts["valid refused"] += is_valid and not is_accepted
            counts["invalid"] += not is_valid and compiled.is_whole
            counts["wrong"] += is_accepted and not is_valid and compiled.is_whole
    n = counts["whole"] + counts["partly"] + counts["refused"]
    return (
        f"{counts['whole']} of {n} | {counts['partly']} | {counts['refused']} | "
        f"{counts['valid refused']} of {counts['valid']} | {counts['wrong']} of {counts['invalid']}"
    )


def spellings(value: Any) -> tuple[str, str]:
    """The two ways in which JSON is mostly written."""
    return json.dumps(value, ensure_ascii=False), json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def tools_row(engine: Engine, tools: dict[str, Any]) -> str:
    counts: Counter[str] = Counter()
    times_ms = []
    for schema in tools.values():
        began_s = time.perf_counter()
        try:
            compiled = engine(schema)
        except RefusedError:
            counts["refused"] += 1
            continue
        times_ms.append((time.perf_counter() - began_s) * 1e3)
        counts["whole" if compiled.is_whole else "partly"] += 1
    median, worst = statistics.median(times_ms), max(times_ms)
    return f"{counts['whole']} | {counts['partly']} | {counts['refused']} | {median:.2f} ms | {worst:.1f} ms"


if __name__ == "__main__":
    main()
