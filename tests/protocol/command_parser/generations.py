"""The forms that ask for tokens: `<path> <n_gen> …` and with a slot `RESTORE …` and `RESTORE_CHAIN …`,
`generate <in> <n_gen> <out>`, `gen key=value …`, and `compress` in both its forms.

One table says which keys `gen` has, another what may follow a positional command. What they mean to the engine is not
known here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from luce.protocol.command_table import RECORDS
from luce.protocol.commands import (
    MAX_LOGPROBS,
    Compress,
    ConstraintArgs,
    Generate,
    GenerateForm,
    MemoryArgs,
    Reading,
    ReadingArgs,
)
from luce.protocol.errors import ErrorCode
from luce.protocol.records import SamplingArgs
from luce.protocol.scalar_values import (
    MAX_UINT64,
    MIN_INT32,
    RefusedError,
    looks_like_integer,
    parse_any_real,
    parse_count,
    parse_integer,
    parse_not_negative,
    parse_positive,
    parse_positive_probability,
    parse_probability,
    parse_text,
    shortened,
)
from luce.protocol.tokens import MAX_INT32

from .lists import (
    parse_images,
    parse_logit_bias,
    parse_marks,
    parse_pins,
    parse_samp,
    parse_samplers,
    parse_slots,
    parse_snapshots,
    parse_texts,
    parse_token_alternatives,
    parse_tokens,
    parse_triggers,
)
from .scalars import parse_flag, parse_placed_count

_WORD = re.compile(rb"[^ \t]+")
_BLANKS = b" \t"
_POSITIONAL_OPTIONS = (b"samp=", b"snap=")

# Which part of the command a key belongs to ("" is the command itself), and what its value sets there.
Fields = dict[str, Any]
Key = tuple[str, Callable[[bytes], Fields]]


def words_of(text: bytes) -> Iterator[bytes]:
    return (match.group() for match in _WORD.finditer(text))


def read_named_args(arguments: bytes, keys: Mapping[bytes, Key], required: tuple[bytes, ...]) -> dict[str, Fields]:
    """`key=value …` in any order, each key once: the fields that they set, by part."""
    parts: dict[str, Fields] = {}
    seen: set[bytes] = set()
    for word in words_of(arguments):
        name, equals, value = word.partition(b"=")
        if not equals or not name:
            raise RefusedError(f"'{shortened(word)}' is not key=value")
        if name not in keys:
            raise RefusedError(f"unknown key {shortened(name)}=")
        if name in seen:
            raise RefusedError(f"{name.decode()}= is given twice")
        seen.add(name)
        part, read = keys[name]
        try:
            parts.setdefault(part, {}).update(read(value))
        except RefusedError as refusal:
            raise RefusedError(f"{shortened(word)}: {refusal.text}", refusal.code) from None
    for name in required:
        if name not in seen:
            raise RefusedError(f"{name.decode()}= is missing")
    return parts


def sets(field: str, parse: Callable[[bytes], Any]) -> Callable[[bytes], Fields]:
    return lambda value: {field: parse(value)}


def _parse_path(value: bytes) -> str:
    """A value that begins with a plain `@` names a file; `%40` begins a text."""
    if len(value) == 1:
        raise RefusedError("has no path after the @")
    return parse_text(value[1:])


def _read_prompt(value: bytes) -> Fields:
    if not value:
        raise RefusedError("a prompt needs at least one token", ErrorCode.EMPTY_PROMPT)
    if value.startswith(b"@"):
        return {"prompt_path": _parse_path(value)}
    return {"prompt": parse_tokens(value)}


def _read_grammar(value: bytes) -> Fields:
    if not value:
        raise RefusedError("is empty: leave it out for no grammar")
    if value.startswith(b"@"):
        return {"grammar_path": _parse_path(value)}
    return {"grammar": parse_text(value)}


_READINGS = {b"full": Reading.FULL, b"sparse": Reading.SPARSE, b"auto": Reading.AUTO}


def _parse_reading(value: bytes) -> Reading:
    if value not in _READINGS:
        raise RefusedError("must be full, sparse or auto")
    return _READINGS[value]


_SAMPLING: dict[str, Callable[[bytes], Any]] = {
    "count": parse_count,
    "logit_bias": parse_logit_bias,
    "not_negative": parse_not_negative,
    "positive": parse_positive,
    "positive_probability": parse_positive_probability,
    "probability": parse_probability,
    "real": parse_any_real,
    "samplers": parse_samplers,
    "texts": parse_texts,
    "uint64": lambda value: parse_integer(value, 0, MAX_UINT64),
}

NAMED_KEYS: dict[bytes, Key] = {
    b"id": ("", sets("id", parse_count)),
    b"n": ("", sets("n_generate", parse_count)),
    b"prompt": ("", _read_prompt),
    **{key.key.encode(): ("sampling", sets(key.field, _SAMPLING[key.value])) for key in RECORDS["SamplingArgs"]},
    b"stop": ("", sets("stop_tokens", parse_tokens)),
    b"min_tokens": ("", sets("n_least", parse_count)),
    b"ignore_eos": ("", sets("ignore_eos", parse_flag)),
    b"prompt_logprobs": ("", sets("n_prompt_logprobs", lambda value: parse_integer(value, 0, MAX_LOGPROBS))),
    b"prompt_logprobs_from": ("", sets("prompt_logprobs_from", parse_count)),
    b"logprobs": ("", sets("n_logprobs", lambda value: parse_integer(value, 0, MAX_LOGPROBS))),
    b"grammar": ("constraint", _read_grammar),
    b"grammar_lazy": ("constraint", sets("grammar_lazy", parse_flag)),
    b"triggers": ("constraint", sets("triggers", parse_triggers)),
    b"preserved": ("constraint", sets("preserved", parse_tokens)),
    b"gen_prompt": ("constraint", sets("generation_prompt", parse_text)),
    b"think_budget": ("constraint", sets("think_budget", parse_count)),
    b"think_start": ("constraint", sets("think_start", parse_tokens)),
    b"think_end": ("constraint", sets("think_end", parse_token_alternatives)),
    b"think_message": ("constraint", sets("think_message", parse_tokens)),
    b"restore": ("memory", sets("restore_slot", parse_count)),
    b"restore_at": ("memory", sets("restore_at", parse_count)),
    b"chain": ("memory", sets("chain", parse_slots)),
    b"reuse": ("memory", sets("reuse", parse_flag)),
    b"snap": ("memory", sets("snapshots", parse_snapshots)),
    b"marks": ("memory", sets("marks", parse_marks)),
    b"turn": ("memory", sets("turn", parse_count)),
    b"salt": ("memory", sets("salt", lambda value: parse_integer(value, 0, MAX_UINT64))),
    b"salt_from": ("memory", sets("salt_from", parse_count)),
    b"pin": ("memory", sets("pins", parse_pins)),
    b"prefill": ("reading", sets("prefill", _parse_reading)),
    b"prefill_keep": ("reading", sets("share", parse_positive_probability)),
    b"prefill_from": ("reading", sets("n_from", parse_count)),
    b"keep": ("reading", sets("keep", parse_pins)),
    b"blocks": ("reading", sets("blocks", parse_pins)),
    b"images": ("", sets("images", parse_images)),
    b"generated": ("", sets("n_generated_before", parse_count)),
    b"priority": ("", sets("priority", lambda value: parse_integer(value, MIN_INT32, MAX_INT32))),
}

_COMPRESS_KEYS: dict[bytes, Key] = {
    b"id": ("", sets("id", parse_count)),
    b"share": ("", sets("share", parse_positive_probability)),
    b"keep": ("", sets("keep", parse_pins)),
    b"blocks": ("", sets("blocks", parse_pins)),
    b"prompt": ("", _read_prompt),
}

_POSITIONAL_KEYS: dict[bytes, Key] = {
    b"samp": ("", sets("sampling", parse_samp)),
    b"snap": ("memory", sets("snapshots", parse_snapshots)),
}


def _check_constraint(constraint: ConstraintArgs) -> None:
    has_grammar = constraint.grammar is not None or constraint.grammar_path is not None
    if constraint.grammar_lazy and not (has_grammar and constraint.triggers):
        raise RefusedError("grammar_lazy=1 needs grammar= and triggers=")
    if constraint.think_budget is not None and not (constraint.think_start and constraint.think_end):
        raise RefusedError("think_budget= needs think_start= and think_end=")


def _check_memory(memory: MemoryArgs) -> None:
    if memory.restore_at is not None and memory.restore_slot is None:
        raise RefusedError("restore_at= needs restore=")
    if memory.salt_from is not None and memory.salt is None:
        raise RefusedError("salt_from= needs salt=")
    if memory.chain and memory.restore_slot is None:
        raise RefusedError("chain= needs restore=")


def _check_prompt_logprobs(command: Generate) -> None:
    if command.prompt_logprobs_from and command.n_prompt_logprobs is None:
        raise RefusedError("prompt_logprobs_from= needs prompt_logprobs=")
    if command.n_prompt_logprobs is not None and command.memory.restore_slot is not None:
        raise RefusedError("prompt_logprobs= is not for restore=")


def _without_options(line: bytes) -> bytes:
    """The line up to its last word that is no trailing option. The first word always stays.

    Words are met from the end in the reversed line, so that a long line is read once.
    """
    end = len(line)
    for match in _WORD.finditer(line[::-1]):
        end = len(line) - match.start()
        if not line.startswith(_POSITIONAL_OPTIONS, len(line) - match.end(), end):
            break
    return line[:end]


def _split_last_word(text: bytes) -> tuple[bytes, bytes]:
    blank = max(text.rfind(b" "), text.rfind(b"\t"))
    return text[: max(blank, 0)].rstrip(_BLANKS), text[blank + 1 :]


def is_positional_generate(line: bytes) -> bool:
    """Whether a line whose first word is no verb is a positional generation."""
    if b"/" in next(words_of(line), b""):
        return True
    head, last = _split_last_word(_without_options(line.strip(_BLANKS)))
    return bool(head) and looks_like_integer(last)


def parse_positional_generate(line: bytes) -> Generate:
    line = line.strip(_BLANKS)
    path_and_count = _without_options(line)
    options = read_named_args(line[len(path_and_count) :], _POSITIONAL_KEYS, required=())
    path, count = _split_last_word(path_and_count)
    if not path:
        raise RefusedError("a path and n_gen are needed")
    return Generate(
        form=GenerateForm.POSITIONAL,
        prompt_path=path.decode("utf-8"),
        n_generate=parse_placed_count("n_gen", count),
        memory=MemoryArgs(**options.get("memory", {})),
        **options.get("", {}),
    )


def next_word(text: bytes) -> tuple[bytes | None, bytes]:
    """The first word, and what follows it."""
    match = _WORD.search(text)
    return (None, b"") if match is None else (match.group(), text[match.end() :])


def parse_restore(arguments: bytes) -> Generate:
    word, rest = next_word(arguments)
    slot = parse_placed_count("slot", word)
    command = parse_positional_generate(rest)
    return replace(command, memory=replace(command.memory, restore_slot=slot))


def parse_restore_chain(arguments: bytes) -> Generate:
    word, rest = next_word(arguments)
    slot = parse_placed_count("slot", word)
    thin_slots, rest = next_word(rest)
    if thin_slots is None:
        raise RefusedError("the thin slots are missing")
    try:
        chain = parse_slots(thin_slots)
    except RefusedError as refusal:
        raise RefusedError(f"thin slot {refusal.text}") from None
    command = parse_positional_generate(rest)
    return replace(command, memory=replace(command.memory, restore_slot=slot, chain=chain))


def parse_file_generate(arguments: bytes) -> Generate:
    words = words_of(arguments)
    first = [word for _, word in zip(range(4), words, strict=False)]
    if len(first) != 3:
        raise RefusedError("generate needs <in> <n_gen> <out>, paths without spaces")
    return Generate(
        form=GenerateForm.FILE,
        prompt_path=first[0].decode("utf-8"),
        output_path=first[2].decode("utf-8"),
        n_generate=parse_placed_count("n_gen", first[1]),
    )


def parse_named_generate(arguments: bytes) -> Generate:
    parts = read_named_args(arguments, NAMED_KEYS, required=(b"id", b"n", b"prompt"))
    constraint = ConstraintArgs(**parts.get("constraint", {}))
    _check_constraint(constraint)
    memory = MemoryArgs(**parts.get("memory", {}))
    _check_memory(memory)
    command = Generate(
        form=GenerateForm.NAMED,
        sampling=SamplingArgs(**parts.get("sampling", {})),
        constraint=constraint,
        memory=memory,
        reading=ReadingArgs(**parts.get("reading", {})),
        **parts.get("", {}),
    )
    _check_prompt_logprobs(command)
    return command


def parse_compress(arguments: bytes) -> Compress:
    """The one verb has both forms. Its first word tells which."""
    if b"=" in (next_word(arguments)[0] or b""):
        return Compress(**read_named_args(arguments, _COMPRESS_KEYS, required=(b"id", b"share", b"prompt"))[""])
    words = [word.decode("utf-8") for _, word in zip(range(5), words_of(arguments), strict=False)]
    if len(words) < 2:
        raise RefusedError("keep_x1000 is missing" if words else "path is missing")
    path, kept, *more = words
    try:
        keep_x1000 = parse_integer(kept.encode(), 1, 1000)
    except RefusedError as refusal:
        raise RefusedError(f"keep_x1000 '{shortened(kept.encode())}' {refusal.text}") from None
    # `nopark` is for daemons that park the target meanwhile.
    scorers = more[:-1] if more[-1:] == ["nopark"] else more
    if len(scorers) > 1 or "nopark" in scorers:
        raise RefusedError("nothing but nopark may follow the scorer")
    return Compress(keep_x1000 / 1000, prompt_path=path, scorer=scorers[0] if scorers else None)
