"""A grammar under which a tool has to be called, without a word before it. Pure.

Where a call is required, llama.cpp's grammars let the model write as much as it likes before it. Both APIs mean more by
it: the call itself, after no more than the reasoning. Knows how llama.cpp writes grammars, not what models write.
"""

from __future__ import annotations

import json
import re

_WORDS_BEFORE_CALL = re.compile(r"until-\d+\??\s+(?=(?:space\s+)?[\w-]*tool-calls?(?:-root)?(?![\w-]))")


def call_at_once(grammar: str, thinking_start: str) -> str:
    """`grammar` without the free text before its tool call, where that is found; reasoning stays."""
    lines = grammar.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("root ::="):
            lines[number] = _WORDS_BEFORE_CALL.sub(lambda match: _left_of(match, thinking_start), line)
    return "\n".join(lines)


def _left_of(match: re.Match[str], thinking_start: str) -> str:
    before = match.string[: match.start()].rstrip()
    is_reasoning = thinking_start != "" and before.endswith(json.dumps(thinking_start, ensure_ascii=False))
    return match[0] if is_reasoning else ""
