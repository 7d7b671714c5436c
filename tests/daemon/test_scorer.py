"""Pages chosen by a small model beside the target (`--kv-offload-policy draft`): what has left the pool is found again,
in every lane, after a park and in later turns, whatever vocabulary the scorer has; one that cannot read is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from luce.protocol import Err
from luce.supervisor.text import TextModel
from tests.daemon.conftest import Start
from tests.daemon.exactness import done, generate, status_of
from tests.daemon.other_tokenizer import write_with_other_tokenizer
from tests.daemon.test_residency import N_CELLS, SMALL, Facts, recalled
from tests.daemon_driver import gen_line, random_prompt

SCORER = Path(__file__).resolve().parents[1] / "data" / "models" / "luce-tiny-scorer-Q8_0.gguf"


def by(scorer: Path) -> tuple[str, ...]:
    return ("--kv-offload-policy", "draft", "--kv-offload-scorer", str(scorer))


DRAFT = by(SCORER)


@pytest.fixture
def facts(tiny_model: Path) -> Facts:
    return Facts(TextModel(tiny_model), seed=5)


@pytest.fixture(scope="module")
def other_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scorer") / "other.gguf"
    write_with_other_tokenizer(SCORER, path)
    return path


def test_a_fact_that_has_left_the_pool_comes_back_by_the_scorer(
    start: Start, facts: Facts, tiny_model: Path, full: bool
) -> None:
    daemon = start(*SMALL, *DRAFT)
    n = 8 if full else 4
    assert recalled(daemon, facts, n) >= 3 * n // 4
    status = status_of(daemon)
    assert int(status["page_choices"]) == n
    assert int(status["page_keys_bytes"]) > 0
    assert int(status["scorer_bytes"]) > SCORER.stat().st_size / 2
    # Control: without looking at what is asked for, it is gone.
    lru = start(*SMALL, "--kv-offload-policy", "lru")
    assert recalled(lru, Facts(TextModel(tiny_model), seed=5), n) <= n // 4


def test_a_scorer_with_another_tokenizer_finds_it_too(
    start: Start, facts: Facts, other_tokenizer: Path, full: bool
) -> None:
    n = 8 if full else 4
    text = "The access code of the green owl is 73105; größer 日本語 🦊.\n"
    with TextModel(other_tokenizer) as other:
        ids = other.tokenize(text)
        assert other.detokenize(ids).decode() == text
        assert len(ids) != len(facts.ids(text))
    assert recalled(start(*SMALL, *by(other_tokenizer)), facts, n) > n // 2


@pytest.mark.full_only
def test_lanes_are_scored_each_by_its_own_text(start: Start, facts: Facts) -> None:
    daemon = start("--kv-offload", "1664", "--ctx", "4096", "--ubatch", "64", "--lanes", "4", *DRAFT)
    prompts = {i: facts.prompt(90, 0.15 * i) for i in range(1, 6)}
    daemon.send(*(gen_line(i, 24, prompt, "") for i, (prompt, _) in prompts.items()))
    answers = daemon.collect(len(prompts))
    assert all(not isinstance(answer.reply, Err) for answer in answers.values())
    assert sum(facts.tells(answers[i].tokens, code) for i, (_, code) in prompts.items()) >= 3
    daemon.send(gen_line(9, 2000, random_prompt(1500, seed=4), "ignore_eos=1"))
    assert daemon.next_token().id == 9
    daemon.send("cancel id=9")
    assert 9 in daemon.collect(1)
    assert status_of(daemon)["pages_out"] == "0"


@pytest.mark.full_only
def test_turns_go_on_from_what_was_read_through_slots_and_park(start: Start, facts: Facts, full: bool) -> None:
    daemon = start(*SMALL, *DRAFT)
    n = 4 if full else 2
    told = []
    n_keys = 0
    for i in range(n):
        prompt, code = facts.prompt(140, (i + 0.5) / 6)
        before = facts.tells(generate(daemon, prompt, "snap=900:2", 24).tokens, code)
        n_bytes = int(status_of(daemon)["scorer_bytes"])
        done(daemon, "park")
        assert status_of(daemon)["scorer_bytes"] == "0"
        done(daemon, "unpark")
        assert int(status_of(daemon)["scorer_bytes"]) == n_bytes > 0
        n_keys = int(status_of(daemon)["page_keys_bytes"])
        again = generate(daemon, prompt, "restore=2", 24)
        assert again.ok.restored == 900
        assert int(status_of(daemon)["page_keys_bytes"]) <= n_keys + 1024, "what was read is not read again"
        told.append((before, facts.tells(again.tokens, code)))
    assert sum(before for before, _ in told) >= n - 1
    assert sum(after for _, after in told) >= n - 1
    assert int(status_of(daemon)["pages_resident"]) * 64 <= N_CELLS


def test_what_fits_is_not_read(start: Start) -> None:
    daemon = start("--kv-offload", "1024", "--ctx", "1024", "--lanes", "1", "--ubatch", "64", *DRAFT)
    generate(daemon, random_prompt(600, seed=3))
    status = status_of(daemon)
    assert (status["page_choices"], status["page_keys_bytes"]) == ("0", "0")


def test_auto_asks_the_model_itself_where_it_can(start: Start, facts: Facts) -> None:
    daemon = start(*SMALL, "--kv-offload-scorer", str(SCORER))
    prompt, _ = facts.prompt(140, 0.4)
    generate(daemon, prompt, "", 4)
    status = status_of(daemon)
    assert (status["page_choices"], status["scorer_bytes"]) == ("1", "0")


@pytest.mark.parametrize(
    ("scorer", "says"),
    [
        ("README.md", "GGUF"),
        ("none.gguf", "none.gguf"),
        ("build/test-models/no_vocab.gguf", "another vocabulary"),
        ("build/test-models/qwen35.gguf", "recurrent state"),
    ],
)
def test_a_scorer_that_cannot_read_is_refused(
    luced: Path, tiny_model: Path, test_models: Path, scorer: str, says: str
) -> None:
    path = Path(__file__).resolve().parents[2] / scorer
    if scorer.startswith("build/test-models/"):
        path = test_models / path.name
    ended = subprocess.run(
        [luced, "--model", tiny_model, *SMALL, *by(path)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended
    assert ended.stdout.startswith("err start_failed "), ended.stdout
    assert says in ended.stdout
    assert "--kv-offload-scorer" in ended.stdout
