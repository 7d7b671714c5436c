"""A command -> its one line. The other direction of command_parser.

A line is read back before it is handed out: whatever the daemon's parser would refuse or understand differently raises
LocalProtocolError here, on the side that made the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from .command_parser import parse_command
from .commands import (
    Cancel,
    Clear,
    Command,
    ConstraintArgs,
    FreeSlot,
    Generate,
    GenerateForm,
    GrammarTrigger,
    ListSlots,
    LoadSlot,
    MemoryArgs,
    MemoryCommand,
    Park,
    Ping,
    PinSpan,
    Quit,
    SamplingArgs,
    SaveSlot,
    Snapshot,
    SnapshotPoint,
    Status,
    ThinSnapshot,
    TriggerKind,
    Unpark,
    Weights,
)
from .errors import CommandError, LocalProtocolError
from .percent import percent_encode
from .tokens import MAX_INT32

Pair = tuple[str, str]


def _real(value: float) -> str:
    return repr(float(value))


def _flag(value: bool) -> str:
    return str(int(value))


def _list(items: Iterable[Any], write: Callable[[Any], str] = str, separator: str = ",") -> str:
    return separator.join(map(write, items))


def _text(text: str) -> str:
    """A leading @ would name a file."""
    encoded = percent_encode(text)
    return "%40" + encoded[1:] if encoded.startswith("@") else encoded


def _path(path: str) -> str:
    return "@" + percent_encode(path)


def _trigger(trigger: GrammarTrigger) -> str:
    if trigger.kind is TriggerKind.TOKEN:
        return f"token:{trigger.token}"
    return f"{trigger.kind}:" + percent_encode(trigger.text).replace(",", "%2C")


def _snapshot(point: SnapshotPoint) -> str:
    return f"{point.position}:{point.slot}"


def _pin(span: PinSpan) -> str:
    return f"{span.begin}:{span.end}"


def _biased_token(pair: tuple[int, float]) -> str:
    return f"{pair[0]}:{_real(pair[1])}"


def _given(key: str, value: Any, write: Callable[[Any], str] = str) -> list[Pair]:
    """The pair, unless the field is as it is when the line does not name it."""
    return [] if value is None or value == () or value is False else [(key, write(value))]


def _sampling_pairs(sampling: SamplingArgs) -> list[Pair]:
    return [
        *_given("temp", sampling.temperature, _real),
        *_given("top_k", sampling.top_k),
        *_given("top_p", sampling.top_p, _real),
        *_given("min_p", sampling.min_p, _real),
        *_given("repeat", sampling.repeat_penalty, _real),
        *_given("presence", sampling.presence_penalty, _real),
        *_given("frequency", sampling.frequency_penalty, _real),
        *_given("seed", sampling.seed),
        *_given("logit_bias", sampling.logit_bias, lambda pairs: _list(pairs, _biased_token)),
    ]


def _constraint_pairs(constraint: ConstraintArgs) -> list[Pair]:
    return [
        *_given("grammar", constraint.grammar, _text),
        *_given("grammar", constraint.grammar_path, _path),
        *_given("grammar_lazy", constraint.grammar_lazy, _flag),
        *_given("triggers", constraint.triggers, lambda triggers: _list(triggers, _trigger)),
        *_given("preserved", constraint.preserved, _list),
        *_given("gen_prompt", constraint.generation_prompt, percent_encode),
        *_given("think_budget", constraint.think_budget),
        *_given("think_start", constraint.think_start, _list),
        *_given("think_end", constraint.think_end, lambda ends: _list(ends, _list, "|")),
        *_given("think_message", constraint.think_message, _list),
    ]


def _memory_pairs(memory: MemoryArgs) -> list[Pair]:
    return [
        *_given("restore", memory.restore_slot),
        *_given("restore_at", memory.restore_at),
        *_given("chain", memory.chain, _list),
        *([] if memory.reuse is None else [("reuse", _flag(memory.reuse))]),
        *_given("snap", memory.snapshots, lambda points: _list(points, _snapshot)),
        *_given("marks", memory.marks, _list),
        *_given("pin", memory.pins, lambda spans: _list(spans, _pin)),
    ]


def _line(verb: str, pairs: Iterable[Pair]) -> str:
    return " ".join([verb, *(f"{key}={value}" for key, value in pairs)])


def _named_line(command: Generate) -> str:
    pairs = [
        ("id", str(command.id)),
        ("n", str(command.n_generate)),
        *_sampling_pairs(command.sampling),
        *_given("stop", command.stop_tokens, _list),
        *_given("ignore_eos", command.ignore_eos, _flag),
        *_given("logprobs", command.n_logprobs or None),
        *_constraint_pairs(command.constraint),
        *_memory_pairs(command.memory),
        *_given("generated", command.n_generated_before or None),
        *_given("priority", command.priority or None),
        *_given("prompt", command.prompt, _list),
        *_given("prompt", command.prompt_path, _path),
    ]
    return _line("gen", pairs)


def _samp(sampling: SamplingArgs) -> str:
    items = [sampling.temperature, sampling.top_p, sampling.top_k, sampling.repeat_penalty]
    if None in items:
        raise LocalProtocolError("a positional command has either no sampling or temperature, top_p, top_k and repeat")
    seed = [] if sampling.seed is None else [sampling.seed]
    return "samp=" + _list([*items, *seed], repr)


def _positional_line(command: Generate) -> str:
    memory = command.memory
    words = [command.prompt_path or "", str(command.n_generate)]
    if memory.chain:
        words = ["RESTORE_CHAIN", str(memory.restore_slot), _list(memory.chain), *words]
    elif memory.restore_slot is not None:
        words = ["RESTORE", str(memory.restore_slot), *words]
    if command.sampling != SamplingArgs():
        words.append(_samp(command.sampling))
    if memory.snapshots:
        words.append("snap=" + _list(memory.snapshots, _snapshot))
    return " ".join(words)


def _generate_line(command: Generate) -> str:
    match command.form:
        case GenerateForm.NAMED:
            return _named_line(command)
        case GenerateForm.POSITIONAL:
            return _positional_line(command)
        case GenerateForm.FILE:
            return f"generate {command.prompt_path} {command.n_generate} {command.output_path}"


def _words_line(command: MemoryCommand) -> str:
    """Without an id. What has no place in these forms (`of`) is missed when the line is read back."""
    match command:
        case Snapshot():
            return f"SNAPSHOT {command.slot}"
        case ThinSnapshot():
            return f"SNAPSHOT_THIN {command.slot} {command.begin} {command.end}"
        case FreeSlot():
            return f"FREE_SNAPSHOT {command.slot}"
        case ListSlots():
            return "LIST_SLOTS"
        case SaveSlot():
            return f"SAVE {command.slot} {command.path}"
        case LoadSlot():
            return f"LOAD {command.slot} {command.path}"
        case Park():
            return f"park {command.what}"
        case Unpark():
            return f"unpark {command.what}"
        case Clear():
            return "CLEAR disk" if command.disk else "CLEAR"


def _memory_line(command: MemoryCommand) -> str:
    pairs = [("id", str(command.id))]
    match command:
        case Snapshot():
            return _line("snapshot", [*pairs, ("slot", str(command.slot)), *_given("of", command.of)])
        case ThinSnapshot():
            span = [("slot", str(command.slot)), ("from", str(command.begin)), ("to", str(command.end))]
            return _line("thin", [*pairs, *span, *_given("of", command.of)])
        case FreeSlot():
            return _line("free", [*pairs, ("slot", str(command.slot))])
        case ListSlots():
            return _line("list", pairs)
        case SaveSlot() | LoadSlot():
            verb = "save" if isinstance(command, SaveSlot) else "load"
            return _line(verb, [*pairs, ("slot", str(command.slot)), ("path", percent_encode(command.path))])
        case Park() | Unpark():
            verb = "park" if isinstance(command, Park) else "unpark"
            return _line(verb, [*pairs, *([] if command.what is Weights.TARGET else [("what", str(command.what))])])
        case Clear():
            return _line("clear", [*pairs, *_given("disk", command.disk, _flag)])


def _line_of(command: Command) -> str:
    match command:
        case Generate():
            return _generate_line(command)
        case Cancel(id=request_id):
            return f"cancel id={request_id}"
        case Status():
            return _line("status", [*_given("id", command.id), *_given("check", command.check, _flag)])
        case Ping(word=word):
            return f"ping {word}".rstrip(" ")
        case Quit():
            return "quit"
        case _:
            return _words_line(command) if command.id is None else _memory_line(command)


def _encode(line: str) -> bytes:
    try:
        return line.encode("utf-8")
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"not representable as UTF-8: {error}") from None


def _shortened(command: Generate) -> Generate:
    """As far as it has to be read back. Of a long prompt that is the first id, once its range is known to be right: it
    may have millions. Of a long grammar it is the first character, where its coding leaves no doubt."""
    if len(command.prompt) > 1:
        if min(command.prompt) < 0 or max(command.prompt) > MAX_INT32:
            raise LocalProtocolError("a token id of the prompt is outside 0 .. 2^31-1")
        command = replace(command, prompt=command.prompt[:1])
    grammar = command.constraint.grammar
    if grammar is not None and len(grammar) > 1 and _is_plain_text(grammar):
        command = replace(command, constraint=replace(command.constraint, grammar=grammar[0]))
    return command


def _is_plain_text(text: str) -> bool:
    """Whether it comes back from percent-encoding as it was, and the daemon takes it."""
    try:
        return b"\0" not in text.encode("utf-8")
    except UnicodeEncodeError:
        return False


def _check_reads_back(command: Command) -> None:
    if isinstance(command, Generate):
        command = _shortened(command)
    line = _encode(_line_of(command))
    try:
        understood = parse_command(line)
    except CommandError as error:
        raise LocalProtocolError(f"the daemon would refuse this command: {error.text}") from None
    if b"\n" in line or line.endswith(b"\r") or understood != command:
        raise LocalProtocolError("the daemon would understand this command differently")


def format_command(command: Command) -> bytes:
    """The line with its `\\n`. Raises LocalProtocolError if the protocol cannot say it."""
    _check_reads_back(command)
    return _encode(_line_of(command)) + b"\n"
