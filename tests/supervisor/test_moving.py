"""A conversation whose engine is busy goes on with another one: its memory goes along, and whatever happens meanwhile
costs time and no token."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from luce.supervisor import GenerateRequest, Supervisor, SupervisorConfig
from luce.supervisor.engine.image_file import ImageFile
from luce.supervisor.prefix_cache.page_names import page_names
from luce.supervisor.prefix_cache.prefix_index import pack
from luce.supervisor.requests import PromptImage, TextSalt
from luce.supervisor.scheduling.prices import EnginePrices, first_move_price
from luce.supervisor.scheduling.router import Way, cheapest
from tests.pictures import png
from tests.supervisor.streams import Answer, check_same, collect, first_token, request, until

TEXT = tuple(2 + i * 7 % 8000 for i in range(1200))
OTHER = tuple(3 + i * 11 % 8000 for i in range(300))
MORE = tuple(range(500, 540))


def files_in(folder: Path) -> list[Path]:
    """Of texts that move."""
    return list(folder.glob("luce-text-*"))


def second_turn(first: Answer) -> tuple[int, ...]:
    return (*TEXT, *first.tokens, *MORE)


@pytest.fixture
def two_engines(brisk: SupervisorConfig) -> SupervisorConfig:
    return dataclasses.replace(brisk, engines=[{"lanes": 1}, {"lanes": 1}], ctx=8192, pool=16384)


async def about_text(
    supervisor: Supervisor, more: Sequence[int] = (), salt: TextSalt | None = None, picture: ImageFile | None = None
) -> GenerateRequest:
    """TEXT, the picture, and so on."""
    if picture is None:
        return request(prompt_ids=(*TEXT, *more), salt=salt)
    ids = await supervisor.image_ids(picture, None if salt is None else salt.value)
    return request(prompt_ids=(*TEXT, *ids, *more), salt=salt, images=[PromptImage(len(TEXT), picture)])


@asynccontextmanager
async def where_home_is_busy(
    config: SupervisorConfig, salt: TextSalt | None = None, picture: ImageFile | None = None
) -> AsyncIterator[tuple[Supervisor, Answer]]:
    """The first engine has answered TEXT and answers something long now; the second one is free, and has read."""
    async with Supervisor(config) as supervisor:
        text = await about_text(supervisor, salt=salt, picture=picture)
        first, _ = await asyncio.gather(
            collect(supervisor, dataclasses.replace(text, max_tokens=40)),
            collect(supervisor, request(prompt_ids=OTHER)),
        )
        running, began = await first_token(supervisor, dataclasses.replace(text, max_tokens=5000))
        await began.wait()
        assert [engine.n_running for engine in supervisor.status().engines] == [1, 0]
        try:
            yield supervisor, first
        finally:
            running.cancel()


@pytest.fixture
async def alone(brisk: SupervisorConfig) -> AsyncIterator[Supervisor]:
    async with Supervisor(dataclasses.replace(brisk, ctx=8192, pool=16384)) as supervisor:
        yield supervisor


async def test_one_clients_text_with_a_picture_goes_too_and_stays_its_own(
    two_engines: SupervisorConfig, test_models: Path
) -> None:
    """Of a model with recurrent state that sees in two dimensions."""
    sees = dataclasses.replace(
        two_engines, model=test_models / "qwen35.gguf", mmproj=test_models / "mmproj" / "qwen3vl.gguf"
    )
    salt, picture = TextSalt(5), ImageFile("picture", png(40, 30, 1))
    async with where_home_is_busy(sees, salt, picture) as (supervisor, first):
        asked = dataclasses.replace(await about_text(supervisor, (*first.tokens, *MORE), salt, picture), n_logprobs=2)
        got = await collect(supervisor, asked)
        assert (supervisor.status().n_moves, supervisor.status().n_failed_moves) == (1, 0)
        assert got.end.n_prompt - got.end.n_reused <= 0.05 * got.end.n_prompt
        for stranger in (None, TextSalt(6)):
            assert (await collect(supervisor, await about_text(supervisor, salt=stranger))).end.n_reused == 0
    async with Supervisor(dataclasses.replace(sees, engines=[])) as alone:
        check_same([asked], [got], [await collect(alone, asked)], 0)


async def test_what_is_known_of_a_conversation_goes_to_the_engine_that_is_free(
    two_engines: SupervisorConfig, alone: Supervisor, own_temporary_dir: Path
) -> None:
    async with where_home_is_busy(two_engines) as (supervisor, first):
        prompt = second_turn(first)
        asked = request(prompt_ids=prompt, n_logprobs=2)
        got = await collect(supervisor, asked)
        status = supervisor.status()
        assert (status.n_moves, status.n_failed_moves) == (1, 0)
        assert status.n_moved_tokens == len(TEXT) + len(first.tokens) - 1
        assert status.n_moved_bytes > 0
        assert got.end.n_prompt - got.end.n_reused <= 0.05 * got.end.n_prompt
        again = await collect(supervisor, request(prompt_ids=(*prompt, *got.tokens, *MORE)))
        assert again.end.n_reused >= got.end.n_prompt, "it lives there now"
        assert supervisor.status().n_moves == 1
        assert files_in(own_temporary_dir) == []
    assert (await collect(alone, request(prompt_ids=TEXT, max_tokens=40))).tokens == first.tokens
    check_same([asked], [got], [await collect(alone, asked)], 0)


@pytest.mark.parametrize("killed", ["home", "the other"])
async def test_an_engine_that_dies_in_a_move_costs_no_token(
    two_engines: SupervisorConfig, alone: Supervisor, own_temporary_dir: Path, killed: str
) -> None:
    """The one that is killed is stopped first, so that the move is under way."""
    patient = dataclasses.replace(two_engines, stopped_timeout_s=60.0, asleep_timeout_s=60.0)
    async with where_home_is_busy(patient) as (supervisor, first):
        pid = supervisor.engine_pids()[0 if killed == "home" else 1]
        os.kill(pid, signal.SIGSTOP)
        asked = request(prompt_ids=second_turn(first), n_logprobs=2)
        answer = asyncio.create_task(collect(supervisor, asked))

        def is_under_way() -> bool:
            files = files_in(own_temporary_dir)
            return bool(files) and (killed == "home" or files[0].stat().st_size > 0)

        await until(is_under_way, "its text moves")
        os.kill(pid, signal.SIGKILL)
        got = await answer
        # In the other's place a new one may be up before the text is written: it is moved there then.
        moves = (supervisor.status().n_moves, supervisor.status().n_failed_moves)
        assert moves == (0, 1) or (killed == "the other" and moves == (1, 0))
    check_same([asked], [got], [await collect(alone, asked)], 0)


@pytest.mark.parametrize("why", ["it is short", pytest.param("moving takes long", marks=pytest.mark.full_only)])
async def test_a_text_that_is_sooner_read_is_not_moved(
    two_engines: SupervisorConfig, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "it is short":
        two_engines = dataclasses.replace(two_engines, share_min_tokens=len(TEXT) + 50)  # and an answer of 40
    else:
        monkeypatch.setattr("luce.supervisor.scheduling.prices._FIRST_MOVE_S", 1e6)
    async with where_home_is_busy(two_engines) as (supervisor, first):
        got = await collect(supervisor, request(prompt_ids=second_turn(first)))
        assert got.end.n_reused == 0
        assert supervisor.status().n_moves == 0


async def test_a_text_that_has_left_memory_is_not_asked_of_the_engine_that_had_it(
    two_engines: SupervisorConfig,
) -> None:
    async with Supervisor(two_engines) as supervisor:
        first, _ = await asyncio.gather(
            collect(supervisor, request(prompt_ids=TEXT, max_tokens=40)),
            collect(supervisor, request(prompt_ids=OTHER)),
        )
        held, info = supervisor.watch_pages(), supervisor.status().engines[0].info
        listing, _ = await supervisor.texts()
        assert listing is not None
        assert info is not None
        names = list(page_names(pack(TEXT), info.identity))
        await until(lambda: held.n_first("engine 0", names) == len(names), "the engine reports it")
        await supervisor.forget_text(0, listing.runs[0].page)
        await until(lambda: held.n_first("engine 0", names) == 0, "the engine reports that it is gone")
        running, began = await first_token(supervisor, request(prompt_ids=OTHER[::-1], max_tokens=5000))
        await began.wait()
        assert [engine.n_running for engine in supervisor.status().engines] == [1, 0]
        got = await collect(supervisor, request(prompt_ids=second_turn(first)))
        running.cancel()
        assert got.end.n_reused == 0
        assert (supervisor.status().n_moves, supervisor.status().n_failed_moves) == (0, 0)


def test_what_is_cheapest() -> None:
    assert cheapest(wait_s=0.1, move_s=1, read_s=5, waited_s=0) is Way.WAIT
    assert cheapest(wait_s=2, move_s=1, read_s=5, waited_s=0) is Way.MOVE
    assert cheapest(wait_s=0.1, move_s=1, read_s=5, waited_s=1) is Way.MOVE, "the guess was wrong"
    assert cheapest(wait_s=6, move_s=5, read_s=5, waited_s=0) is Way.READ
    assert cheapest(wait_s=6, move_s=None, read_s=5, waited_s=0) is Way.READ
    assert cheapest(wait_s=4, move_s=None, read_s=5, waited_s=0) is Way.WAIT


def test_prices_are_what_was_seen_lately() -> None:
    prices, moving = EnginePrices(), first_move_price()
    assert prices.read_s(1000) is None
    assert prices.restore_s(1000) is None
    assert prices.wait_s(4, 3) == 0
    before_s = moving.of(10**9)
    assert before_s is not None
    for _ in range(30):
        prices.note_read(2000, 1)
        prices.note_read(10, 5)  # a turn's few tokens say nothing
        prices.note_restored(4000, 0.2)
        prices.note_restored(4000, -0.1)  # clocks of two processes
        prices.note_service(8)
        moving.note(10**9, 0.5)
    assert prices.read_s(1000) == pytest.approx(0.5)
    assert prices.restore_s(1000) == pytest.approx(0.05)
    assert prices.wait_s(4, 3) == pytest.approx(8)
    move_s = moving.of(10**9)
    assert move_s is not None
    assert move_s == pytest.approx(0.5, rel=0.01)
    assert move_s < before_s
    both = EnginePrices.merged([prices, EnginePrices()])
    assert (both.read_s(1000), both.service_s()) == (prices.read_s(1000), prices.service_s())
