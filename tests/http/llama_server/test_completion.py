"""/completion and /v1/completions do what llama-server's own tests ask of them (cases.py lists which)."""

from __future__ import annotations

import asyncio
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.conftest import MakeServer
from tests.http.llama_server.asking import CODE, data_lines, events, refused, told

EIGHT: dict[str, Any] = {"prompt": CODE, "n_predict": 8, "temperature": 0, "ignore_eos": True}
PIECE = re.compile(
    rb'data: \{"index":0,"content":"(?:[^"\\]|\\.)*","tokens":\[\d+(?:,\d+)*\],"stop":false,"id_slot":-1,'
    rb'"tokens_predicted":\d+,"tokens_evaluated":(\d+)\}'
)


@pytest.mark.parametrize("wants_tokens", [False, True])
def test_an_answer_says_how_it_came(client: httpx.Client, wants_tokens: bool) -> None:
    answer = told(client, "/completion", **EIGHT, return_tokens=wants_tokens)
    assert answer["content"]
    assert (answer["index"], answer["stop"], answer["stop_type"], answer["truncated"]) == (0, True, "limit", False)
    assert answer["has_new_line"] is ("\n" in answer["content"])
    assert len(answer["tokens"]) == (8 if wants_tokens else 0)
    assert all(type(token) is int for token in answer["tokens"])
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == answer["tokens_evaluated"]
    assert timings["predicted_n"] == answer["tokens_predicted"] == 8


@pytest.mark.parametrize(("text", "has_new_line"), [("a", False), ("a\\nb", True)])
def test_new_lines_are_told(client: httpx.Client, text: str, has_new_line: bool) -> None:
    body = {"prompt": CODE, "n_predict": 8, "grammar": f'root ::= "{text}"'}
    assert told(client, "/completion", **body)["has_new_line"] is has_new_line
    assert events(client, "/completion", **body)[-1]["has_new_line"] is has_new_line


def test_settings_are_those_of_the_request_over_those_of_the_server(client: httpx.Client) -> None:
    settings = told(client, "/completion", **EIGHT)["generation_settings"]
    assert settings["n_predict"] == settings["max_tokens"] == 8
    assert (settings["temperature"], settings["top_k"], settings["min_p"], settings["seed"]) == (0, 40, 0.05, 1)
    assert (settings["ignore_eos"], settings["logit_bias"], settings["stream"]) == (True, [], False)
    assert (settings["repeat_penalty"], settings["adaptive_target"]) == (1, -1)
    asked = {
        "top_k": 3, "top_p": 0.5, "seed": 7, "stop": ["xyz"], "dry_multiplier": 0.5, "dry_penalty_last_n": 8,
        "samplers": ["top_k", "temperature"], "n_probs": 2,
    }  # fmt: skip
    settings = told(client, "/completion", prompt=CODE, n_predict=1, logit_bias=[[5, False], [6, 1.5]], **asked)[
        "generation_settings"
    ]
    assert {name: settings[name] for name in asked} == asked
    assert settings["logit_bias"] == [{"token": 5, "bias": None}, {"token": 6, "bias": 1.5}]
    last = events(client, "/completion", prompt=CODE, n_predict=2)[-1]
    assert last["generation_settings"]["stream"] is True
    assert told(client, "/completion", **EIGHT, n=2)[1]["generation_settings"]["n_predict"] == 8


def test_the_bytes_of_a_stream(client: httpx.Client) -> None:
    whole = told(client, "/completion", **EIGHT)
    *pieces, last = data_lines(client, "/completion", **EIGHT)
    for piece in pieces:
        match = PIECE.fullmatch(piece)
        assert match is not None, piece
        assert int(match[1]) == whole["tokens_evaluated"]
    assert "".join(json.loads(piece[6:])["content"] for piece in pieces) == whole["content"]
    assert last.startswith(b'data: {"index":0,"content":"","tokens":[],"id_slot":-1,"stop":true,"model":"')
    ended = json.loads(last[6:])
    assert list(ended) == list(whole)
    assert ended["timings"]["predicted_n"] == 8
    assert (ended["stop_type"], ended["has_new_line"]) == (whole["stop_type"], whole["has_new_line"])


def test_seeds(client: httpx.Client) -> None:
    def say(seed: int, **fields: Any) -> str:
        body = {"prompt": CODE, "n_predict": 16, "temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, **fields}
        return str(told(client, "/completion", **body, seed=seed, cache_prompt=False)["content"])

    said = [say(seed) for seed in range(4)]
    assert len(set(said)) == 4
    assert [say(seed) for seed in range(4)] == said
    assert say(1, temperature=0) == say(2, temperature=0)


def test_the_cache_changes_no_answer(client: httpx.Client) -> None:
    first, cached, without = [
        told(client, "/completion", prompt=CODE * 20, n_predict=16, temperature=0, seed=42, cache_prompt=wanted)
        for wanted in (True, True, False)
    ]
    assert cached["timings"]["cache_n"] > without["timings"]["cache_n"] == 0
    assert first["content"] == cached["content"] == without["content"]


async def test_the_size_of_a_batch_changes_no_answer(make_server: MakeServer) -> None:
    said = []
    for n_batch in (32, 64):
        async with make_server(ubatch=n_batch, lanes=1) as server, httpx.AsyncClient(timeout=120) as client:
            answer = await client.post(f"{server.url}/completion", json={**EIGHT, "prompt": CODE * 10})
            said.append(answer.json()["content"])
    assert said[0] == said[1] != ""


def test_texts_and_ids_in_one_prompt(client: httpx.Client) -> None:
    ids = told(client, "/tokenize", content=CODE)["tokens"]
    mixed = told(client, "/completion", **{**EIGHT, "prompt": [5, 6, CODE, 7, CODE]})
    spelled = told(client, "/completion", **{**EIGHT, "prompt": [5, 6, *ids, 7, *ids]})
    assert mixed["content"] == spelled["content"]
    assert mixed["tokens_evaluated"] == 3 + 2 * len(ids)
    both = told(client, "/completion", **{**EIGHT, "prompt": [ids, CODE]})
    assert both[0]["content"] == both[1]["content"]


def test_more_requests_than_lanes_are_all_answered(client: httpx.Client) -> None:
    with ThreadPoolExecutor(6) as pool:
        asked = [
            pool.submit(told, client, "/completion", **{**EIGHT, "prompt": f"{n}:", "n_predict": 24}) for n in range(6)
        ]
        answers = [answer.result() for answer in asked]
    assert [answer["tokens_predicted"] for answer in answers] == [24] * 6
    assert all(len(answer["content"]) > 10 for answer in answers)


async def test_a_pool_that_is_too_small_for_all_lets_some_wait(make_server: MakeServer) -> None:
    """llama-server lets them fail."""
    limits = [230, 230, 60, 230]
    async with make_server(ctx=256, pool=320, lanes=4) as server, httpx.AsyncClient(timeout=120) as client:
        body = {**EIGHT, "prompt": "A"}
        asked = [client.post(f"{server.url}/completion", json={**body, "n_predict": limit}) for limit in limits]
        answers = await asyncio.gather(*asked)
    assert [answer.json()["tokens_predicted"] for answer in answers] == limits


def test_fields_are_named_by_their_paths(client: httpx.Client) -> None:
    named = ["content", "generation_settings/n_predict", "prompt"]
    answer = told(client, "/completion", **EIGHT, response_fields=named)
    assert list(answer) == named
    assert (answer["generation_settings/n_predict"], answer["prompt"]) == (8, CODE)
    assert list(events(client, "/completion", **EIGHT, response_fields=named)[-1]) == named
    assert "generation_settings" in told(client, "/completion", **EIGHT, response_fields=[])


def test_biases_of_every_form(client: httpx.Client) -> None:
    def tokens(**fields: Any) -> list[int]:
        return list(told(client, "/completion", **EIGHT, return_tokens=True, **fields)["tokens"])

    plain = tokens()
    texts = {token: told(client, "/detokenize", tokens=[token])["content"] for token in plain}
    token, text = next(
        (token, text)
        for token, text in texts.items()
        if not text.strip().isdigit() and told(client, "/tokenize", content=text)["tokens"] == [token]
    )
    for biases in ([[token, -100]], [[text, -100]], {str(token): -100}, {text: -100}, [[token, False]]):
        assert token not in tokens(logit_bias=biases), biases


def test_prompts_that_take_turns_come_from_memory(client: httpx.Client) -> None:
    prompts = [f" Hello {number}" * (60 + number) for number in range(3)]
    first, again = [
        [told(client, "/completion", **{**EIGHT, "prompt": prompt, "id_slot": 0}) for prompt in prompts]
        for _ in range(2)
    ]
    for before, after in zip(first, again, strict=True):
        timings = after["timings"]
        assert timings["prompt_n"] + timings["cache_n"] == before["tokens_evaluated"]
        assert timings["cache_n"] > 0
        assert timings["prompt_n"] < before["tokens_evaluated"]
        assert after["content"] == before["content"]
    longer = told(client, "/completion", **{**EIGHT, "prompt": prompts[0] + " and more"})
    assert longer["timings"]["cache_n"] > 0


@pytest.mark.parametrize("n_predict", [1, 8])
def test_timings_are_numbers(client: httpx.Client, n_predict: int) -> None:
    timings = told(client, "/completion", **{**EIGHT, "prompt": f"{n_predict} new", "n_predict": n_predict})["timings"]
    assert all(math.isfinite(value) and value >= 0 for value in timings.values())
    assert timings["prompt_ms"] > 0
    assert timings["prompt_per_token_ms"] > 0
    assert (timings["predicted_per_token_ms"] > 0) is (n_predict > 1)


def test_timings_while_the_prompt_is_read_count_no_token(client: httpx.Client) -> None:
    body = {**EIGHT, "prompt": "one two three " * 400, "timings_per_token": True, "return_progress": True}
    *pieces, last = events(client, "/completion", **body)
    n_prompt = last["tokens_evaluated"]
    reading = [piece for piece in pieces if "prompt_progress" in piece]
    assert reading
    assert [piece["timings"]["predicted_n"] for piece in reading] == [0] * len(reading)
    assert [piece["timings"]["prompt_n"] for piece in reading] == [
        piece["prompt_progress"]["processed"] for piece in reading
    ]
    times = [piece["timings"]["prompt_ms"] for piece in reading]
    assert times == sorted(times)
    written = pieces[len(reading) :]
    assert [piece["timings"]["predicted_n"] for piece in written] == [piece["tokens_predicted"] for piece in written]
    assert written[-1]["timings"]["predicted_n"] == 8
    assert {piece["timings"]["prompt_n"] for piece in written} == {n_prompt}


def test_each_choice_has_times_of_its_own(client: httpx.Client) -> None:
    *pieces, _, _ = events(client, "/completion", **EIGHT, n=2, timings_per_token=True)
    assert {piece["index"] for piece in pieces} == {0, 1}
    assert all(piece["timings"]["predicted_n"] == piece["tokens_predicted"] <= 8 for piece in pieces)


def test_stop_strings_end_a_stream_before_them(client: httpx.Client) -> None:
    body = {"prompt": CODE, "max_tokens": 32, "stop": ["User:\n", "Assistant:\n"]}
    body["grammar"] = r'root ::= "Sure. User: no\nUser:\nmore"'
    chunks = events(client, "/v1/completions", **body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Sure. User: no\n"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    last = events(client, "/completion", **body)[-1]
    assert (last["stop_type"], last["stopping_word"]) == ("word", "User:\n")


def test_openais_answer_names_the_build(client: httpx.Client) -> None:
    answer = told(client, "/v1/completions", prompt=CODE, max_tokens=1)
    assert re.match(r"b\d+", answer["system_fingerprint"])
    chunk, *_ = events(client, "/v1/completions", prompt=CODE, max_tokens=1)
    assert chunk["system_fingerprint"] == answer["system_fingerprint"]


async def test_a_context_that_is_full_ends_the_stream(make_server: MakeServer) -> None:
    async with make_server(ctx=128, pool=512) as server:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            body = {"prompt": "Once", "n_predict": 256, "ignore_eos": True}
            chunks = events(client, "/v1/completions", **body)
            assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks)
            assert (
                "exceeds the available context size" in refused(client, "/completion", prompt="one " * 200)["message"]
            )


def test_what_only_llama_server_knows_is_no_mistake(client: httpx.Client) -> None:
    body = {**EIGHT, "id_slot": 1, "n_keep": 4, "speculative.p_min": 0.0, "backend_sampling": True}
    assert told(client, "/completion", **body)["content"] == told(client, "/completion", **EIGHT)["content"]
