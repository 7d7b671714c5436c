"""A prompt's own log-probabilities are those of its tokens one by one: read cold or behind what memory knows, alone or
among others, with and without state beside the rows of attention.
"""

from __future__ import annotations

import pytest

from luce.protocol import Err, ErrorCode, GenerateOk
from tests.daemon.conftest import Start
from tests.daemon_driver import Answer, DaemonDriver, gen_line, random_prompt

NEAR = 1e-3
N_PROMPT = 90  # more than a page and than a call's rows


def one_by_one(daemon: DaemonDriver, prompt: list[int]) -> list[float]:
    """Each token behind the first is forced as the answer to what comes before it: its logprob is the model's own."""
    told = []
    for at in range(1, len(prompt)):
        answer = daemon.generate(prompt[:at], 1, f"logprobs=1 reuse=0 logit_bias={prompt[at]}:100000")
        assert answer.tokens == [prompt[at]]
        told.append(answer.logprobs[0].entries[0][1])
    return told


def check(answer: Answer, prompt: list[int], expected: list[float], first: int = 1) -> None:
    assert isinstance(answer.reply, GenerateOk)
    assert [line.position for line in answer.prompt_logprobs] == list(range(first, len(prompt)))
    assert [line.entries[0][0] for line in answer.prompt_logprobs] == prompt[first:]
    told = [line.entries[0][1] for line in answer.prompt_logprobs]
    assert told == pytest.approx(expected[first - 1 :], abs=NEAR)


def test_they_are_those_of_the_tokens_one_by_one(start: Start) -> None:
    daemon = start("--lanes", "3")
    prompt = random_prompt(N_PROMPT)
    expected = one_by_one(daemon, prompt)
    cold = daemon.generate(prompt, 3, "prompt_logprobs=2 reuse=0")
    check(cold, prompt, expected)
    assert all(len(line.entries) == 3 for line in cold.prompt_logprobs)

    assert daemon.generate(prompt, 3).tokens == cold.tokens  # memory knows it from here on
    warm = daemon.generate(prompt, 3, "prompt_logprobs=0")
    check(warm, prompt, expected)
    assert warm.tokens == cold.tokens
    later = daemon.generate(prompt, 0, "prompt_logprobs=0 prompt_logprobs_from=70")
    check(later, prompt, expected, first=70)
    reused = daemon.generate(prompt, 3).reply
    assert isinstance(reused, GenerateOk)
    assert reused.n_reused == N_PROMPT  # still

    others = [random_prompt(40, seed) for seed in (2, 3)]
    daemon.send(
        gen_line(1, 4, prompt, "prompt_logprobs=1"),
        gen_line(2, 20, others[0], "logprobs=1"),
        gen_line(3, 4, others[1], "prompt_logprobs=1"),
    )
    answers = daemon.collect(3)
    check(answers[1], prompt, expected)
    assert answers[2].prompt_logprobs == []
    assert [line.position for line in answers[3].prompt_logprobs] == list(range(1, 40))


def test_what_an_earlier_run_generated_has_none(start: Start) -> None:
    prompt = random_prompt(30)
    answer = start().generate(prompt, 1, "prompt_logprobs=0 prompt_logprobs_from=10 generated=5")
    assert [line.position for line in answer.prompt_logprobs] == list(range(10, 25))


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        pytest.param(("--kvflash", "2048", "--lanes", "1"), "", id="a bounded pool"),
        pytest.param((), "prefill=sparse", id="a prompt that is read in parts"),
    ],
)
def test_they_are_refused_where_tokens_do_not_see_all_before_them(
    start: Start, options: tuple[str, ...], extra: str
) -> None:
    refusal = start(*options).generate(random_prompt(30), 1, f"prompt_logprobs=0 {extra}").reply
    assert isinstance(refusal, Err)
    assert refusal.code is ErrorCode.UNSUPPORTED
