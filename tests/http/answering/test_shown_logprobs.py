"""Which tokens are the content: whatever is taken out of an answer, held back or cut off, the entries join to it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.http.answering.answer_events import Logprob, TokenLogprob
from luce.supervisor.http.answering.shown_logprobs import ShownLogprobs


def token(number: int, spelled: bytes) -> TokenLogprob:
    return TokenLogprob(Logprob(number, spelled, -1.0))


@dataclass
class Written:
    """A part of an answer: what it is, and its text."""

    kind: str
    text: str


texts = st.text(st.sampled_from("abc <>é日"), min_size=1, max_size=8)
parts = st.lists(
    st.builds(Written, st.sampled_from(["content", "reasoning", "mark", "call"]), texts), min_size=1, max_size=6
)


@given(parts, st.lists(st.integers(1, 2), min_size=1, max_size=9), st.booleans())
def test_the_entries_join_to_the_content(written: list[Written], sizes: list[int], keeps_all: bool) -> None:
    """Each part is told once the token has come in which it ends, as parsers do."""
    spelled = "".join(f"[{part.text}]" if part.kind in {"mark", "call"} else part.text for part in written).encode()
    ends, at = [], 0
    for part in written:
        at += len(part.text.encode()) + (2 if part.kind in {"mark", "call"} else 0)
        ends.append(at)
    shown, content = ShownLogprobs(keeps_all=keeps_all), ""
    entries: list[TokenLogprob] = []
    begin = number = 0
    told = 0
    while begin < len(spelled):
        size = sizes[number % len(sizes)]
        shown.write(token(number, spelled[begin : begin + size]))
        begin, number = begin + size, number + 1
        while told < len(written) and ends[told] <= begin:
            part = written[told]
            told += 1
            if part.kind == "content":
                content += part.text
                entries += shown.show(part.text)
            elif part.kind != "mark":
                shown.pass_over(part.text if part.kind == "reasoning" else None)
    entries += shown.finish()
    assert entries == list(shown.all)
    assert b"".join(entry.chosen.bytes for entry in entries).decode() == content
    numbers = [entry.chosen.token for entry in entries]
    assert numbers == (list(range(number)) if keeps_all else sorted(set(numbers)))


def test_a_token_that_is_shown_in_two_parts_is_told_once_it_is_whole() -> None:
    shown = ShownLogprobs(keeps_all=False)
    shown.write(token(1, b"ab"))
    shown.write(token(2, b"cd"))
    assert [entry.chosen.token for entry in shown.show("abc")] == [1]
    assert [entry.chosen.bytes for entry in shown.show("d")] == [b"cd"]


def test_what_a_stop_string_cuts_off_is_cut_off_the_token() -> None:
    shown = ShownLogprobs(keeps_all=False)
    shown.write(token(1, b"ab"))
    shown.write(token(2, b"cd"))
    shown.show("abc")
    assert [entry.chosen.bytes for entry in shown.finish()] == [b"c"]
