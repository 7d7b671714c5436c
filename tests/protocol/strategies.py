"""Commands and replies of every kind, for hypothesis: those that the protocol can say, and careless ones."""

from __future__ import annotations

import struct
from math import inf
from typing import Any, TypeVar

from hypothesis import strategies as st

from luce.protocol import (
    Adopted,
    AdoptFiles,
    Cancel,
    Cancelled,
    Clear,
    Command,
    Compress,
    CompressOk,
    ConstraintArgs,
    DescribeImage,
    Embed,
    Embedding,
    Err,
    ErrorCode,
    ExpertReads,
    FilesLine,
    ForgetText,
    FreeScorer,
    FreeSlot,
    Generate,
    GenerateForm,
    GenerateOk,
    GrammarTrigger,
    HoldText,
    ImageAt,
    ImageDescribed,
    InlineSnapshot,
    InlineSnapshotFailed,
    ListFiles,
    ListSlots,
    ListTexts,
    LoadProgress,
    LoadSlot,
    Logprobs,
    MemoryArgs,
    OutOfMemory,
    PagesLine,
    Park,
    Parked,
    Ping,
    PinSpan,
    PlainOk,
    Pong,
    PoolSize,
    PrefillProgress,
    Probed,
    ProbeText,
    Quit,
    Reading,
    ReadingArgs,
    ReadyLine,
    Reply,
    SamplerKind,
    SamplingArgs,
    SaveSlot,
    SlotFreed,
    SlotList,
    SlotSaved,
    Snapshot,
    SnapshotPoint,
    SnapshotTaken,
    Speculation,
    Status,
    StatusLine,
    StopReason,
    TextsLine,
    ThinSnapshot,
    ThinTaken,
    TriggerKind,
    Unpark,
    Unparked,
    WatchPages,
    Weights,
    WriteText,
)
from luce.protocol.command_table import RECORDS

Value = TypeVar("Value")

counts = st.integers(0, (1 << 31) - 1)
large_counts = st.integers(0, (1 << 63) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
words = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=" "), max_size=20)
reals = st.floats(-1e30, 1e30, allow_subnormal=False)
positives = st.floats(1e-30, 1e30)
token_lists = st.lists(counts, max_size=5).map(tuple)
full_token_lists = st.lists(counts, min_size=1, max_size=5).map(tuple)


def maybe(values: st.SearchStrategy[Value]) -> st.SearchStrategy[Value | None]:
    return st.none() | values


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "count": counts,
    "logit_bias": st.lists(st.tuples(counts, reals | st.just(-inf)), max_size=3).map(tuple),
    "not_negative": st.floats(0, 1e30),
    "positive": positives,
    "positive_probability": st.floats(1e-30, 1),
    "probability": st.floats(0, 1),
    "real": reals,
    "samplers": st.lists(st.sampled_from(SamplerKind), unique=True).map(tuple),
    "texts": st.lists(texts.filter(bool), max_size=3).map(tuple),
    "uint64": st.integers(0, (1 << 64) - 1),
}
"""By what commands.json says of a value."""
samplings = st.builds(
    SamplingArgs,
    **{key.field: _VALUES[key.value] | st.just(getattr(SamplingArgs(), key.field)) for key in RECORDS["SamplingArgs"]},
)
triggers = st.builds(
    GrammarTrigger,
    st.sampled_from([TriggerKind.WORD, TriggerKind.PATTERN, TriggerKind.PATTERN_FULL]),
    text=texts.filter(bool),
) | st.builds(GrammarTrigger, st.just(TriggerKind.TOKEN), token=counts)
constraints = st.builds(
    ConstraintArgs,
    grammar=texts.filter(bool),
    grammar_lazy=st.booleans(),
    triggers=st.lists(triggers, min_size=1, max_size=3).map(tuple),
    preserved=token_lists,
    generation_prompt=maybe(texts),
    think_budget=maybe(counts),
    think_start=full_token_lists,
    think_end=st.lists(full_token_lists, min_size=1, max_size=3).map(tuple),
    think_message=token_lists,
) | st.builds(ConstraintArgs, grammar_path=maybe(texts.filter(bool)))
snapshot_points = st.lists(
    st.builds(SnapshotPoint, counts, counts), max_size=3, unique_by=lambda point: point.slot
).map(tuple)
spans = st.lists(st.builds(PinSpan, st.integers(0, 99), st.integers(100, 200)), max_size=3).map(tuple)
memories = st.builds(
    MemoryArgs,
    restore_slot=counts,
    restore_at=maybe(counts),
    chain=token_lists,
    snapshots=snapshot_points,
    marks=token_lists,
    turn=maybe(counts),
    salt=st.integers(0, 2**64 - 1),
    salt_from=maybe(counts),
    pins=spans,
    reuse=maybe(st.booleans()),
) | st.builds(MemoryArgs, snapshots=snapshot_points, reuse=maybe(st.booleans()))
shares = st.floats(1e-30, 1)
readings = st.builds(
    ReadingArgs,
    prefill=maybe(st.sampled_from(Reading)),
    share=maybe(shares),
    n_from=maybe(counts),
    keep=spans,
    blocks=spans,
)
generates = st.builds(
    Generate,
    form=st.just(GenerateForm.NAMED),
    id=counts,
    prompt=full_token_lists,
    n_generate=counts,
    sampling=samplings,
    constraint=constraints,
    memory=memories,
    reading=readings,
    images=st.lists(
        st.builds(ImageAt, counts, texts.filter(bool)), max_size=3, unique_by=lambda image: image.position
    ).map(lambda images: tuple(sorted(images, key=lambda image: image.position))),
    stop_tokens=token_lists,
    n_least=counts,
    ignore_eos=st.booleans(),
    n_logprobs=st.integers(0, 100),
    n_prompt_logprobs=maybe(st.integers(0, 100)),
    prompt_logprobs_from=counts,
    n_generated_before=counts,
    priority=st.integers(-(1 << 31), (1 << 31) - 1),
)
optional_ids = maybe(counts)
slot_paths = words.map(lambda word: "/" + word)
begins = st.integers(0, 1000)
ends = st.integers(1001, 1 << 30)
weights = st.sampled_from(Weights)
placed_words = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=" ="), max_size=20)
compressions: st.SearchStrategy[Command] = st.one_of(
    st.builds(Compress, shares, full_token_lists, keep=spans, blocks=spans, id=counts),
    st.builds(Compress, shares, prompt_path=texts.filter(bool), keep=spans, blocks=spans, id=counts),
    st.builds(
        Compress,
        st.integers(1, 1000).map(lambda keep_x1000: keep_x1000 / 1000),
        prompt_path=placed_words.map(lambda word: "/" + word),
        scorer=maybe(words.map(lambda word: "/" + word)),
    ),
)
memory_commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(Snapshot, counts, id=optional_ids),
    st.builds(Snapshot, counts, of=counts, id=counts),
    st.builds(ThinSnapshot, counts, begins, ends, id=optional_ids),
    st.builds(ThinSnapshot, counts, begins, ends, of=counts, id=counts),
    st.builds(FreeSlot, counts, optional_ids),
    st.just(FreeScorer()),
    st.builds(ListSlots, optional_ids),
    st.builds(SaveSlot, counts, slot_paths, optional_ids),
    st.builds(LoadSlot, counts, slot_paths, optional_ids),
    st.builds(SaveSlot, counts, texts.filter(bool), counts),
    st.builds(LoadSlot, counts, texts.filter(bool), counts),
    st.builds(Park, weights, optional_ids),
    st.builds(Unpark, weights, optional_ids),
    st.builds(Clear, st.booleans(), optional_ids),
    st.builds(DescribeImage, texts.filter(bool), counts, maybe(st.integers(0, 2**64 - 1))),
    st.builds(ListTexts, counts, maybe(counts), counts),
    st.builds(HoldText, texts.filter(bool), st.booleans(), counts),
    st.builds(ForgetText, texts.filter(bool), counts),
    st.builds(WatchPages, st.booleans(), counts),
    st.builds(AdoptFiles, st.lists(texts.filter(bool), max_size=3).map(tuple), counts),
    st.builds(ListFiles, large_counts, maybe(counts), counts),
    st.builds(WriteText, texts.filter(bool), counts),
    st.builds(ProbeText, full_token_lists, salt=large_counts, salt_from=maybe(counts), id=counts),
    st.builds(ProbeText, prompt_path=texts.filter(bool), id=counts),
)
commands: st.SearchStrategy[Command] = st.one_of(
    generates,
    st.builds(Generate, form=st.just(GenerateForm.NAMED), id=counts, prompt_path=texts.filter(bool)),
    st.builds(
        Generate,
        form=st.just(GenerateForm.POSITIONAL),
        prompt_path=words.map(lambda word: "/" + word),
        n_generate=counts,
        memory=st.builds(MemoryArgs, snapshots=snapshot_points)
        | st.builds(MemoryArgs, restore_slot=counts, chain=token_lists, snapshots=snapshot_points),
    ),
    compressions,
    st.builds(Embed, counts, token_lists.filter(bool)),
    st.builds(Embed, counts, prompt_path=texts.filter(bool)),
    st.builds(Cancel, counts),
    st.builds(Status, maybe(counts), st.booleans()),
    st.builds(Ping, words),
    st.just(Quit()),
    memory_commands,
)
careless_commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(Generate, prompt=token_lists, prompt_path=maybe(st.text()), output_path=maybe(st.text())),
    st.builds(Generate, form=st.sampled_from(GenerateForm), prompt_path=maybe(st.text()), output_path=maybe(st.text())),
    st.builds(Ping, st.text()),
    st.builds(
        Compress,
        st.floats() | st.sampled_from([0.2, 1.0]),
        token_lists,
        maybe(st.text()),
        scorer=maybe(st.text() | st.just("nopark")),
        id=maybe(st.integers()),
    ),
    st.builds(
        Generate,
        id=counts,
        prompt=full_token_lists,
        reading=st.builds(
            ReadingArgs,
            share=maybe(st.floats()),
            n_from=maybe(st.integers()),
            keep=st.lists(st.builds(PinSpan, st.integers(), st.integers()), max_size=2).map(tuple),
        ),
    ),
    st.builds(Embed, st.integers(), token_lists, maybe(st.text())),
    st.builds(Cancel, st.integers()),
    st.builds(Snapshot, st.integers(), maybe(st.integers()), maybe(st.integers())),
    st.builds(ThinSnapshot, st.integers(), st.integers(), st.integers(), maybe(st.integers()), maybe(st.integers())),
    st.builds(SaveSlot, st.integers(), st.text(), maybe(st.integers())),
    st.builds(LoadSlot, st.integers(), st.text(), maybe(st.integers())),
    st.builds(
        Generate,
        form=st.sampled_from(GenerateForm),
        prompt_path=st.text(),
        memory=st.builds(
            MemoryArgs,
            restore_slot=maybe(st.integers()),
            restore_at=maybe(counts),
            chain=token_lists,
            reuse=maybe(st.booleans()),
        ),
    ),
)

ids = maybe(counts)
keys = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
status_fields = st.dictionaries(keys, texts, max_size=4).map(lambda fields: tuple(fields.items()))


def binary32(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def measures(n_digits: int) -> st.SearchStrategy[float]:
    return st.integers(0, 10**9).map(lambda value: float(f"{value / 10**n_digits:.{n_digits}f}"))


# What the parser gives back as it was: no control characters, and no blanks around it.
clean_texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40).map(lambda text: text.strip(" "))
replies: st.SearchStrategy[Reply] = st.one_of(
    st.builds(
        GenerateOk,
        id=ids,
        n_prompt=counts,
        n_read=maybe(counts),
        n_generated=counts,
        n_reused=counts,
        tier=texts,
        miss=texts,
        restored=maybe(counts),
        prefill_s=measures(6),
        decode_s=measures(6),
        decode_tokens_per_s=measures(2),
        speculation=maybe(
            st.builds(
                Speculation,
                n_drafted=large_counts,
                n_accepted=large_counts,
                n_steps=large_counts,
                n_speculated_steps=large_counts,
                draft_s=measures(6),
                verify_s=measures(6),
            )
        ),
        experts=maybe(st.builds(ExpertReads, n_hits=large_counts, n_misses=large_counts)),
        output_path=maybe(texts),
        stop=st.sampled_from(StopReason),
    ),
    st.builds(CompressOk, counts, counts, spans, ids),
    st.builds(Err, st.sampled_from(ErrorCode), clean_texts, ids),
    st.builds(Err, st.sampled_from(ErrorCode), clean_texts.map(lambda text: f"id=7 {text}".strip(" ")), ids),
    st.builds(Pong, words),
    st.builds(PoolSize, counts),
    st.builds(LoadProgress, counts),
    st.builds(OutOfMemory, texts),
    st.builds(ImageDescribed, counts, token_lists),
    st.builds(PlainOk, ids),
    st.builds(Parked, weights, ids),
    st.builds(Unparked, weights, ids),
    st.builds(SnapshotTaken, counts, counts, ids),
    st.builds(ThinTaken, counts, counts, counts, ids),
    st.builds(SlotFreed, counts, ids),
    st.builds(SlotList, token_lists, ids),
    st.builds(SlotSaved, counts, st.integers(0, (1 << 64) - 1), ids),
    st.builds(InlineSnapshot, counts, counts, ids),
    st.builds(InlineSnapshotFailed, counts, st.sampled_from(ErrorCode), ids),
    st.builds(Embedding, counts, counts, st.lists(st.floats(width=32)).map(binary32)),
    st.builds(Cancelled, counts),
    st.builds(PrefillProgress, counts, counts, ids),
    st.builds(
        Logprobs,
        counts,
        st.lists(st.tuples(counts, measures(5).map(lambda value: -value) | st.just(-inf)), max_size=4).map(tuple),
        ids,
    ),
    st.builds(StatusLine, status_fields),
    st.builds(TextsLine, status_fields),
    st.builds(PagesLine, st.lists(st.text("0123456789abcdefrhd:+", min_size=1), max_size=3).map(tuple), st.booleans()),
    st.builds(
        FilesLine, counts, large_counts, st.lists(st.text("0123456789abcdef-.:", min_size=1), max_size=3).map(tuple)
    ),
    st.builds(Adopted, counts, counts, counts, counts),
    st.builds(Probed, counts, counts, counts, counts),
    st.builds(ReadyLine, status_fields),
)
