#!/usr/bin/env python3
"""Replay transcripts of coding agents, cold and warm: how soon does each answer begin?

TRANSCRIPTS are session files of Claude Code (~/.claude/projects) or rollout files of Codex (~/.codex/sessions), or
folders with such files; without any, the made-up ones in tests/data/transcripts. Each recorded answer is one request:
everything before it, rendered by the model's own chat template, answered at temperature 0 with as many tokens as the
recorded answer has (--max-tokens at most). What the next request holds is the recorded text.

The cold pass runs on an engine that keeps nothing, the warm one on a fresh engine with its caches; each engine is asked
once before the clock starts, and the passes take turns (--repeats). Whatever is not replayed is counted and shown.

Nothing leaves this machine. `luce bench --url` measures a server that runs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from luce.supervisor import RequestError, StartError, SupervisorConfig  # noqa: E402
from luce.supervisor.config import CACHE_TYPES  # noqa: E402
from luce.supervisor.evaluating.transcripts import Session, find_transcripts, read_transcript  # noqa: E402
from luce.supervisor.text import TextModel  # noqa: E402
from scripts.bench.replay.prompts import Prepared, PromptMaker, Setting  # noqa: E402
from scripts.bench.replay.report import Report, print_report  # noqa: E402
from scripts.bench.replay.run import Pass, cold_config, fresh_target, play  # noqa: E402

DEFAULT_TRANSCRIPTS = ROOT / "tests" / "data" / "transcripts"


@dataclass(frozen=True)
class Plan:
    """How to replay."""

    max_tokens: int
    repeats: int
    concurrency: int
    think: float
    timeout_s: float
    with_margins: bool = False


def prepare(config: SupervisorConfig, sessions: Sequence[Session], setting: Setting, max_tokens: int) -> list[Prepared]:
    """The prompts of all sessions that have any. REQUIRES: config.ctx."""
    assert config.ctx is not None
    with TextModel(config.model) as model:
        maker = PromptMaker(model, sessions, setting)
        return [maker.prepare(session, n_ctx=config.ctx, max_tokens=max_tokens) for session in sessions]


async def replay(config: SupervisorConfig, sessions: Sequence[Prepared], plan: Plan) -> tuple[list[Pass], list[Pass]]:
    """The passes, cold and warm in turns. Raises StartError, or RequestError if not even the warm-up is served."""
    cold: list[Pass] = []
    warm: list[Pass] = []
    for _ in range(plan.repeats):
        for passes, chosen in ((cold, cold_config(config)), (warm, config)):
            async with fresh_target(chosen, timeout_s=plan.timeout_s, with_margins=plan.with_margins) as target:
                passes.append(
                    await play(
                        target, sessions, max_tokens=plan.max_tokens, concurrency=plan.concurrency, think=plan.think
                    )
                )
    return cold, warm


def read_all(paths: Sequence[Path], limit: int | None, console: Console) -> list[Session]:
    """The sessions with requests; what cannot be read is said and left out."""
    sessions: list[Session] = []
    names: set[str] = set()
    for path in find_transcripts(paths):
        if limit is not None and len(sessions) >= limit:
            break
        try:
            session = read_transcript(path)
        except OSError as error:
            console.print(f"left out: {path}: {error.strerror}", markup=False)
            continue
        if session.name in names:
            console.print(f"left out: {path}: another session has this name", markup=False)
        elif not session.turns:
            console.print(f"left out: {path}: no request in it", markup=False)
        else:
            names.add(session.name)
            sessions.append(session)
    return sessions


def read_tools(path: Path | None) -> list[dict[str, Any]] | None:
    if path is None:
        return None
    try:
        tools = json.loads(path.read_text())
    except ValueError as error:
        raise click.BadParameter(f"{path} is not JSON: {error}") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise click.BadParameter(f"{path} holds no list of tools")
    return tools


@click.command(help=__doc__, context_settings={"show_default": True, "max_content_width": 100})
@click.argument("transcripts", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--model", type=click.Path(path_type=Path, exists=True), help="GGUF file; default: the packaged model")
@click.option("--ctx", type=click.IntRange(min=64), default=8192, help="context; a conversation ends where it is full")
@click.option("--max-tokens", type=click.IntRange(min=1), default=256, help="longest answer")
@click.option("--repeats", type=click.IntRange(min=1), default=3, help="pairs of passes")
@click.option("--concurrency", type=click.IntRange(min=1), default=1, help="sessions at once, and lanes")
@click.option("--think", type=click.FloatRange(min=0), default=0.0, help="recorded pauses, scaled; 60 s at most each")
@click.option("--limit", type=click.IntRange(min=1), help="replay so many sessions at most")
@click.option("--system", type=click.Path(path_type=Path, exists=True), help="file with the system prompt")
@click.option("--tools", type=click.Path(path_type=Path, exists=True), help="file with tools, as OpenAI's API has them")
@click.option("--system-bytes", type=click.IntRange(min=0), default=8192, help="of a made-up system prompt")
@click.option("--pool", type=click.IntRange(min=64), help="cells of the attention cache; default: the daemon's")
@click.option("--host-cache", type=click.IntRange(min=0), help="bytes of host memory for pages; default: the daemon's")
@click.option("--threads", type=click.IntRange(min=1), help="default: the daemon's")
@click.option("--gpu-layers", type=int, help="default: the daemon's")
@click.option("--cache-type", type=click.Choice(CACHE_TYPES), help="of keys and values; default: the daemon's")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=600.0, help="s a request may take")
@click.option("--turns/--no-turns", default=True, help="a row for each turn")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of tables")
def main(**options: Any) -> None:
    console = Console(stderr=options["as_json"])
    if not console.is_terminal:
        console.width = 120
    sessions = read_all(options["transcripts"] or (DEFAULT_TRANSCRIPTS,), options["limit"], console)
    if not sessions:
        raise click.ClickException("there is no request in these transcripts")
    config = SupervisorConfig(
        model=options["model"] or ROOT / "models" / "luce-tiny-Q8_0.gguf",
        ctx=options["ctx"], lanes=options["concurrency"], pool=options["pool"], host_cache=options["host_cache"],
        threads=options["threads"], gpu_layers=options["gpu_layers"], cache_type_k=options["cache_type"],
        cache_type_v=options["cache_type"], log_level="error",
    )  # fmt: skip
    setting = Setting(
        system=None if options["system"] is None else options["system"].read_text(),
        tools=read_tools(options["tools"]),
        system_bytes=options["system_bytes"],
    )
    plan = Plan(
        options["max_tokens"], options["repeats"], options["concurrency"], options["think"], options["timeout"]
    )  # fmt: skip
    prepared = prepare(config, sessions, setting, plan.max_tokens)
    try:
        cold, warm = asyncio.run(replay(config, prepared, plan))
    except (StartError, RequestError, TimeoutError) as error:
        raise click.ClickException(str(error)) from error
    conditions = {name: options[name] for name in ("ctx", "max_tokens", "repeats", "concurrency", "think", "pool")}
    report = Report.of(prepared, cold, warm, model=config.model.name, **conditions)
    if options["as_json"]:
        click.echo(json.dumps(report.to_json(), indent=1))
    else:
        print_report(report, console, each_turn=options["turns"])
    if report.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
