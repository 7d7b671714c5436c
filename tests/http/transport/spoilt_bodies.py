"""Bodies that real clients sent, spoilt: other types, depths, sizes and characters in places chosen by a seed.

Pure: what is done with them is the tests' business.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.clients.recorded import all_recorded

MAX_ANSWER = 4
BOUNDS = {"max_tokens", "max_output_tokens", "max_completion_tokens"}
TEXTS = (
    "", " ", "\x00", "\u202eabc\u202c", "\ud800", "\udfff\ud800", "🦙" * 50, "a\u0301" * 20, "<|im_start|>system\n",
    "<|im_end|>", "</tool_call><tool_call>", "{{ 7 * 7 }}", "{% raw %}", "../../etc/passwd", "%00%n%s",
    "\r\n\r\nHTTP/1.1", "data: [DONE]\n\n", "x" * 5000, "1e999", "NaN", "null", "-0", "\ufeff", "\\u0000", "[" * 300,
)  # fmt: skip
NUMBERS = (0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, 1e-320, 5e-324)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, [{}], {"type": "text"}, {"type": None})

Place = tuple[Any, Any]


def places(value: Any) -> list[Place]:
    """Every place in it: its container, and the name or index there."""
    names = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for name in names for place in ((value, name), *places(value[name]))]


def another_value(rng: random.Random, container: Any, name: Any) -> None:
    container[name] = rng.choice((rng.choice(TEXTS), rng.choice(NUMBERS), rng.choice(OTHERS)))


def no_value(rng: random.Random, container: Any, name: Any) -> None:  # noqa: ARG001  one shape for all
    del container[name]


def twice(rng: random.Random, container: Any, name: Any) -> None:
    if isinstance(container, list):
        container.insert(rng.randint(0, len(container)), container[name])
    else:
        container[rng.choice(TEXTS)] = container[name]


def deeper(rng: random.Random, container: Any, name: Any) -> None:
    for _ in range(rng.choice((1, 2, 40))):
        container[name] = rng.choice(([container[name]], {"content": container[name]}))


def as_text(rng: random.Random, container: Any, name: Any) -> None:  # noqa: ARG001
    container[name] = json.dumps(container[name])


def with_text(rng: random.Random, container: Any, name: Any) -> None:
    if isinstance(container[name], str):
        at = rng.randint(0, len(container[name]))
        container[name] = container[name][:at] + rng.choice(TEXTS) + container[name][at:]
    else:
        another_value(rng, container, name)


def from_elsewhere(rng: random.Random, container: Any, name: Any) -> None:
    other, key = rng.choice(places(rng.choice(all_recorded()).body()))
    container[name] = other[key]


SPOILERS: tuple[Callable[[random.Random, Any, Any], None], ...] = (
    another_value, no_value, twice, deeper, as_text, with_text, from_elsewhere,
)  # fmt: skip


def spoilt_body(seed: int) -> tuple[str, bytes]:
    """A path, and a body for it that costs the engine little."""
    rng = random.Random(seed)
    request = rng.choice(all_recorded())
    body = request.body()
    body.pop("max_completion_tokens", None)
    if rng.random() < 0.9:  # most of a long list only costs time
        body["tools"] = rng.sample(body.get("tools", []), min(len(body.get("tools", [])), 1))
    shorten(body)
    for _ in range(rng.choice((1, 1, 2, 5))):
        found = places(body)
        if not found:
            break
        at = rng.choice(found if rng.random() < 0.5 else found[:40])
        rng.choice(SPOILERS)(rng, *at)
    bound = "max_output_tokens" if request.path == "/v1/responses" else "max_tokens"
    if not isinstance(body.get(bound), str | list | dict | float | type(None)) or rng.random() < 0.9:
        body[bound] = MAX_ANSWER
    if rng.random() < 0.7:
        body["stream"] = False
    data = json.dumps(body).encode()
    if rng.random() < 0.05:  # not even JSON
        cut = rng.randint(0, len(data))
        data = data[:cut] + rng.choice((b"\xff\xfe", b"\x00", b"}", b",", b"")) + data[cut + rng.choice((0, 1, 1000)) :]
    return request.path, data


def shorten(value: Any) -> None:
    """Long texts cost the engine time and show nothing."""
    for container, name in places(value):
        if isinstance(container[name], str) and len(container[name]) > 40:
            container[name] = container[name][:40]
