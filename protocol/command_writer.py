"""A command -> its one line. What the daemon would refuse, or understand differently, raises LocalProtocolError here,
on the side that made the mistake.

A form that has no place for something that the command holds cannot say it, and is refused too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from operator import attrgetter
from typing import Any, get_args

from .command_table import RECORDS, VERBS, Key
from .command_values import WRITERS, write_count, write_file
from .commands import (
    MAX_FILES,
    AdoptFiles,
    Cancel,
    Command,
    Compress,
    Embed,
    FreeScorer,
    Generate,
    GenerateForm,
    MemoryArgs,
    Ping,
    ProbeText,
    Quit,
    Status,
    ThinSnapshot,
)
from .errors import LocalProtocolError
from .records import SamplingArgs
from .scalar_values import RefusedError

_NO_SAMPLING = SamplingArgs()
_BLANKS = " \t"
_CONTROL_OR_BLANK = re.compile(r"[\x00-\x20\x7f]")


def _unset(command: type) -> Any:
    """A command as it is where the line names nothing but what it must; that counts as said in any case."""
    needed = (entry for entry in fields(command) if entry.default is MISSING and entry.default_factory is MISSING)
    return command(**{entry.name: None for entry in needed})


_UNSET: dict[type, Any] = {command: _unset(command) for command in get_args(Command)}
_BY_NAME = {verb.command: verb for verb in reversed(VERBS) if verb.keys is not None}
_BY_PLACE = {verb.command: verb for verb in VERBS if verb.places is not None and verb.command != "Generate"}
_SAMP = {"temperature": "not_negative", "top_p": "positive_probability", "top_k": "count", "repeat_penalty": "positive"}


def _leaves(value: Any, prefix: str = "") -> Iterator[str]:
    """The paths of all attributes that are no dataclass themselves."""
    for field in fields(value):
        item = getattr(value, field.name)
        if is_dataclass(item):
            yield from _leaves(item, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


_GETTERS = {command: {path: attrgetter(path) for path in _leaves(unset)} for command, unset in _UNSET.items()}


def _is_set(command: Command, path: str) -> bool:
    get = _GETTERS[type(command)][path]
    return bool(get(command) != get(_UNSET[type(command)]))


def _check_says_all(command: Command, said: Iterable[str]) -> None:
    for path in _GETTERS[type(command)].keys() - {*said, "form"}:
        if _is_set(command, path):
            raise RefusedError(f"this form of the command cannot say {path}")


class _Field:
    """Of a kind of command."""

    def __init__(self, command: type, path: str) -> None:
        self.path = path
        self.get = _GETTERS[command][path]
        self.unset = self.get(_UNSET[command])


class _NamedForm:
    """A kind of command as words that have names: looked up once for all its lines."""

    def __init__(self, command: type) -> None:
        verb = _BY_NAME[command.__name__]
        self.verb = verb.verb
        self.words = [
            (key, _Field(command, key.field), None if key.or_file is None else _Field(command, key.or_file))
            for key in verb.keys or ()
        ]
        """With the field of a file that may stand in the other's place."""
        said = {path for key in verb.keys or () for path in (key.field, key.or_file)}
        self.unsaid = [_Field(command, path) for path in _GETTERS[command].keys() - {*said, "form"}]


_NAMED_FORMS = {command: _NamedForm(command) for command in _UNSET if command.__name__ in _BY_NAME}


def _check_generate(command: Generate) -> None:
    constraint, memory = command.constraint, command.memory
    has_grammar = constraint.grammar is not None or constraint.grammar_path is not None
    if constraint.grammar_lazy and not (has_grammar and constraint.triggers):
        raise RefusedError("grammar_lazy=1 needs grammar= and triggers=")
    if constraint.think_budget is not None and not (constraint.think_start and constraint.think_end):
        raise RefusedError("think_budget= needs think_start= and think_end=")
    if memory.restore_slot is None and (memory.restore_at is not None or memory.chain):
        raise RefusedError("restore_at= and chain= need restore=")
    if command.prompt_logprobs_from and command.n_prompt_logprobs is None:
        raise RefusedError("prompt_logprobs_from= needs prompt_logprobs=")
    if command.n_prompt_logprobs is not None and memory.restore_slot is not None:
        raise RefusedError("prompt_logprobs= is not for restore=")
    _check_salt(memory)


def _check_salt(salted: MemoryArgs | ProbeText) -> None:
    if salted.salt is None and salted.salt_from is not None:
        raise RefusedError("salt_from= needs salt=")


def _written(key: Key, field: _Field, file: _Field | None, command: Command) -> str | None:
    """The word, unless the field is as it is when the line does not name it."""
    value, write = field.get(command), WRITERS[key.value]
    is_set = value != field.unset
    if file is not None and (path := file.get(command)) != file.unset:
        if is_set:
            raise RefusedError(f"{key.key}= is given twice")
        value, write, is_set = path, write_file, True
    if not key.required and not is_set:
        return None
    try:
        return f"{key.key}={write(value)}"
    except RefusedError as refusal:
        raise RefusedError(f"{key.key}=: {refusal.text}") from None


def _named_line(command: Command) -> str:
    form = _NAMED_FORMS[type(command)]
    for field in form.unsaid:
        if field.get(command) != field.unset:
            raise RefusedError(f"this form of the command cannot say {field.path}")
    words = (_written(*word, command) for word in form.words)
    return " ".join([form.verb, *(word for word in words if word is not None)])


def _path(path: str | None) -> str:
    """A path by its place is taken as it is written, without the blanks around it."""
    if not path or path.strip(_BLANKS) != path:
        raise RefusedError("a path is missing, or begins or ends with a blank")
    return path


def _placed_line(command: Command) -> str:
    verb = _BY_PLACE[type(command).__name__]
    fields_of = {key.key: key.field for key in _BY_NAME[type(command).__name__].keys or ()}
    places = verb.places or ()
    _check_says_all(command, [fields_of[place] for place in places])
    words = [verb.verb]
    for place in places:
        value = _GETTERS[type(command)][fields_of[place]](command)
        match place:
            case "path":
                words.append(_path(value))
            case "disk":
                words += ["disk"] if value else []
            case "what":
                words.append(str(value))
            case _:
                words.append(write_count(value))
    return " ".join(words)


def _samp(sampling: SamplingArgs) -> str:
    items = [(getattr(sampling, field), WRITERS[value]) for field, value in _SAMP.items()]
    if any(item is None for item, _ in items):
        raise RefusedError("a positional command has either no sampling or temperature, top_p, top_k and repeat")
    if sampling.seed is not None:
        items.append((sampling.seed, WRITERS["uint64"]))
    return "samp=" + ",".join(write(item) for item, write in items)


def _positional_line(command: Generate) -> str:
    sampling = [f"sampling.{field}" for field in (*_SAMP, "seed")]
    memory = ["memory.restore_slot", "memory.chain", "memory.snapshots"]
    _check_says_all(command, ["prompt_path", "n_generate", *sampling, *memory])
    words = [_path(command.prompt_path), write_count(command.n_generate)]
    slot, chain = command.memory.restore_slot, command.memory.chain
    if slot is not None:
        chained = [WRITERS["slots"](chain)] if chain else []
        words = ["RESTORE_CHAIN" if chain else "RESTORE", write_count(slot), *chained, *words]
    elif words[0].replace("\t", " ").partition(" ")[0] in {verb.verb for verb in VERBS}:
        raise RefusedError("the path begins with a verb")
    if command.sampling != SamplingArgs():
        words.append(_samp(command.sampling))
    if command.memory.snapshots:
        words.append("snap=" + WRITERS["snapshots"](command.memory.snapshots))
    return " ".join(words)


def _file_line(command: Generate) -> str:
    _check_says_all(command, ["prompt_path", "output_path", "n_generate"])
    paths = [_path(command.prompt_path), _path(command.output_path)]
    if any(blank in path for path in paths for blank in _BLANKS):
        raise RefusedError("the paths of generate hold no blanks")
    return f"generate {paths[0]} {write_count(command.n_generate)} {paths[1]}"


def _compress_line(command: Compress) -> str:
    _check_says_all(command, ["prompt_path", "share", "scorer"])
    WRITERS["positive_probability"](command.share)
    keep_x1000 = round(command.share * 1000)
    if keep_x1000 / 1000 != command.share:
        raise RefusedError("without an id the share is a multiple of 1/1000")
    words = [_path(command.prompt_path), str(keep_x1000)]
    if command.scorer is not None:
        words.append(_path(command.scorer))
    if any(blank in word for word in words for blank in _BLANKS):
        raise RefusedError("the paths of compress hold no blanks")
    if "=" in words[0] or command.scorer == "nopark":
        raise RefusedError("a path of compress looks like another of its words")
    return " ".join(["compress", *words])


def _ping_line(command: Ping) -> str:
    if _CONTROL_OR_BLANK.search(command.word):
        raise RefusedError("ping takes one word without control characters")
    return f"ping {command.word}".rstrip(" ")


def _line_of(command: Command) -> str:
    match command:
        case Generate():
            _check_generate(command)
            if command.form is GenerateForm.NAMED:
                return _named_line(command)
            return _positional_line(command) if command.form is GenerateForm.POSITIONAL else _file_line(command)
        case Ping():
            return _ping_line(command)
        case ThinSnapshot(begin=begin, end=end) if begin >= end:
            raise RefusedError("from must be before to")
        case ProbeText():
            _check_salt(command)
            return _named_line(command)
        case AdoptFiles(files=files) if len(files) > MAX_FILES:
            raise RefusedError(f"files= has more than {MAX_FILES} names")
        case FreeScorer():
            return "free drafter"
        case Compress(id=None):
            return _compress_line(command)
        case Compress() | Embed() | Cancel() | Status() | Quit():
            return _named_line(command)
        case _:
            has_place = command.id is None and type(command).__name__ in _BY_PLACE
            return _placed_line(command) if has_place else _named_line(command)


def check_sampling(sampling: SamplingArgs) -> None:
    """Raises LocalProtocolError if a line cannot say it."""
    for key in RECORDS["SamplingArgs"]:
        value = getattr(sampling, key.field)
        try:
            if value != getattr(_NO_SAMPLING, key.field):
                WRITERS[key.value](value)
        except RefusedError as refusal:
            raise LocalProtocolError(f"the daemon would refuse {key.key}=: it {refusal.text}") from None


def format_command(command: Command) -> bytes:
    """The line with its `\\n`. Raises LocalProtocolError if the protocol cannot say it."""
    try:
        line = _line_of(command).encode("utf-8")
    except RefusedError as refusal:
        raise LocalProtocolError(f"the daemon would refuse this command: {refusal.text}") from None
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"not representable as UTF-8: {error}") from None
    if b"\n" in line or b"\0" in line or line.endswith(b"\r"):
        raise LocalProtocolError("the command holds a line end or a NUL byte")
    return line + b"\n"
