"""Writes the C++ side of protocol/commands.json: make_command_table.py TABLE OUTPUT.

What it writes is included once, by native/wire/command_parser.cpp, where the names are declared that it uses. It must
not know what a command does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# How a value is read, by its name in the table.
READERS = {
    "count": "parse_count(v)",
    "flag": "parse_flag(v)",
    "grammar": "parse_grammar(v)",
    "images": "parse_images(v)",
    "int32": "parse_int32(v, -kMaxInt32 - 1, kMaxInt32)",
    "logit_bias": "parse_logit_bias(v)",
    "logprobs": "parse_int32(v, 0, kMaxLogprobs)",
    "marks": "parse_marks(v)",
    "not_negative": "parse_real(v, kNotNegative)",
    "path": "parse_path(v)",
    "pins": "parse_pins(v)",
    "positive": "parse_real(v, kPositive)",
    "positive_probability": "parse_real(v, kPositiveProbability)",
    "probability": "parse_real(v, kProbability)",
    "prompt": "parse_prompt(v)",
    "reading": "parse_reading(v)",
    "real": "parse_real(v, kAnyReal)",
    "samplers": "parse_samplers(v)",
    "slots": "parse_slots(v)",
    "snapshots": "parse_snapshots(v)",
    "text": "parse_text(v)",
    "texts": "parse_texts(v)",
    "token_alternatives": "parse_token_alternatives(v)",
    "tokens": "parse_tokens(v)",
    "triggers": "parse_triggers(v)",
    "uint64": "parse_uint64(v)",
    "weights": "parse_weights(v)",
}


def key_row(command: str, row: dict[str, Any]) -> str:
    value = f"store(c.{row.get('field', row['key'])}, {READERS[row['value']]})"
    if "or_file" in row:
        value = f"v.starts_with('@') ? store(c.{row['or_file']}, parse_file(v)) : {value}"
    required = str(row.get("required", False)).lower()
    return f'    {{"{row["key"]}", {required}, []({command}& c, std::string_view v) {{ return {value}; }}}},\n'


def array(name: str, item: str, rows: list[str]) -> str:
    return f"template <>\nconstexpr std::array {name} = std::to_array<{item}>({{\n{''.join(rows)}}});\n" if rows else ""


def keys_of(verb: dict[str, Any]) -> str:
    command = verb["command"]
    return array(f"kKeys<{command}>", f"NamedKey<{command}>", [key_row(command, row) for row in verb["keys"]])


def places_of(verb: dict[str, Any], verbs: list[dict[str, Any]]) -> str:
    """The numbers that a form by place begins with; each is read as the key of its name."""
    if parser_of(verb) != f"by_place<{verb['command']}>":
        return ""
    (keys,) = (other["keys"] for other in verbs if other["command"] == verb["command"] and "keys" in other)
    counts = {row["key"] for row in keys if row["value"] == "count"}
    rows = [f'    "{place}",\n' for place in verb["places"] if place in counts]
    return array(f"kPlaces<{verb['command']}>", "std::string_view", rows)


def parser_of(verb: dict[str, Any]) -> str:
    """Regular commands have a parser by their form, the others one of their own."""
    name, command = verb["verb"], verb["command"]
    if command in {"Ping", "Quit"}:
        return f"parse_{command.lower()}"
    if "keys" in verb:
        return f"by_first_word<{command}>" if "places" in verb else f"by_name<{command}>"
    return f"parse_{name.lower()}" if command == "Generate" else f"by_place<{command}>"


def verb_row(verb: dict[str, Any]) -> str:
    # In a form by place, a word that begins with id= is a piece of a path, or the word to echo.
    flags = (str(flag).lower() for flag in (verb.get("generates", False), "keys" in verb))
    return f'    {{"{verb["verb"]}", {parser_of(verb)}, {", ".join(flags)}}},\n'


def main() -> None:
    table, output = map(Path, sys.argv[1:])
    verbs = json.loads(table.read_text("utf-8"))["verbs"]
    keys = "".join([keys_of(verb) for verb in verbs if "keys" in verb] + [places_of(verb, verbs) for verb in verbs])
    rows = "".join(map(verb_row, verbs))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(f"// From {table.name}: change that.\n{keys}constexpr Verb kVerbs[] = {{\n{rows}}};\n", "utf-8")


if __name__ == "__main__":
    main()
