"""Prompts of which only parts are read (`prefill=sparse`): facts are found, what is read later is exact, and nothing
that was read in parts ever counts as a whole. And `compress`, which says what would be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.protocol import CompressOk, End, Err, ErrorCode, Parked, PlainOk, Pong, Token, Weights
from luce.supervisor.text import TextModel
from tests.daemon.conftest import Start
from tests.daemon.exactness import done, generate, status_of
from tests.daemon.same_tokens import Comparison
from tests.daemon.test_residency import Facts
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt, to_bytes

SCORER = Path(__file__).resolve().parents[1] / "data" / "models" / "luce-tiny-scorer-Q8_0.gguf"
BY_SCORER = ("--prefill-scorer", str(SCORER))
NO_REPAIR = ("--prefill-repair", "off")
CTX = ("--ctx", "8192")
SPARSE = "prefill=sparse prefill_keep=0.2"
N_SENTENCES = 220  # some 2,000 tokens: from 1,024 on that no memory has, parts are read
AGAIN = "\n<|im_start|>user\nAnd again?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def facts(tiny_model: Path) -> Facts:
    return Facts(TextModel(tiny_model), seed=9)


def repaired(daemon: DaemonDriver) -> dict[str, str]:
    """Once all that was owed has been read."""
    while (status := status_of(daemon))["prefill_repairs"] != "0":
        pass
    return status


def test_a_fact_is_found_in_a_fifth_of_the_text(start: Start, facts: Facts, full: bool) -> None:
    daemon = start(*CTX, *BY_SCORER, *NO_REPAIR)
    n = 16 if full else 4
    n_found = 0
    for i in range(n):
        prompt, code = facts.prompt(380 if full else N_SENTENCES, (i + 0.5) / n)
        told = generate(daemon, prompt, SPARSE, 24)
        assert told.ok.n_prompt == len(prompt)
        assert told.ok.n_read is not None
        assert told.ok.n_read <= 0.2 * len(prompt) + 64
        n_found += facts.tells(told.tokens, code)
    assert n_found >= n - 1
    status = status_of(daemon)
    assert int(status["prefill_sparse"]) == n
    assert int(status["prefill_left_out"]) > 0.75 * int(status["prefill_sparse_tokens"])
    assert status["integrity"] == "ok"


def test_what_was_read_in_parts_is_no_prefix_of_what_is_read_whole(start: Start, facts: Facts) -> None:
    daemon = start(*CTX, *BY_SCORER, *NO_REPAIR)
    plain = start(*CTX)
    prompt, _ = facts.prompt(N_SENTENCES, 0.4)
    generate(daemon, prompt, SPARSE, 8)
    comparison = Comparison(0.05)
    expected, margins = plain_answer(plain, prompt)
    told = generate(daemon, prompt, "", 24)
    assert told.ok.n_read is None
    comparison.check("whole", told.tokens, expected, margins)
    comparison.finish()


def plain_answer(daemon: DaemonDriver, prompt: list[int]) -> tuple[list[int], list[float]]:
    """And by how much each token was the best."""
    answer = daemon.generate(prompt, 24, "ignore_eos=1 logprobs=2 reuse=0")
    margins = [line.entries[1][1] - line.entries[2][1] for line in answer.logprobs]
    return answer.tokens, margins


@pytest.mark.parametrize(
    "more",
    [pytest.param((), marks=pytest.mark.full_only), ("--disk-cache", "DISK", "--host-cache", "64M")],
    ids=["memory", "disk"],
)
def test_after_the_repair_the_next_turn_stands_on_exact_memory(
    start: Start, facts: Facts, tmp_path: Path, more: tuple[str, ...]
) -> None:
    arguments = (*CTX, *BY_SCORER, *(str(tmp_path / "disk") if word == "DISK" else word for word in more))
    daemon = start(*arguments)
    prompt, code = facts.prompt(N_SENTENCES, 0.6)
    first = generate(daemon, prompt, SPARSE, 24)
    assert facts.tells(first.tokens, code)
    status = repaired(daemon)
    assert int(status["prefill_repaired"]) >= len(prompt)
    assert status["lanes_busy"] == "0"
    next_turn = [*prompt, *first.tokens, *facts.ids(AGAIN)]
    told = generate(daemon, next_turn, SPARSE, 24)
    assert told.ok.n_read is None, "little is new: it is read whole"
    assert told.ok.n_reused >= len(prompt)
    expected, margins = plain_answer(start(*CTX), next_turn)
    comparison = Comparison(0.05)
    comparison.check("next turn", told.tokens, expected, margins)
    comparison.finish()
    if more:
        done(daemon, "CLEAR")
        assert generate(daemon, next_turn, "", 4).ok.n_reused >= len(prompt), "the disk has what was repaired"


def test_without_repair_the_next_turn_goes_on_from_the_parts(start: Start, facts: Facts) -> None:
    daemon = start(*CTX, *BY_SCORER, *NO_REPAIR)
    prompt, code = facts.prompt(N_SENTENCES, 0.6)
    first = generate(daemon, prompt, SPARSE, 24)
    n_scored = int(status_of(daemon)["prefill_scored"])
    next_turn = [*prompt, *first.tokens, *facts.ids(AGAIN)]
    told = generate(daemon, next_turn, SPARSE, 24)
    assert told.ok.n_read is not None
    assert first.ok.n_read is not None
    assert told.ok.n_read - first.ok.n_read < 60
    assert told.ok.n_reused >= first.ok.n_read - 1
    assert int(status_of(daemon)["prefill_scored"]) == n_scored
    assert facts.tells(told.tokens, code) or told.tokens


def test_keep_and_blocks_are_read(start: Start, facts: Facts) -> None:
    daemon = start(*CTX, *BY_SCORER, *NO_REPAIR)
    prompt, _ = facts.prompt(N_SENTENCES, 0.5)
    daemon.send(f"compress id=4 share=0.05 keep=700:900 blocks=1000:1100,1150:1160 prompt={','.join(map(str, prompt))}")
    kept = daemon.tokens_until_end()
    reply = daemon.next_reply()
    assert isinstance(reply, CompressOk)
    assert (reply.id, reply.n_in, reply.n_out) == (4, len(prompt), len(kept))
    assert any(part.begin <= 700 and part.end >= 900 for part in reply.parts)
    assert kept == [token for part in reply.parts for token in prompt[part.begin : part.end]]


@pytest.mark.parametrize("mux", [True, False])
def test_compress_by_place(start: Start, facts: Facts, tmp_path: Path, *, mux: bool) -> None:
    prompt, code = facts.prompt(N_SENTENCES, 0.5)
    path = tmp_path / "prompt.bin"
    path.write_bytes(to_bytes(prompt))
    daemon = start(*CTX, mux=mux)
    daemon.send(f"compress {path} 200")
    assert isinstance(daemon.next_token(), End)
    reply = daemon.next_reply()
    assert isinstance(reply, Err)
    assert reply.code is ErrorCode.UNSUPPORTED
    assert "--prefill-scorer" in reply.text
    daemon.send(f"compress {path} 200 {tmp_path / 'none.gguf'} nopark")
    assert isinstance(daemon.next_token(), End)
    assert isinstance(daemon.next_reply(), Err)
    # The file that it names is loaded, and stays.
    for line in (f"compress {path} 200 {SCORER} nopark", f"compress {path} 200"):
        daemon.send(line)
        kept = daemon.tokens_until_end()
        ok = daemon.next_reply()
        assert isinstance(ok, CompressOk)
        assert len(kept) == ok.n_out <= 0.2 * len(prompt) + 64
        assert facts.tells(kept, code)
    assert int(status_of(daemon)["prefill_scorer_bytes"]) > SCORER.stat().st_size / 2
    # Its memory goes at a word, and it comes back when it is asked.
    for line, said in (("free drafter", PlainOk()), ("park draft", Parked(Weights.DRAFT))):
        daemon.send(line)
        assert daemon.next_reply() == said
        assert status_of(daemon)["prefill_scorer_bytes"] == "0"
        daemon.send(f"compress {path} 200")
        assert daemon.tokens_until_end() == kept
        assert isinstance(daemon.next_reply(), CompressOk)


def test_what_does_not_go_together_is_refused(start: Start) -> None:
    prompt = random_prompt(1500)
    daemon = start("--ctx", "4096", *BY_SCORER)
    for extra in ("prefill=sparse snap=64:0", "prefill=auto restore=0"):
        daemon.send(gen_line(1, 4, prompt, extra))
        assert isinstance(daemon.next_token(), End)
        reply = daemon.next_reply()
        assert isinstance(reply, Err)
        assert reply.code in {ErrorCode.UNSUPPORTED, ErrorCode.EMPTY_SLOT}
    without = start("--ctx", "4096")
    without.send(gen_line(1, 4, prompt, "prefill=sparse"))
    assert isinstance(without.next_token(), End)
    reply = without.next_reply()
    assert isinstance(reply, Err)
    assert reply.code is ErrorCode.UNSUPPORTED
    # What the daemon was started with is a wish: who does not ask for it is not refused.
    eager = start("--ctx", "4096", "--prefill", "sparse", *BY_SCORER)
    assert generate(eager, prompt, "snap=64:0", 4).ok.n_read is None
    assert generate(eager, random_prompt(1500, seed=2), "", 4).ok.n_read is not None
    assert generate(eager, random_prompt(1500, seed=3), "prefill=full", 4).ok.n_read is None


def test_a_prompt_beyond_the_context_is_admitted(start: Start, facts: Facts, tmp_path: Path) -> None:
    daemon = start("--ctx", "512", *BY_SCORER)
    prompt, code = facts.prompt(260, 0.3)
    assert len(prompt) > 4 * 512
    path = tmp_path / "long.bin"
    path.write_bytes(to_bytes(prompt))
    daemon.send(gen_line(1, 24, path, ""))
    assert isinstance(daemon.next_token(), End)
    refused = daemon.next_reply()
    assert isinstance(refused, Err)
    assert refused.code is ErrorCode.PROMPT_TOO_LONG
    daemon.send(gen_line(2, 24, path, "prefill=auto"))
    tokens = daemon.tokens_until_end()
    assert (daemon.next_ok().n_read or 9999) < 512
    assert facts.tells(tokens, code)


def test_cancel_and_park_while_it_is_scored_and_repaired(start: Start) -> None:
    daemon = start(*CTX, "--lanes", "1", *BY_SCORER)
    prompt = random_prompt(1500)
    daemon.send(gen_line(1, 4, prompt, SPARSE), "cancel id=1")
    answer = daemon.collect(1)[1]
    assert answer.tokens == []
    daemon.send(gen_line(2, 4, prompt, SPARSE))
    assert daemon.collect(1)[2].tokens
    assert status_of(daemon)["prefill_repairs"] == "1"
    done(daemon, "park")
    status = status_of(daemon)
    assert (status["prefill_repairs"], status["prefill_scorer_bytes"]) == ("1", "0")
    done(daemon, "unpark")
    # Who comes meanwhile does not wait for its end.
    daemon.send(gen_line(3, 2, random_prompt(50, seed=4), ""))
    assert isinstance(daemon.next_token(), Token)
    assert daemon.collect(1)
    repaired(daemon)
    assert generate(daemon, [*prompt, 5], "", 2).ok.n_reused == len(prompt)


@pytest.mark.parametrize(
    "more",
    [
        ("--kv-offload", "640", "--ubatch", "64", "--lanes", "1"),
        ("--kv-offload", "640", "--ubatch", "64", "--lanes", "1", "--kv-offload-policy", "draft"),
        pytest.param(("--draft-max", "8"), marks=pytest.mark.full_only),
    ],
    ids=["bounded", "bounded by the scorer", "n-grams"],
)  # fmt: skip
def test_it_goes_with_what_else_there_is(start: Start, facts: Facts, more: tuple[str, ...]) -> None:
    daemon = start(*CTX, *BY_SCORER, *more)
    prompt, code = facts.prompt(N_SENTENCES, 0.5)
    told = generate(daemon, prompt, "prefill=sparse prefill_keep=0.4", 24)
    assert told.ok.n_read is not None
    assert facts.tells(told.tokens, code)
    assert repaired(daemon)["integrity"] == "ok"
    again = generate(daemon, [*prompt, *told.tokens, *facts.ids("\n")], "", 8)
    assert again.ok.n_reused >= len(prompt)


@pytest.mark.parametrize("name", ["gemma4", "laguna", "qwen3moe", "qwen3"])
def test_models_with_positions_of_one_part(start: Start, test_models: Path, name: str) -> None:
    """What they answer means nothing; that the parts stand where they stand, that later tokens do, too, and that all of
    it is one text to memory does."""
    model = test_models / f"{name}.gguf"
    prompt = [token % 100 for token in random_prompt(1500)]
    daemon = start(*CTX, *NO_REPAIR, "--prefill-scorer", str(model), model=model)
    first = generate(daemon, prompt, "prefill=sparse prefill_keep=0.3", 12)
    again = generate(daemon, prompt, "prefill=sparse prefill_keep=0.3", 12)
    assert first.ok.n_read is not None
    assert again.tokens == first.tokens
    assert again.ok.n_reused > 0
    assert status_of(daemon)["integrity"] == "ok"


def test_parts_are_found_on_disk_after_a_restart(start: Start, tmp_path: Path) -> None:
    prompt = random_prompt(1600, seed=7)
    arguments = (*CTX, *BY_SCORER, *NO_REPAIR, "--disk-cache", str(tmp_path / "disk"))
    first = start(*arguments)
    told = generate(first, prompt, SPARSE, 4)
    first.close()
    again = generate(start(*arguments), prompt, SPARSE, 4)
    assert again.tokens == told.tokens
    assert again.ok.n_read == told.ok.n_read
    assert again.ok.n_reused == told.ok.n_read


def test_in_the_plain_dialect_the_scorer_is_freed_in_turn(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "prompt.bin"
    path.write_bytes(to_bytes(random_prompt(1500)))
    daemon = start(*CTX, *BY_SCORER, mux=False)
    daemon.send(f"compress {path} 200", "free drafter", "ping end")
    assert daemon.tokens_until_end()
    replies = [daemon.next_reply() for _ in range(3)]
    assert [type(reply) for reply in replies if not isinstance(reply, Pong)] == [CompressOk, PlainOk]
    assert status_of(daemon)["prefill_scorer_bytes"] == "0"


def test_a_scorer_whose_file_has_changed_is_read_anew_or_refused(start: Start, tmp_path: Path) -> None:
    scorer = tmp_path / "scorer.gguf"
    good = SCORER.read_bytes()
    scorer.write_bytes(good)
    daemon = start(*CTX, "--prefill-scorer", str(scorer))
    prompt = ",".join(map(str, random_prompt(1200)))

    def compress() -> CompressOk | Err:
        daemon.send(f"compress id=5 share=0.2 prompt={prompt}")
        daemon.tokens_until_end()
        reply = daemon.next_reply()
        assert isinstance(reply, CompressOk | Err)
        return reply

    before = compress()
    assert isinstance(before, CompressOk)
    for _ in range(2):
        done(daemon, "free drafter")
        scorer.unlink()
        scorer.write_bytes(b"GGUF, and nothing else")
        for _ in range(3):
            assert isinstance(compress(), Err)
            assert status_of(daemon)["prefill_scorer_bytes"] == "0"
        # Requests are answered, all of their prompts read.
        assert generate(daemon, random_prompt(1200, seed=3), SPARSE, 2).ok.n_read is None
        scorer.unlink()
        scorer.write_bytes(good)
        assert compress() == before
