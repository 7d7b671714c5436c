#!/usr/bin/env python3
"""Say whether a client was served as it should be, from what recording_proxy.py wrote down (session.sh).

Every step must have a request with tools that was answered with text or a tool call and an end; the second turn must
find the first one's prompt cached, and the second session what it shares with the first: at least half of its prompt.
Requests without tools (titles) must be answered, too. Prints a table; exit code 1 says that something is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

STEPS = ("first_turn", "second_turn", "second_session")
LEAST_OF_FIRST_TURN = 0.9
LEAST_OF_SECOND_SESSION = 0.5

Requests = dict[str, list[dict[str, Any]]]


def read(path: Path) -> Requests:
    """The requests of each step."""
    found: Requests = {}
    step = ""
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if "step" in record:
            step = record["step"]
            found[step] = []
        else:
            found.setdefault(step, []).append(record)
    return found


def complaints(requests: Requests) -> list[str]:
    """What is wrong, if anything."""
    found = []
    for step in STEPS:
        for number, record in enumerate(requests.get(step, [])):
            where = f"{step}, request {number + 1}"
            if record["status"] != 200:
                found.append(f"{where}: status {record['status']} {record['error']}")
            elif record["error"]:
                found.append(f"{where}: {record['error']}")
            elif not record["finish"]:
                found.append(f"{where}: it came to no end")
            elif not record["n_text"] and not record["n_tool_calls"]:
                found.append(f"{where}: neither text nor a tool call came back")
        if not mains(requests, step):
            found.append(f"{step}: no request offered tools")
    return found or cache_complaints(requests)


def cache_complaints(requests: Requests) -> list[str]:
    first, second, other = (mains(requests, step)[0] for step in STEPS)
    found = []
    if second["n_cached"] < LEAST_OF_FIRST_TURN * first["n_prompt"]:
        found.append(f"second_turn: {second['n_cached']} of the first turn's {first['n_prompt']} tokens cached")
    if other["n_cached"] < LEAST_OF_SECOND_SESSION * other["n_prompt"]:
        found.append(f"second_session: {other['n_cached']} of {other['n_prompt']} tokens cached")
    return found


def mains(requests: Requests, step: str) -> list[dict[str, Any]]:
    return [record for record in requests.get(step, []) if record["n_tools"]]


def show(requests: Requests) -> None:
    print("| step | asked | tools | status | prompt | cached | answer | tool calls | end | headers | total |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for step, records in requests.items():
        for r in records:
            print(
                f"| {step} | {r['path']} | {r['n_tools']} | {r['status']} | {r['n_prompt']} | {r['n_cached']} "
                f"| {r['n_generated']} tokens, {r['n_text']} characters | {r['n_tool_calls']} | {r['finish'] or '-'} "
                f"| {r['headers_s'] * 1e3:.0f} ms | {r['total_s']:.1f} s |"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    requests = read(parser.parse_args().records)
    show(requests)
    wrong = complaints(requests)
    for complaint in wrong:
        print(f"wrong: {complaint}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
