"""KV events: a router that only reads them knows what the engines hold together, whatever happens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.protocol import RemoteProtocolError
from luce.supervisor.config import ConfigError
from luce.supervisor.kv_events.block_events import block_events, block_hash
from luce.supervisor.kv_events.config import Encoding, Endpoint, Media
from luce.supervisor.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, encode_batch
from luce.supervisor.kv_events.replay_buffer import ReplayBuffer
from luce.supervisor.prefix_cache.held_pages import HeldPages, PageMove
from luce.supervisor.prefix_cache.page_changes import PageChange, PageText, Tier, parse_change
from tests.kv_events.subscriber import HeldByEvents

MEDIA = {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "DISK"}
ENGINES = ("engine 0", "engine 1", "engine 2")
PAGES = [bytes([0] * 15 + [number]) for number in range(1, 8)]
Step = tuple[str, list[tuple[bytes, frozenset[Tier]]], str]
moves = st.tuples(
    st.sampled_from(ENGINES),
    st.lists(st.tuples(st.sampled_from(PAGES), st.frozensets(st.sampled_from(Tier))), max_size=6),
    st.sampled_from(["change", "change", "change", "anew", "lose"]),
)


def text_of(page: bytes) -> PageText:
    """Three texts that share their first page."""
    number = PAGES.index(page)
    return PageText(None if number == 0 else PAGES[max(number - 3, 0)], array("I", [number] * 4))


def received(events: list[Event]) -> list[list[object]]:
    """As they arrive."""
    _, told = msgspec.msgpack.decode(encode_batch(1.5, events, "array"))
    return list(told)


class Told:
    """A listener that turns all that it hears into events."""

    def __init__(self, held: HeldPages, media: Media = "each", *, tells_tokens: bool = True) -> None:
        self._held = held
        self._media = media
        self._tells_tokens = tells_tokens
        self._events: list[Event] = []
        held.watch(self)

    def pages_moved(self, moves: Sequence[PageMove]) -> None:
        self._events += self._of(moves)

    def pages_cleared(self) -> None:
        self._events.append(AllBlocksCleared())

    def take(self) -> list[Event]:
        """Since the last call."""
        events, self._events = self._events, []
        return events

    def listing(self) -> list[Event]:
        return [AllBlocksCleared(), *self._of(self._held.listing())]

    def _of(self, moves: Sequence[PageMove]) -> list[Event]:
        return block_events(moves, self._media, tells_tokens=self._tells_tokens)


@given(st.lists(moves, max_size=30), st.sampled_from(["each", "one"]))
def test_the_events_tell_what_all_engines_hold(
    steps: list[tuple[str, list[tuple[bytes, frozenset[Tier]]], str]], media: Media
) -> None:
    held = HeldPages()
    events_of = Told(held, media)
    router = HeldByEvents()
    told: dict[str, dict[bytes, frozenset[Tier]]] = {engine: {} for engine in ENGINES}
    for engine, places, what in steps:
        if what == "lose":
            told[engine] = {}
            held.lose(engine)
            router.take(received(events_of.take()))
            continue
        if what == "anew":
            told[engine] = {}
        changes = []
        for page, tiers in places:
            is_new = not told[engine].get(page)
            if is_new and not tiers:
                continue
            changes.append(PageChange(page, tiers, text_of(page) if is_new else None))
            told[engine][page] = tiers
        held.change(engine, changes, begins_anew=what == "anew")
        events = events_of.take()
        stored = sum(isinstance(event, BlockStored) for event in events)
        assert stored <= sum(len(change.tiers) for change in changes)
        router.take(received(events))
        expected: dict[str, set[int]] = {}
        for pages in told.values():
            for page, tiers in pages.items():
                for tier in tiers:
                    expected.setdefault("GPU" if media == "one" else MEDIA[tier], set()).add(block_hash(page))
        assert {medium: blocks for medium, blocks in router.blocks.items() if blocks} == expected
        stale = HeldByEvents()
        stale.blocks = {"GPU": {77}, "CPU": {1}}
        stale.take(received(events_of.listing()))
        assert {medium: blocks for medium, blocks in stale.blocks.items() if blocks} == expected


def test_blocks_that_follow_each_other_are_one_event() -> None:
    chain = [PageChange(page, frozenset({Tier.DEVICE}), PageText(parent, array("I", [7, 8]))) for page, parent in
             zip(PAGES[:3], [None, *PAGES[:2]], strict=True)]  # fmt: skip
    held = HeldPages()
    told = Told(held)
    held.change("a", chain)
    assert told.take() == [BlockStored([1, 2, 3], None, [7, 8] * 3, 2, medium="GPU")]
    held.change("a", [PageChange(page, frozenset()) for page in PAGES[:2]])
    assert told.take() == [BlockRemoved([1, 2], "GPU")]
    held.lose("a")
    assert told.take() == [AllBlocksCleared()]
    held.lose("a")
    assert told.take() == []


def test_the_last_engine_that_is_lost_clears_all_and_another_only_what_it_had() -> None:
    held = HeldPages()
    both = [PageChange(page, frozenset({Tier.HOST}), text_of(page)) for page in PAGES[:2]]
    held.change("a", both)
    told = Told(held)
    assert told.take() == [BlockStored([1, 2], None, [0] * 4 + [1] * 4, 4, medium="CPU")], "what was held before"
    held.change("b", both[:1])
    assert told.take() == [], "it is held already"
    held.lose("a")
    assert told.take() == [BlockRemoved([2], "CPU")]
    held.lose("b")
    assert told.take() == [AllBlocksCleared()]


def test_parents_come_first_in_a_listing() -> None:
    held = HeldPages()
    child, parent = PAGES[1], PAGES[0]
    held.change("a", [PageChange(child, frozenset({Tier.DISK}), PageText(parent, array("I", [1])))])
    held.change("a", [PageChange(parent, frozenset({Tier.DISK}), PageText(None, array("I", [2])))])
    told = Told(held, tells_tokens=False)
    assert told.listing() == [AllBlocksCleared(), BlockStored([1, 2], None, [], 1, medium="DISK")]


def test_a_page_without_a_text_breaks_the_protocol() -> None:
    with pytest.raises(RemoteProtocolError, match="never its text"):
        HeldPages().change("a", [PageChange(PAGES[0], frozenset({Tier.DEVICE}))])


def test_the_words_of_a_page() -> None:
    name = "1713a3ce741388b8bb517e291d996d90"
    assert parse_change(f"{name}:") == PageChange(bytes.fromhex(name), frozenset())
    assert parse_change(f"{name}:rd") == PageChange(bytes.fromhex(name), frozenset({Tier.DEVICE, Tier.DISK}))
    text = PageText(bytes.fromhex(name), array("I", [1, 2]))
    assert parse_change(f"{name}:h:{name}:1+2:more") == PageChange(bytes.fromhex(name), frozenset({Tier.HOST}), text)
    assert parse_change(f"{name}:r::5").text == PageText(None, array("I", [5]))
    for broken in ("xy:r", f"{name}:q", f"{name}:r:", f"{name}:r::-1", f"{name}:r::a"):
        with pytest.raises(RemoteProtocolError):
            parse_change(broken)


def test_a_buffer_keeps_what_it_may() -> None:
    buffer = ReplayBuffer(max_steps=3, max_bytes=10)
    assert buffer.since(0) is None
    for number in range(5):
        buffer.append(number, b"xx")
    assert buffer.since(1) is None
    assert buffer.since(3) == [(3, b"xx"), (4, b"xx")]
    buffer.append(5, b"x" * 9)
    assert buffer.since(5) == [(5, b"x" * 9)]
    assert buffer.since(4) is None


class Stored(msgspec.Struct, tag="BlockStored"):
    """As routers declare it that were made of vLLM's classes: without what it has defaults for."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class StoredArray(Stored, array_like=True, tag="BlockStored"):
    pass


class Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None


class RemovedArray(Removed, array_like=True, tag="BlockRemoved"):
    pass


class Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class ClearedArray(Cleared, array_like=True, tag="AllBlocksCleared"):
    pass


@pytest.mark.parametrize(
    ("encoding", "form"),
    [("array", StoredArray | RemovedArray | ClearedArray), ("map", Stored | Removed | Cleared)],
)
def test_decoders_made_of_vllms_classes_read_them(encoding: Encoding, form: Any) -> None:
    events: list[Event] = [
        BlockStored([1, 2], None, [7, 8, 9, 10], 2, medium="GPU"),
        BlockRemoved([1], "CPU"),
        AllBlocksCleared(),
    ]
    batch = encode_batch(1.5, events, encoding)
    _, (stored, removed, _) = msgspec.msgpack.decode(batch, type=tuple[float, list[form]])
    assert (stored.block_hashes, stored.parent_block_hash, stored.token_ids) == ([1, 2], None, [7, 8, 9, 10])
    assert (stored.block_size, stored.medium, stored.lora_name) == (2, "GPU", None)
    assert (removed.block_hashes, removed.medium) == ([1], "CPU")


def test_each_model_has_an_endpoint_of_its_own() -> None:
    def third(text: str) -> str:
        return Endpoint.of(text).of_model(2).address

    assert Endpoint.of("tcp://*:5557").of_model(0).address == "tcp://*:5557"
    assert third("tcp://[::1]:5557") == "tcp://[::1]:5559"
    assert third("tcp://127.0.0.1:0") == "tcp://127.0.0.1:0", "any port"
    assert third("ipc:///run/events") == "ipc:///run/events.2"
    assert third("connect:tcp://router:5557") == "tcp://router:5557", "told apart by their topics"
    with pytest.raises(ConfigError, match="none for all of them"):
        third("tcp://*:65534")
