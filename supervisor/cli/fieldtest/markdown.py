"""A field report as a page of Markdown, and several of them as one table. Pure; measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from luce.supervisor.cli.fieldtest.report import Drafted, FieldReport, Turn
from luce.supervisor.cli.numbers import format_bytes

_BUSY = 0.2  # load average for each processor


def page(report: FieldReport) -> str:
    machine, model = report.machine, report.model
    gpus = "; ".join(f"{gpu.name}, {format_bytes(gpu.memory_bytes)}" for gpu in machine.gpus) or "none"
    weights = ", ".join(f"{name} {share:.0%}" for name, share in list(model.weights.items())[:3])
    load = f"{machine.load:.1f} of each processor's time before it began"
    head = [
        (
            "model",
            f"{model.file}: {model.architecture}, {model.n_parameters:,} parameters, {format_bytes(model.file_bytes)}",
        ),
        ("weights", weights),
        ("header's sha256", model.header_sha256),
        ("GPU", gpus + (f", driver {machine.driver}" if machine.driver else "")),
        ("processor", f"{machine.cpu}, {machine.n_cpus} threads, {format_bytes(machine.memory_bytes)}"),
        ("system", f"{machine.system}, {machine.architecture}; other work: {load}"),
        ("luce-daemon", f"{report.engine.version}, llama.cpp {report.engine.llama_cpp}"),
        ("options", " ".join(report.engine.options) or "none"),
        ("engine", ", ".join(f"{name} {value}" for name, value in report.engine.said.items())),
        ("measured", f"{report.day}, {report.minutes:g} minutes, {report.volume} volume"),
        *(("note", note) for note in report.notes),
        *((name, f"{part.state}: {part.why}") for name, part in report.parts.items() if part.why),
    ]
    parts = [
        f"# {model.file} on {_device(report)}",
        _table(("", ""), head),
        *_plan(report),
        *_exactness(report),
        *_service(report),
        *_agent(report),
        *_drafts(report),
    ]
    return "\n\n".join(parts) + "\n"


def overview(reports: Iterable[tuple[str, FieldReport]]) -> str:
    """One row for each; a row leads to its page, of this name."""
    heads = (
        "model",
        "on",
        "load",
        "prompt/s",
        "decoded/s",
        "at once/s",
        "agent reads",
        "first token",
        "drafts",
        "exact",
    )
    rows = []
    for name, report in reports:
        service, turns = report.service, report.agent
        deepest = service.depths[-1] if service.depths else None
        widest = max(service.lanes, key=lambda lanes: lanes.n, default=None)
        rows.append(
            (
                f"[{report.model.file}]({name})",
                ", ".join([_device(report), *_doubts(report)]),
                f"{median(service.load_s):.1f} s" if service.load_s else "",
                f"{deepest.read_per_s:,.0f} at {deepest.depth:,}" if deepest else "",
                f"{deepest.decoded_per_s:,.1f}" if deepest and deepest.decoded_per_s else "",
                f"{widest.tokens_per_s:,.0f} in {widest.n}" if widest else "",
                _times_ideal(turns),
                _first_token(turns),
                ", ".join(f"{row.kind} {_steady_ratio(row):.2f}" for row in report.drafts),
                _exact(report),
            )
        )
    return _table(heads, rows)


def _device(report: FieldReport) -> str:
    machine = report.machine
    names = [gpu.name for gpu in machine.gpus] or [f"{machine.cpu}, {machine.n_cpus} threads"]
    return names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"


def _doubts(report: FieldReport) -> list[str]:
    said = {"busy with other work": report.machine.load > _BUSY, "cut": bool(report.ended)}
    return [word for word, is_so in said.items() if is_so]


def _plan(report: FieldReport) -> list[str]:
    plan = report.engine.plan
    if plan is None:
        return []
    rows = [(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else value) for name, value in plan.items()]
    return ["## What lies where (luce inspect --plan)", _table(("", ""), rows)]


def _exactness(report: FieldReport) -> list[str]:
    if not report.exactness:
        return []
    rows = [
        (row.check, row.case, row.verdict, f"{row.n_tokens:,}" if row.n_tokens else "",
         "" if row.logprob_move is None else f"{row.logprob_move:.3g}", row.told)
        for row in report.exactness
    ]  # fmt: skip
    return [
        "## Exactness: each way to an answer against the same read from the start, alone",
        _table(("check", "case", "", "tokens", "logprobs moved", ""), rows),
    ]


def _service(report: FieldReport) -> list[str]:
    service = report.service
    facts = []
    if service.load_s:
        facts.append(("load to ready, median", f"{median(service.load_s):.1f} s of {len(service.load_s)} starts"))
    if service.process_bytes is not None:
        facts.append(("memory of the processes", format_bytes(service.process_bytes)))
    if service.gpu_bytes is not None:
        facts.append(("memory of the GPUs", format_bytes(service.gpu_bytes)))
    facts += [
        (f"{lanes.n} at once, answers of {lanes.n_answer}", f"{lanes.tokens_per_s:,.1f} tokens/s")
        for lanes in service.lanes
    ]
    parts = [_table(("", ""), facts)] if facts else []
    if service.depths:
        rows = [
            (f"{row.depth:,}", f"{row.n_prompt:,}", f"{row.read_per_s:,.0f}", _time(row.cold_first_token_s),
             _time(row.warm_first_token_s), f"{row.decoded_per_s:,.1f}" if row.decoded_per_s is not None else "")
            for row in service.depths
        ]  # fmt: skip
        heads = ("depth", "prompt", "read/s", "first token, cold", "next turn, warm", "decoded/s")
        parts.append(_table(heads, rows))
    return ["## Service", *parts] if parts else []


def _agent(report: FieldReport) -> list[str]:
    turns = report.agent
    if not turns:
        return []
    n_calls = sum(turn.n_calls for turn in turns)
    n_formed = sum(turn.is_well_formed for turn in turns)
    rows = [
        ("turns, tokens of the last prompt", f"{len(turns)}, {turns[-1].n_prompt:,}"),
        ("tokens read behind the first turn, against those that are new", _times_ideal(turns)),
        ("first token of the last turn, warm / cold", _first_token(turns)),
        ("tool calls; answers without a broken call", f"{n_calls}; {n_formed} of {len(turns)}"),
    ]
    return ["## An agent's loop", _table(("", ""), [row for row in rows if row[1]])]


def _times_ideal(turns: Sequence[Turn]) -> str:
    n_read, n_new = (sum(getattr(turn, name) for turn in turns[1:]) for name in ("n_read", "n_new"))
    return f"{n_read:,} / {n_new:,} ({n_read / n_new:.2f})" if n_new else ""


def _first_token(turns: Sequence[Turn]) -> str:
    last = turns[-1] if turns else None
    if last is None or last.cold_first_token_s is None:
        return ""
    return f"{_time(last.first_token_s)} / {_time(last.cold_first_token_s)}"


def _drafts(report: FieldReport) -> list[str]:
    if not report.drafts:
        return []
    rows = [
        (row.kind, f"{row.drafted_per_s:,.1f}", f"{row.plain_per_s:,.1f}",
         _ratio(row.ratio), _ratio(row.busy_ratio), f"{row.n_accepted:,} of {row.n_drafted:,}",
         "same" if row.is_same_text else "differs")
        for row in report.drafts
    ]  # fmt: skip
    heads = ("kind of text", "with drafts/s", "without/s", "times faster", "by processor time", "accepted", "text")
    return ["## Drafts", _table(heads, rows)]


def _ratio(spread: Sequence[float] | None) -> str:
    return "" if spread is None else f"{spread[0]:.2f} ({spread[1]:.2f} .. {spread[2]:.2f})"


def _steady_ratio(row: Drafted) -> float:
    """By processor time, where that says something."""
    return (row.busy_ratio or row.ratio)[0]


def _exact(report: FieldReport) -> str:
    verdicts = [row.verdict for row in report.exactness]
    counts = [(word, verdicts.count(word)) for word in ("passed", "failed")]
    return ", ".join(f"{n} {word}" for word, n in counts if n)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
