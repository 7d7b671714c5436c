"""Prints the reference of the options in Markdown: make_reference.py > docs/reference/options.md.

Made of the engine's table (supervisor/config/options.json) and of the flags of `luce serve`; a test holds the page
equal to it.
"""

from __future__ import annotations

import sys

import click

from luce.supervisor.cli.serve import command as serve
from luce.supervisor.cli.serve import known_flags
from luce.supervisor.config.loading import Option, known_options
from luce.supervisor.config.table import PROCESS_OPTIONS, engine_options

HEAD = """# Options

Written by `scripts/make_reference.py`. [Configuration](../configuration.md) explains files and variables, and lists the
options that have no flag. BYTES take K, M, G or T for powers of 1024, TOKENS
take K or M: 32K is 32768.
"""


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table(rows: list[str]) -> str:
    return row("option", "variable", "default", "meaning") + row("---", "---", "---", "---") + "".join(rows)


def cells_of(flags: list[str], takes: str, variable: str, text: str) -> str:
    meaning, _, default = text.partition(" Default: ")
    if not default:
        meaning = text
    shown = ", ".join(f"`{flag}`" for flag in flags[1:])
    meaning += f" Older name: {shown}." if shown else ""
    return row(f"`{f'{flags[0]} {takes}'.strip()}`", variable and f"`{variable}`", default.rstrip("."), meaning)


def engine_rows(settable: dict[str, Option]) -> list[str]:
    return [
        cells_of(
            [f"--{name}" for name in (option.name, *option.aliases)],
            option.takes or "",
            settable[field].variable if field in settable else "",
            option.help,
        )
        for field, option in engine_options().items()
    ]


def serve_rows(settable: dict[str, Option]) -> list[str]:
    return [
        cells_of(
            ["/".join([*option.opts, *option.secondary_opts])],
            "" if option.is_flag else option.make_metavar(click.Context(serve)),
            settable[option.name].variable if option.name in settable else "",
            option.help or "",
        )
        for option in serve.params
        if isinstance(option, click.Option) and option.name not in engine_options()
    ]


def reference() -> str:
    settable = known_options(known_flags())
    luced_only = ", ".join(f"`--{engine_options()[field].name}`" for field in sorted(PROCESS_OPTIONS))
    return (
        f"{HEAD}\n## The engine\n\n`luced`, `luce-daemon`, `luce run`, `luce chat` and `luce serve` take these."
        f" {luced_only}: the first two only.\n\n{table(engine_rows(settable))}"
        f"\n## `luce serve`\n\n{table(serve_rows(settable))}"
    )


if __name__ == "__main__":
    sys.stdout.write(reference())
