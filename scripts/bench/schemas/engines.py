"""What makes grammars of schemas, one way to ask each: ours, llama.cpp's converter alone, llguidance and xgrammar.

A checker says whether a whole text is accepted. Grammars in GBNF are read by the tests' own reader. Knows no suite.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from luce.supervisor.text import SchemaError, schema_to_grammar
from luce.supervisor.text.schemas import compile_schema
from tests.gbnf import Grammar

Accepts = Callable[[str], bool]


class RefusedError(Exception):
    """The engine does not take the schema."""


@dataclass(frozen=True, slots=True)
class Compiled:
    accepts: Callable[[], Accepts]
    """Made when it is asked for: to read a grammar is not what is timed."""
    is_whole: bool = True
    """The engine says that it enforces all of it."""


def ours(schema: Any) -> Compiled:
    compiled = compile_schema(schema)
    grammar = compiled.grammar
    return Compiled(lambda: Grammar.read(grammar).accepts, is_whole=not compiled.notes)


def llama_cpp(schema: Any) -> Compiled:
    try:
        grammar = schema_to_grammar(schema)
    except (SchemaError, UnicodeDecodeError) as error:
        raise RefusedError(str(error)) from error
    return Compiled(lambda: Grammar.read(grammar).accepts)


def llguidance(schema: Any) -> Compiled:
    from llguidance import LLMatcher, LLTokenizer

    tokenizer = LLTokenizer("byte")
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    matcher = LLMatcher(tokenizer, grammar, log_level=0)  # any whitespace, as it does by itself
    if matcher.is_error():
        raise RefusedError(matcher.get_error())

    def accepts(text: str) -> bool:
        matcher.reset()
        tokens = tokenizer.tokenize_str(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())

    return Compiled(lambda: accepts)


def xgrammar(schema: Any) -> Compiled:
    import xgrammar as engine

    vocabulary = [bytes([byte]) for byte in range(256)]
    tokenizer = engine.TokenizerInfo(vocabulary, engine.VocabType.RAW, vocab_size=256, stop_token_ids=[0])
    try:
        grammar = engine.GrammarCompiler(tokenizer).compile_json_schema(json.dumps(schema), strict_mode=False)
    except RuntimeError as error:
        raise RefusedError(str(error)) from error

    def accepts(text: str) -> bool:
        matcher = engine.GrammarMatcher(grammar, terminate_without_stop_token=True)
        return bool(matcher.accept_string(text)) and bool(matcher.is_terminated())

    return Compiled(lambda: accepts)


ENGINES: dict[str, Callable[[Any], Compiled]] = {
    "luce": ours,
    "llama.cpp": llama_cpp,
    "llguidance": llguidance,
    "xgrammar": xgrammar,
}
