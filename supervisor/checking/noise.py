"""How far rounding moves a model's numbers on this machine: one text is read in wide calls and token by token, which
backends compute with other kernels. What the checks allow is derived from that; knows none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from luce.supervisor.checking.engines import COLD, EngineStarter, Question
from luce.supervisor.checking.same_tokens import Step
from luce.supervisor.checking.subject import EXACT, PLAIN

N_MEASURED = 256
"""Tokens of the text: more are not read."""
_WIDTHS = (128, 1)  # tokens a call
_CTX = 512
_N_LIKELIEST = 5
_BEYOND = 2  # of thousands of steps some move farther than the farthest of a few hundred
_LEAST = 0.3
"""In logits, also where the width moves nothing: with a q8_0 cache SmolLM2's log-probabilities moved by up to 0.33
where a text lay in other cells, unlikely tokens among them."""


async def measure_noise(starter: EngineStarter, ids: Sequence[int]) -> float:
    """In logits: steps whose two likeliest tokens are closer than this may be turned by rounding, and log-probabilities
    may move by as much. `ids`: a text of two tokens or more. Raises StartError, EngineError, EngineDied."""
    readings: list[Sequence[Step]] = []
    for width in _WIDTHS:
        small = {"ctx": _CTX, "pool": None, "lanes": 1, "batch": width, "ubatch": width}
        async with starter.engine(**(EXACT | PLAIN | small)) as engine:
            question = Question(ids[:N_MEASURED], n=1, memory=COLD, n_prompt_logprobs=_N_LIKELIEST)
            readings.append((await engine.ask(question)).prompt_steps)
    return noise_of(*readings)


def noise_of(wide: Sequence[Step], narrow: Sequence[Step]) -> float:
    """From the same places of a text, read in two ways. At the step itself neither is the text's own token counted, nor
    what is not told of both: unlikely tokens move far, and turn nothing."""
    moves = [move for both in zip(wide, narrow, strict=True) for move in _moves(*both)]
    return max(_LEAST, _BEYOND * max(moves, default=0.0))


def _moves(wide: Step, narrow: Step) -> Iterator[float]:
    """Of the likeliest token's log-probability, and of its lead over the second one."""
    (first, likeliest), (second, next_best) = wide[1], wide[2]
    there = dict(narrow[1:])
    if first in there:
        yield abs(there[first] - likeliest)
        if second in there:
            yield abs((there[first] - there[second]) - (likeliest - next_best))
