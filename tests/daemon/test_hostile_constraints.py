"""Constraints that hung, crashed or exhausted the daemon inside llama.cpp get an answer in time, and good ones pass.

llama.cpp runs on the daemon's one thread: each test asks for another answer from the same daemon afterwards.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from luce.protocol import Err, ErrorCode, GenerateOk
from luce.protocol import percent_encode as encode
from luce.supervisor.text import BadRequestError, RenderedChat, TemplateError, TextModel, schema_to_grammar
from tests.conftest import GoldenCase
from tests.daemon.conftest import Start
from tests.daemon_driver import Answer, DaemonDriver, gen_line

DEADLINE_S = 120.0
SMALL_STACK_BYTES = 3 << 20
PROMPT = [60, 61, 62, 63]
DIGITS = encode("root ::= [0-9]+")
LAZY = f"grammar={DIGITS} grammar_lazy=1"


@pytest.fixture
def daemon(start: Start) -> DaemonDriver:
    return start()


@pytest.fixture(scope="module")
def text(tiny_model: Path) -> Iterator[TextModel]:
    with TextModel(tiny_model) as model:
        yield model


def ask(daemon: DaemonDriver, extra: str, n: int = 4, prompt: list[int] | None = None) -> Answer:
    """One request whose final reply comes within the deadline."""
    until_s = time.monotonic() + DEADLINE_S
    daemon.send(gen_line(1, n, prompt or PROMPT, extra))
    tokens = daemon.tokens_until_end(DEADLINE_S)
    reply = daemon.next_reply(max(0.1, until_s - time.monotonic()))
    assert isinstance(reply, GenerateOk | Err), reply
    return Answer(tokens, reply)


def assert_refused(daemon: DaemonDriver, extra: str, code: ErrorCode, prompt: list[int] | None = None) -> None:
    reply = ask(daemon, extra, prompt=prompt).reply
    assert isinstance(reply, Err), reply
    assert reply.code is code, reply
    assert isinstance(ask(daemon, "").reply, GenerateOk)


def assert_answered(daemon: DaemonDriver, extra: str) -> None:
    reply = ask(daemon, extra, n=1).reply
    assert isinstance(reply, GenerateOk), (reply, extra[:300])


def rules(n: int, body: str, last: str) -> str:
    lines = ["root ::= r-0", *(f"r-{i} ::= {body.format(i + 1)}" for i in range(n)), f"r-{n} ::= {last}"]
    return "\n".join(lines)


HOSTILE_GRAMMARS = {
    "a maximum below the minimum": 'root ::= "a"{5,3}',
    "exponentially many ways to look for left recursion": rules(40, 'r-{0} "a" | r-{0} "b"', '"x"'),
    "hidden left recursion": 'root ::= a\na ::= b a "y" | "z"\nb ::= c\nc ::= ""',
    "deep brackets": "root ::= " + "(" * 200_000 + '"a"' + ")" * 200_000,
    "a long chain": rules(200_000, "r-{0}", '"x"'),
    "a long literal repeated": 'root ::= "' + "x" * 1_000_000 + '"{2000}',
    "many optional characters": "root ::= " + ".? " * 2000,
    "many free repetitions": "root ::= " + ".* " * 1000,
    "a class of many parts": "root ::= [" + "#%" * 400_000 + "]*",
}


@pytest.mark.parametrize("name", HOSTILE_GRAMMARS)
def test_a_hostile_grammar_is_refused(daemon: DaemonDriver, tmp_path: Path, name: str) -> None:
    path = tmp_path / "grammar.gbnf"
    path.write_text(HOSTILE_GRAMMARS[name])
    assert_refused(daemon, f"grammar=@{path}", ErrorCode.BAD_GRAMMAR)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 5, "maxLength": 3},
        {"type": "array", "items": {"type": "integer"}, "minItems": 5, "maxItems": 3},
        {"type": "string", "pattern": "^a{5,3}$"},
    ],
)
def test_a_schema_that_nothing_fits_is_refused(daemon: DaemonDriver, schema: dict[str, object]) -> None:
    assert_refused(daemon, f"grammar={encode(schema_to_grammar(schema))}", ErrorCode.BAD_GRAMMAR)


@pytest.mark.parametrize(
    "pattern",
    ["(" * 50_000 + ")" * 50_000, "(.*)*(.*)*(.*)*Q#Q", "(.|x)*Q#Q"],
    ids=["deep brackets", "repeated repetitions", "repeated alternatives"],
)
def test_a_hostile_trigger_is_refused(daemon: DaemonDriver, pattern: str) -> None:
    assert_refused(daemon, f"{LAZY} triggers=pattern:{encode(pattern)}", ErrorCode.BAD_GRAMMAR)


@pytest.fixture
def small_stack() -> Iterator[int]:
    """What is started meanwhile has a main stack of so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (SMALL_STACK_BYTES, hard))
    yield SMALL_STACK_BYTES
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def test_a_trigger_waits_through_a_long_answer(small_stack: int, start: Start, text: TextModel) -> None:
    """std::regex recurses once a character, 200 bytes deep: a long answer took more stack than there was."""
    longest = max((i for i in range(60, text.n_vocab) if text.piece(i).isascii()), key=lambda i: len(text.piece(i)))
    n_resumed = small_stack // 160 // len(text.piece(longest))
    daemon = start("--ctx", str(n_resumed + 1000))
    pattern = encode("^[^Q]*?(Q#Q)[^Q]*$")
    extra = f"{LAZY} triggers=full:{pattern} logit_bias={longest}:1000 generated={n_resumed}"
    reply = ask(daemon, extra, n=8, prompt=[*PROMPT, *[longest] * n_resumed]).reply
    assert isinstance(reply, GenerateOk), reply
    assert isinstance(ask(daemon, "").reply, GenerateOk)


def test_an_end_token_in_the_generation_prompt_is_refused(
    daemon: DaemonDriver, golden: list[GoldenCase], text: TextModel
) -> None:
    end = encode(text.piece(golden[3].tokens[-1], special=True).decode())
    assert_refused(daemon, f"grammar={DIGITS} gen_prompt={end}", ErrorCode.BAD_ARGS)
    assert_refused(daemon, f"grammar={DIGITS} gen_prompt={'x' * 70_000}", ErrorCode.BAD_ARGS)
    assert_refused(daemon, f"grammar={DIGITS} gen_prompt=abc", ErrorCode.BAD_GRAMMAR)


def test_an_end_token_that_ends_the_reasoning_of_a_lazy_grammar_is_refused(
    daemon: DaemonDriver, golden: list[GoldenCase], text: TextModel
) -> None:
    """The grammar has been triggered, waits for the reasoning's end and is then fed that end."""
    end = golden[3].tokens[-1]
    [trigger] = text.tokenize("7")
    [think] = text.tokenize("8")
    extra = f"grammar={encode('root ::= [0-9]{9}')} grammar_lazy=1 triggers=token:{trigger} think_start={think}"
    extra += f" think_end={end} generated=2 logit_bias={end}:1000 ignore_eos=1"
    assert_refused(daemon, extra, ErrorCode.BAD_ARGS, prompt=[*PROMPT, trigger, think])


@pytest.mark.parametrize("temperature", ["1e-38", "1e-10", "1e-7"])
def test_a_temperature_next_to_zero_is_zero(start: Start, temperature: str) -> None:
    daemon = start("--draft-max", "0")  # drafts come as time goes, and other batches would round otherwise
    greedy = ask(daemon, "", n=20).tokens
    assert ask(daemon, f"temp={temperature} seed=4", n=20).tokens == greedy


def test_biases_are_limited_and_each_id_is_named_once(daemon: DaemonDriver) -> None:
    assert ask(daemon, "logit_bias=77:3e38 temp=0.001 seed=1", n=3).tokens == [77, 77, 77]
    assert_refused(daemon, "logit_bias=77:1,78:1,77:1", ErrorCode.BAD_ARGS)


def test_a_resumed_end_token_is_taken_where_the_grammar_takes_it(
    daemon: DaemonDriver, golden: list[GoldenCase], text: TextModel
) -> None:
    end = golden[3].tokens[-1]
    [digit] = text.tokenize("7")
    resumed = f"generated=2 ignore_eos=1 grammar={DIGITS}"
    waiting = f"generated=2 ignore_eos=1 {LAZY} triggers=word:never"
    assert isinstance(ask(daemon, resumed, prompt=[*PROMPT, digit, end]).reply, GenerateOk)
    assert isinstance(ask(daemon, waiting, prompt=[*PROMPT, 70, end]).reply, GenerateOk)
    assert_refused(daemon, resumed, ErrorCode.BAD_ARGS, prompt=[*PROMPT, end, digit])
    triggered = f"generated=2 ignore_eos=1 {LAZY} triggers=token:{digit}"
    assert isinstance(ask(daemon, triggered, prompt=[*PROMPT, digit, end]).reply, GenerateOk)
    assert_refused(
        daemon,
        f"generated=2 grammar={encode('root ::= [0-9] [0-9]')} grammar_lazy=1 triggers=token:{digit}",
        ErrorCode.BAD_ARGS,
        prompt=[*PROMPT, digit, end],
    )


SCHEMAS: list[dict[str, object]] = [
    {"type": "object", "properties": {f"key-{i}": {"type": "string"} for i in range(60)}},
    {"type": "object", "properties": {f"k{i}": {"type": "number"} for i in range(120)}, "required": ["k7", "k90"]},
    {"enum": [f"value {i}" for i in range(2000)]},
    {"type": "string", "minLength": 3, "maxLength": 1500},
    {"type": "string", "pattern": "^[a-z]{2,5}(-[0-9]{1,3})?$"},
    {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "integer"}}, "maxItems": 200},
    {"type": "integer", "minimum": -12345, "maximum": 987654321},
    {"type": "string", "format": "date-time"},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
    {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"type": "object"}]},
]


def tools() -> list[dict[str, object]]:
    return [
        {"type": "function", "function": {"name": f"tool_{i}", "description": "d", "parameters": schema}}
        for i, schema in enumerate([*SCHEMAS[:2], {"type": "object", "properties": {"x": SCHEMAS[4], "y": SCHEMAS[5]}}])
    ]


def constraint_of(chat: RenderedChat) -> str:
    words = [f"grammar={encode(chat.grammar)}"]
    if chat.grammar_lazy:
        triggers = ",".join(
            f"{t.kind}:{t.token if t.kind == 'token' else encode(t.value).replace(',', '%2C')}" for t in chat.triggers
        )
        words += ["grammar_lazy=1", f"triggers={triggers}"]
    if chat.generation_prompt:
        words.append(f"gen_prompt={encode(chat.generation_prompt)}")
    if chat.thinking.supported and chat.thinking.start_tokens and chat.thinking.ends_tokens:
        words.append("think_start=" + ",".join(map(str, chat.thinking.start_tokens)))
        words.append("think_end=" + "|".join(",".join(map(str, end)) for end in chat.thinking.ends_tokens))
    return " ".join(words)


def test_the_grammars_of_schemas_and_of_llama_cpp_itself_pass(daemon: DaemonDriver, llama_templates_dir: Path) -> None:
    for schema in SCHEMAS:
        assert_answered(daemon, f"grammar={encode(schema_to_grammar(schema))}")
    paths = sorted((llama_templates_dir.parent.parent / "grammars").glob("*.gbnf"))
    assert len(paths) >= 8
    for path in paths:
        assert_answered(daemon, f"grammar=@{path}")


def test_the_constraints_of_every_template_of_llama_cpp_pass(
    daemon: DaemonDriver, llama_templates_dir: Path, tiny_model: Path
) -> None:
    n_constraints = 0
    for path in sorted(llama_templates_dir.glob("*.jinja")):
        with TextModel(tiny_model, chat_template=path.read_text()) as model:
            for choice in ("auto", "required"):
                try:
                    chat = model.render([{"role": "user", "content": "Hi"}], tools=tools(), tool_choice=choice)
                except (BadRequestError, TemplateError):
                    continue  # a template that takes no tools, or no plain messages
                if chat.grammar:
                    n_constraints += 1
                    assert_answered(daemon, constraint_of(chat))
    assert n_constraints > 60
