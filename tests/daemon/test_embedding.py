"""`luced --embedding`: vectors that are what the model says, however they are asked for, and one reply a command."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from luce.protocol import Cancelled, Embedding, Err, ErrorCode, Pong, ReadyLine, StatusLine
from tests.daemon.bert_by_numpy import Bert
from tests.daemon.conftest import Start
from tests.daemon_driver import DaemonDriver, to_bytes

Vectors = np.ndarray[tuple[int, int], np.dtype[np.float32]]

N_TEXTS, N_TEXTS_FULL = 40, 400
N_WAITING = 256  # --queue
ROUNDING = 1e-4  # of values of unit vectors
ROUNDING_Q8 = 0.01  # where activations are rounded to eight bits, which follow the smallest difference


@pytest.fixture
def start_embedding(start: Start) -> Start:
    """start_embedding(model, pooling="auto"): a daemon that gives vectors."""

    def start_one(model: Path, *arguments: str, pooling: str = "auto", mux: bool = True) -> DaemonDriver:
        return start("--embedding", pooling, *arguments, model=model, mux=mux)

    return start_one


def texts(n: int, *, n_vocab: int, longest: int, seed: int = 1) -> list[list[int]]:
    """Of all lengths, most of them short."""
    rng = random.Random(seed)
    lengths = [min(int(longest ** rng.random()), longest) for _ in range(n - 1)] + [longest]
    return [[rng.randrange(5, n_vocab) for _ in range(length)] for length in lengths]


def embed_all(daemon: DaemonDriver, asked: Sequence[Sequence[int]]) -> Vectors:
    """As many of them at once as may wait."""
    lines = [f"embed id={number} prompt={','.join(map(str, ids))}" for number, ids in enumerate(asked)]
    daemon.send(*lines[:N_WAITING])
    rows = []
    for number, ids in enumerate(asked):
        reply = daemon.next_reply()
        daemon.send(*lines[number + N_WAITING : number + N_WAITING + 1])
        assert isinstance(reply, Embedding), reply
        assert (reply.id, reply.n_tokens) == (number, len(ids))
        rows.append(np.frombuffer(reply.values, "<f4"))
    return np.array(rows)


def fields_of(ready: ReadyLine) -> dict[str, str]:
    return dict(ready.fields)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_an_encoder_gives_what_it_says(start_embedding: Start, test_models: Path, pooling: str, full: bool) -> None:
    path = test_models / "embeddings" / ("bert.gguf" if pooling == "mean" else "bert-cls.gguf")
    daemon = start_embedding(path)
    ready = fields_of(daemon.ready)
    assert (ready["pooling"], ready["embedding"], ready["ctx"]) == (pooling, "64", "512")
    asked = texts(N_TEXTS_FULL if full else N_TEXTS, n_vocab=int(ready["vocab"]), longest=512)
    found = embed_all(daemon, asked)
    reference = Bert(path)
    expected = np.array([getattr(reference, pooling)(ids) for ids in asked])
    assert np.abs(found - expected).max() < 2e-3  # llama.cpp looks its GELU up in half precision


def test_pooling_that_is_asked_for_comes_before_the_files(start_embedding: Start, test_models: Path) -> None:
    folder = test_models / "embeddings"
    asked = texts(5, n_vocab=100, longest=20)
    by_file = embed_all(start_embedding(folder / "bert-cls.gguf"), asked)
    asked_for = embed_all(start_embedding(folder / "bert.gguf", pooling="cls"), asked)
    assert np.abs(by_file - asked_for).max() == 0


@pytest.mark.parametrize("name", ["bert", "bert-cls", "qwen3"])
def test_many_at_once_are_what_each_is_alone(start_embedding: Start, test_models: Path, name: str, full: bool) -> None:
    daemon = start_embedding(test_models / "embeddings" / f"{name}.gguf")
    ready = fields_of(daemon.ready)
    longest = min(int(ready["ctx"]), 1500)
    asked = texts(N_TEXTS_FULL if full else N_TEXTS, n_vocab=int(ready["vocab"]), longest=longest)
    together = embed_all(daemon, asked)
    alone = np.concatenate([embed_all(daemon, [ids]) for ids in asked])
    assert np.abs(together - alone).max() < (ROUNDING_Q8 if name == "qwen3" else ROUNDING)
    assert np.abs(np.linalg.norm(together, axis=1) - 1).max() < 1e-6
    assert len({row.tobytes() for row in together}) == len({tuple(ids) for ids in asked})


def test_a_decoder_reads_a_text_in_slices_of_any_size(start_embedding: Start, test_models: Path) -> None:
    path = test_models / "embeddings" / "qwen3.gguf"
    asked = texts(10, n_vocab=8000, longest=700)
    found = [embed_all(start_embedding(path, "--ubatch", size), asked) for size in ("64", "512", "1024")]
    assert max(np.abs(found[0] - other).max() for other in found[1:]) < ROUNDING_Q8
    # The last token says it all, and hears of all before it.
    daemon = start_embedding(path)
    first, other, same = embed_all(daemon, [[7, 8, 9], [9, 8, 9], [7, 8, 9]])
    assert np.abs(first - other).max() > 0.01
    assert np.abs(first - same).max() == 0


def test_an_encoders_reranker_gives_what_its_head_says(start_embedding: Start, test_models: Path) -> None:
    path = test_models / "embeddings" / "bert-rank.gguf"
    daemon = start_embedding(path, pooling="rank")
    ready = fields_of(daemon.ready)
    assert (ready["pooling"], ready["embedding"], ready["scores"]) == ("rank", "1", "logit")
    asked = texts(N_TEXTS, n_vocab=int(ready["vocab"]), longest=200)
    reference = Bert(path)
    found = embed_all(daemon, asked)[:, 0]
    assert np.abs(found - np.array([reference.score(ids) for ids in asked])).max() < 5e-3


def test_a_decoders_reranker_gives_probabilities(start_embedding: Start, test_models: Path) -> None:
    daemon = start_embedding(test_models / "embeddings" / "qwen3-rank.gguf", pooling="rank")
    ready = fields_of(daemon.ready)
    assert (ready["embedding"], ready["scores"]) == ("2", "probability")
    scores = embed_all(daemon, texts(N_TEXTS, n_vocab=8000, longest=100))
    assert np.abs(scores.sum(axis=1) - 1).max() < 1e-5
    assert scores[:, 0].std() > 0.01


@pytest.mark.parametrize(
    ("name", "pooling", "says"),
    [
        ("qwen3", "auto", "pooling"),
        ("qwen3", "rank", "no reranker"),
        ("embeddings/bert", "rank", "no reranker"),
        ("embeddings/bert-rank", "auto", "--rerank-model"),
        ("embeddings/qwen3-rank", "auto", "--rerank-model"),
        ("drafts/dflash-qwen3", "auto", "encoder"),
        ("no_vocab", "auto", "pooling"),
    ],
)
def test_a_model_of_another_kind_is_refused(luced: Path, test_models: Path, name: str, pooling: str, says: str) -> None:
    path = test_models / f"{name}.gguf"
    with_error(luced, path, ["--embedding", pooling], ErrorCode.START_FAILED, says)


@pytest.mark.parametrize(
    ("name", "says"),
    [("bert", "--embedding-model"), ("qwen3", "--embedding-model"), ("bert-rank", "--rerank-model")],
)
def test_an_embedding_model_is_no_model_for_answers(luced: Path, test_models: Path, name: str, says: str) -> None:
    with_error(luced, test_models / "embeddings" / f"{name}.gguf", [], ErrorCode.START_FAILED, says)


def test_an_encoder_has_no_more_positions_than_it_was_made_with(luced: Path, test_models: Path) -> None:
    arguments = ["--embedding", "auto", "--ctx", "513"]
    with_error(luced, test_models / "embeddings" / "bert.gguf", arguments, ErrorCode.START_FAILED, "512")


def with_error(luced: Path, model: Path, arguments: list[str], code: ErrorCode, says: str) -> None:
    driver = DaemonDriver(luced, model, *arguments)
    reply = driver.next_reply()
    assert isinstance(reply, Err), reply
    assert reply.code is code
    assert says in reply.text
    assert driver.close() in {2, 64}


def test_texts_by_file_and_what_is_refused(start_embedding: Start, test_models: Path, tmp_path: Path) -> None:
    daemon = start_embedding(test_models / "embeddings" / "bert.gguf", "--ctx", "32")
    path = tmp_path / "a text"
    path.write_bytes(to_bytes([5, 6, 7]))
    (tmp_path / "long").write_bytes(to_bytes([5] * 33))
    (tmp_path / "odd").write_bytes(b"\1\0\0")
    daemon.send("embed id=1 prompt=5,6,7", f"embed id=2 prompt=@{tmp_path}/a%20text")
    by_ids, by_file = daemon.next_reply(), daemon.next_reply()
    assert isinstance(by_ids, Embedding)
    assert by_file == Embedding(2, 3, by_ids.values)
    for prompt, code in [
        (",".join(["5"] * 33), ErrorCode.PROMPT_TOO_LONG),
        (f"@{tmp_path}/long", ErrorCode.PROMPT_TOO_LONG),
        (f"@{tmp_path}/odd", ErrorCode.BAD_PROMPT_FILE),
        (f"@{tmp_path}/none", ErrorCode.NO_SUCH_FILE),
        ("5,999999", ErrorCode.TOKEN_OUT_OF_RANGE),
        ("", ErrorCode.EMPTY_PROMPT),
        ("hello", ErrorCode.BAD_ARGS),
    ]:
        daemon.send(f"embed id=3 prompt={prompt}")
        reply = daemon.next_reply()
        assert isinstance(reply, Err), reply
        assert (reply.code, reply.id) == (code, 3)
    daemon.send(f"embed id=4 prompt={','.join(['5'] * 32)}")
    assert isinstance(daemon.next_reply(), Embedding)


def test_what_else_it_is_asked(start_embedding: Start, test_models: Path) -> None:
    daemon = start_embedding(test_models / "embeddings" / "bert.gguf", mux=False)
    daemon.send("ping x", "list id=2", "cancel id=9", "embed id=1 prompt=5,6", "status id=7 check=1")
    assert daemon.next_reply() == Pong("x")
    for request_id, code in ((2, ErrorCode.UNSUPPORTED), (9, ErrorCode.UNKNOWN_ID)):
        reply = daemon.next_reply()
        assert isinstance(reply, Err)
        assert (reply.code, reply.id) == (code, request_id)
    status, vector = sorted((daemon.next_reply(), daemon.next_reply()), key=lambda reply: isinstance(reply, Embedding))
    assert isinstance(vector, Embedding)
    assert isinstance(status, StatusLine)
    assert dict(status.fields)["id"] == "7"
    daemon.send("gen id=3 n=1 prompt=1")
    assert daemon.tokens_until_end() == []  # in this dialect a refusal ends with a sentinel too
    reply = daemon.next_reply()
    assert isinstance(reply, Err)
    assert reply.code is ErrorCode.UNSUPPORTED
    assert daemon.close() == 0


def test_a_daemon_for_answers_gives_no_vectors(start: Start) -> None:
    daemon = start()
    daemon.send("embed id=1 prompt=1,2")
    reply = daemon.next_reply()
    assert isinstance(reply, Err)
    assert (reply.code, reply.id) == (ErrorCode.UNSUPPORTED, 1)
    assert "--embedding" in reply.text


def test_the_end_of_input_lets_what_waits_be_answered(start_embedding: Start, test_models: Path) -> None:
    daemon = start_embedding(test_models / "embeddings" / "qwen3.gguf")
    daemon.send(*(f"embed id={number} prompt={','.join(['9'] * 300)}" for number in range(20)))
    daemon.close_input()
    for number in range(20):
        reply = daemon.next_reply()
        assert isinstance(reply, Embedding)
        assert reply.id == number
        assert struct.unpack("<128f", reply.values) == pytest.approx(struct.unpack("<128f", reply.values))
    assert daemon.wait() == 0


def test_what_is_cancelled_in_time_is_not_computed(start_embedding: Start, test_models: Path) -> None:
    daemon = start_embedding(test_models / "embeddings" / "qwen3.gguf")
    long = ",".join(["9"] * 500)
    daemon.send(*(f"embed id={number} prompt={long}" for number in range(10)), "cancel id=9")
    replies = [daemon.next_reply() for _ in range(11)]
    assert Cancelled(9) in replies
    (error,) = (reply for reply in replies if isinstance(reply, Err))
    assert (error.code, error.id) == (ErrorCode.CANCELLED, 9)
    assert sorted(reply.id for reply in replies if isinstance(reply, Embedding)) == list(range(9))
