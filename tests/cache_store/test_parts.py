"""The parts of the cache store: what an object is, what a text needs, what is deleted, what things cost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor import ConfigError, SupervisorConfig
from luce.supervisor.cache_store.local_folder import LocalFolder
from luce.supervisor.cache_store.look_up import LookUp
from luce.supervisor.cache_store.object_store import ObjectStore, StoreError
from luce.supervisor.cache_store.objects import DamagedObjectError, object_path, opened, parse_path, sealed
from luce.supervisor.cache_store.store_index import StoredFile, StoreIndex
from luce.supervisor.cache_store.stored_files import StoredFiles
from luce.supervisor.cache_store.upkeep import StoreBounds, Upkeep
from luce.supervisor.prefix_cache.page_names import MemoryFile, checkpoint_name, page_names
from luce.supervisor.prefix_cache.prefix_index import pack
from luce.supervisor.scheduling.prices import FetchPrice

IDENTITY = "0123456789abcdef0123456789abcdef"
PAGE = MemoryFile(bytes(range(16)))
DAY_S = 86_400.0


@given(st.binary(max_size=200), st.data())
def test_a_seal_tells_every_change(content: bytes, data: st.DataObject) -> None:
    path = object_path(IDENTITY, PAGE)
    whole = sealed(path, content)
    assert bytes(opened(path, memoryview(whole))) == content
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    cut = whole[:at]
    elsewhere = object_path(IDENTITY[::-1], PAGE)
    for bad_path, bad in ((path, flipped), (path, cut), (path, whole + b"x"), (elsewhere, whole)):
        with pytest.raises(DamagedObjectError):
            opened(bad_path, memoryview(bad))


def test_paths_are_ours_or_not() -> None:
    checkpoint = MemoryFile(bytes(16), bytes(range(16)), 7)
    for file in (PAGE, checkpoint):
        assert parse_path(object_path(IDENTITY, file)) == (IDENTITY, file)
    good = object_path(IDENTITY, PAGE)
    for bad in ("", "a", good + "x", good.upper(), good.replace("/00/", "/01/"), f"x/{good}", f"../{good}"):
        assert parse_path(bad) is None, bad
    for name in (f"{'0' * 32}-64-{'0' * 32}.tail", f"{'0' * 32}-07-{'0' * 32}.tail", f"{'0' * 31}g.page"):
        assert MemoryFile.of(name) is None, name


def index_of(*files: MemoryFile) -> StoreIndex:
    index = StoreIndex()
    for file in files:
        index.add(file, StoredFile(100, 0.0))
    return index


def test_a_plan_ends_where_a_model_can_go_on() -> None:
    key = pack(range(64 * 4 + 20))
    names = list(page_names(key, IDENTITY))
    pages = [MemoryFile(name) for name in names]

    def tail(page: int, n_rest: int) -> MemoryFile:
        begin = (page + 1) * 256
        rest = key[begin : begin + 4 * n_rest]
        return MemoryFile(names[page], checkpoint_name(names[page], rest), n_rest)

    def plan(index: StoreIndex, n_pages: int, *, has_state: bool, stops: tuple[int, ...] = ()) -> object:
        found = index.plan(key, names, n_pages=n_pages, has_state=has_state, stops=stops)
        return None if found is None else (list(found.files), found.n_tokens)

    # Pages alone do for attention, up to the first that is missing; from where others are at hand.
    gap = index_of(pages[0], pages[1], pages[3])
    assert plan(gap, 0, has_state=False) == (pages[:2], 128)
    assert plan(gap, 1, has_state=False) == (pages[1:2], 128)
    assert plan(gap, 2, has_state=False) is None
    assert plan(gap, 3, has_state=False) == (pages[3:], 256)
    # With state only a checkpoint will do, and one of another text behind the same page is none.
    other = MemoryFile(names[3], checkpoint_name(names[3], pack([1, 2])), 2)
    assert plan(index_of(*pages, other), 0, has_state=True) is None
    deep, early = tail(3, 20), tail(1, 5)
    assert plan(index_of(*pages, other, deep, early), 0, has_state=True) == ([deep, *pages], 276)
    assert plan(index_of(*pages[:3], deep, early), 0, has_state=True) == ([early, *pages[:2]], 133)
    assert plan(index_of(*pages, deep, early), 0, has_state=True, stops=(133,)) == ([deep, *pages, early], 276)
    assert plan(index_of(*pages, deep), 0, has_state=False) == ([deep, *pages], 276)
    index = index_of(*pages, deep)
    index.discard(deep)
    assert plan(index, 0, has_state=True) is None
    assert index.n_bytes == 400


def test_prices_are_believed_for_a_while() -> None:
    fetching = FetchPrice()
    assert fetching.fetch_s(1 << 20, 0.0) is None
    fetching.note(1 << 10, 0.1, 0.0)  # says what asking costs, not what bytes cost
    assert fetching.fetch_s(1 << 20, 0.0) is None
    fetching.note(10 << 20, 1.0, 0.0)
    assert fetching.fetch_s(10 << 20, 1.0) == pytest.approx(1.0)
    fetching.note(0, 5.0, 2.0)  # nothing came
    slow = fetching.fetch_s(10 << 20, 3.0)
    assert slow is not None
    assert slow > 1000
    assert fetching.fetch_s(10 << 20, 100.0) is None


@pytest.mark.parametrize(("n_there", "n_known"), [(0, 0), (1, 0), (2, 1), (17, 0), (40, 3), (199, 0), (200, 0)])
async def test_a_look_finds_what_there_is_of_a_text(tmp_path: Path, n_there: int, n_known: int) -> None:
    """Each page, with the checkpoints behind the last one and behind another; of other texts nothing."""
    key = pack(range(64 * 200))
    names = list(page_names(key, IDENTITY))
    pages = [MemoryFile(name) for name in names]
    tails = [MemoryFile(name, bytes(16), 1) for name in names[:n_there]]
    strangers = [MemoryFile(bytes([page.page[0]]) + bytes(15)) for page in pages]
    stored = StoredFiles(ObjectStore.open((tmp_path / "store").as_uri()))
    for file in [*pages[:n_there], *tails, *strangers]:
        path = tmp_path / "store" / object_path(IDENTITY, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100))
    await LookUp(stored).look(IDENTITY, names, n_known, [5, 150], None)
    found = {file for file, _ in stored.index.since(0.0)}
    assert {file for file in found if file.checkpoint is None} == set(pages[n_known:n_there])
    stops = {stop for stop in (5, 150, n_there - 1) if n_known <= stop < n_there}
    assert {file for file in found if file.checkpoint is not None} == {tails[stop] for stop in stops}


async def test_a_look_is_not_worth_every_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(page_names(pack(range(64 * 4)), IDENTITY))
    stored = StoredFiles(ObjectStore.open((tmp_path / "store").as_uri()))
    look_up = LookUp(stored)
    await look_up.look(IDENTITY, names, 0, [], 0.0)  # nobody knows yet what it costs

    async def fail(path: str) -> None:
        raise StoreError(path)

    monkeypatch.setattr(stored.store, "head", fail)
    await look_up.look(IDENTITY, names, 0, [], 0.0)
    assert stored.counts.n_failures == 0
    await look_up.look(IDENTITY, names, 0, [], 60.0)
    await look_up.look(IDENTITY, names, 0, [], 60.0)  # not before something works again
    assert stored.counts.n_failures == 1


async def test_bounds_hold_and_strangers_stay(tmp_path: Path) -> None:
    store = ObjectStore.open((tmp_path / "store").as_uri())
    files = [MemoryFile(bytes([number]) * 16) for number in range(10)]
    for age_days, file in enumerate(files):
        path = object_path(IDENTITY if age_days % 2 else IDENTITY[::-1], file)
        await store.put(path, bytes(100))
        os.utime(tmp_path / "store" / path, times=(time.time() - age_days * DAY_S,) * 2)
    stranger = tmp_path / "store" / "notes.txt"
    stranger.write_bytes(bytes(10_000))
    os.utime(stranger, times=(0.0, 0.0))

    def left() -> set[str]:
        return {path.name for path in (tmp_path / "store").rglob("*.page")}

    async def keep(bounds: StoreBounds) -> StoredFiles:
        stored = StoredFiles(store)
        await Upkeep(stored, bounds, identities=_never).once({IDENTITY})
        return stored

    assert len((await keep(StoreBounds())).index) == 5
    assert left() == {file.name for file in files}
    assert (await keep(StoreBounds(days=6.5))).counts.n_removed == 3
    assert left() == {file.name for file in files[:7]}
    stored = await keep(StoreBounds(n_bytes=350))
    assert left() == {file.name for file in files[:3]}
    assert set(stored.index.since(0.0)) == {(files[1], stored.index.get(files[1]))}
    assert stranger.exists()


async def _never() -> set[str]:
    raise AssertionError


async def _at_once(n_bytes: int) -> None:
    """A pace of none."""


async def test_files_come_whole_or_not_at_all(tmp_path: Path) -> None:
    stored, folder = StoredFiles(ObjectStore.open((tmp_path / "store").as_uri())), LocalFolder(tmp_path, IDENTITY)
    folder.put(PAGE, memoryview(b"content"))
    await stored.write(PAGE, folder, _at_once)
    assert stored.counts.written_bytes > 7
    elsewhere = LocalFolder(tmp_path / "other", IDENTITY)
    assert await stored.fetch(PAGE, elsewhere)
    assert elsewhere.read(PAGE) == b"content"
    assert elsewhere.files() == [PAGE]
    object_file = tmp_path / "store" / object_path(IDENTITY, PAGE)
    object_file.write_bytes(object_file.read_bytes()[:-1])
    third = LocalFolder(tmp_path / "third", IDENTITY)
    assert not await stored.fetch(PAGE, third)
    assert stored.counts.n_refused == 1
    assert third.read(PAGE) is None
    # It is not tried again before somebody has written it again.
    await Upkeep(stored, StoreBounds(), identities=_never).once({IDENTITY})
    assert PAGE not in stored.index
    await stored.write(PAGE, folder, _at_once)
    assert stored.counts.n_written == 2
    await Upkeep(stored, StoreBounds(), identities=_never).once({IDENTITY})
    assert PAGE in stored.index
    assert await stored.fetch(PAGE, third)
    assert not await stored.fetch(MemoryFile(bytes(16)), third)


async def test_a_store_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with pytest.raises(StoreError):
        await ObjectStore.open("s3://nowhere/x").get("a")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"cache_store": "s3://a"}, "disk_cache"),
        ({"cache_store": "s3://a", "disk_cache": Path("x"), "disk_budget": 0}, "disk_cache"),
        ({"cache_store_budget": 5}, "cache_store"),
        ({"cache_store": "s3://a", "disk_cache": Path("x"), "cache_store_days": 0.0}, "above 0"),
    ],
)
def test_what_cannot_be_is_refused(tiny_model: Path, options: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        SupervisorConfig(model=tiny_model, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["", "ftp://a/b", "memory", "s3:/a"])
def test_only_stores_are_stores(url: str) -> None:
    with pytest.raises(ConfigError, match="s3://"):
        ObjectStore.open(url)
