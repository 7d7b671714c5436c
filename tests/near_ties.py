"""Says at the end of a run how many texts were compared with plain decoding's, and how many of them parted from it at a
step that was nearly a tie (the rule of tests/daemon/same_tokens.py): what passes silently should be seen all the same.

A plugin of pytest; tests run in several processes, whose counts the one that reports adds up.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

_KEY = "near_ties"
_compared: Counter[str] = Counter()
_parted: Counter[str] = Counter()


def count(n_sequences: int, n_parted: int) -> None:
    """Of the running test."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("[")[0].partition(" ")[0]
    _compared[test] += n_sequences
    _parted[test] += n_parted


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_KEY] = (dict(_compared), dict(_parted))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """pytest-xdist's, where tests run in several processes; one that died has told nothing."""
    compared, parted = getattr(node, "workeroutput", {}).get(_KEY, ({}, {}))
    _compared.update(compared)
    _parted.update(parted)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _compared:
        return
    terminalreporter.section("texts against plain decoding's: compared, parted at a near-tie")
    for test in sorted(_compared):
        terminalreporter.line(f"{_compared[test]:7} {_parted[test]:5}  {test}")
    terminalreporter.line(f"{_compared.total():7} {_parted.total():5}  in all; one that parts at a clear step fails")
