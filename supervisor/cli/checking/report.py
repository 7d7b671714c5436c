"""What `luce check` found, as a table and as JSON. Presents; must not know how anything is checked."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from luce.supervisor.checking.finding import Finding, Verdict
from luce.supervisor.checking.subject import Volume
from luce.supervisor.config import DaemonConfig

if TYPE_CHECKING:
    from rich.console import Console

_COLOURS = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.LEFT_OUT: "yellow"}
_SAID = ("model", "arch", "identity", "kv", "spec", "ctx", "pool", "lanes", "kvflash")


def counts(found: Sequence[Finding]) -> dict[str, int]:
    verdicts = Counter(finding.verdict for finding in found)
    return {verdict.value.replace(" ", "_"): verdicts[verdict] for verdict in Verdict}


def to_json(
    ready: Mapping[str, str], config: DaemonConfig, volume: Volume, found: Sequence[Finding], ended: str
) -> bytes:
    """`ended`: why it ended early; empty: it did not."""
    report: dict[str, Any] = {
        "passed": all(finding.verdict is not Verdict.FAILED for finding in found),
        "ended_early": ended or None,
        "counts": counts(found),
        "engine": {name: ready[name] for name in _SAID if name in ready},
        "options": config.to_argv(),
        "volume": asdict(volume),
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "version": metadata.version("luce-daemon")},
        "findings": [asdict(finding) for finding in found],
    }
    return (json.dumps(report, indent=2, ensure_ascii=False) + "\n").encode()


def print_report(console: Console, ready: Mapping[str, str], found: Sequence[Finding], ended: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    title = f"{ready['model']}: kv {ready.get('kv')}, drafts {ready.get('spec')}, {ready.get('lanes')} lanes"
    table = Table(title=escape(title), title_justify="left")
    for heading in ("", "check", "case"):
        table.add_column(heading, no_wrap=heading != "case")
    table.add_column("tokens", justify="right")
    table.add_column("s", justify="right")
    table.add_column("compared, and what came of it", overflow="fold", ratio=1)
    for finding in found:
        verdict = f"[{_COLOURS[finding.verdict]}]{finding.verdict}[/]"
        told = "\n".join(text for text in (finding.compared, finding.text) if text)
        n_tokens = f"{finding.n_tokens:,}" if finding.n_tokens else ""
        table.add_row(verdict, finding.check, escape(finding.case), n_tokens, f"{finding.seconds:.1f}", escape(told))
    console.print(table)
    told = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts(found).items() if n)
    console.print(f"{told}; ended early: {ended}" if ended else told, markup=False)
