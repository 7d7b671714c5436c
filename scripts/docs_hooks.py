"""What mkdocs does with a page of docs/ before it is rendered (mkdocs.yml names this file).

`<!-- include: PATH -->` becomes that file of the repository without its title. `<!-- commands -->` becomes the
reference of all commands, read from click. A link that leaves docs/ leads to the page that includes its target, or
becomes plain text. Knows click's commands and Markdown's links; knows nothing of what pages say.
"""

from __future__ import annotations

import inspect
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
INCLUDE = re.compile(r"^<!-- include: (\S+) -->$", re.MULTILINE)
COMMANDS = "<!-- commands -->"
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")
CODE_IN_TABLE = re.compile(r"^\|.*`.*$", re.MULTILINE)
CODE = re.compile(r"`[^`]+`")
PAGES = {  # file of the repository -> the page that shows it
    "README.md": "index.md",
    "protocol/PROTOCOL.md": "protocol.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "CHANGELOG.md": "contributing/changelog.md",
}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """mkdocs calls this with each page's source."""
    source: str = page.file.src_uri
    text = _links_within_site(markdown, posixpath.join("docs", source), source)
    text = INCLUDE.sub(lambda match: _included(match[1], source), text)
    text = text.replace(COMMANDS, "\n".join(command_reference())) if COMMANDS in text else text
    # GitHub wants a bar inside a table's code escaped; Python-Markdown would show the backslash.
    return CODE_IN_TABLE.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text)


def _included(name: str, source: str) -> str:
    text = (ROOT / name).read_text("utf-8")
    return _links_within_site(text.split("\n", 1)[1], name, source)


def _links_within_site(text: str, origin: str, source: str) -> str:
    """The text of file `origin` with its links as page `source` needs them."""

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        inside = PAGES.get(place) or (place.removeprefix("docs/") if place.startswith("docs/") else None)
        if inside is None:
            return label
        return f"[{label}]({os.path.relpath(inside, posixpath.dirname(source) or '.')}{anchor})"

    return LINK.sub(link, text)


def command_reference() -> Iterator[str]:
    """`luce-daemon` and every command of `luce` as Markdown, one section each."""
    for name, command in all_commands().items():
        context = click.Context(command, info_name=name)
        yield f"## {name}\n"
        yield f"    {' '.join([name, *command.collect_usage_pieces(context)])}\n"
        yield inspect.cleandoc(command.help or "").replace("\b", "") + "\n"
        options = list(_own_options(command))
        if len(options) < len(command.params):
            yield "It takes [the engine's options](reference/options.md#the-engine) too.\n"
        records = [record for option in options if (record := option.get_help_record(context))]
        if records:
            yield "| option | meaning |\n|---|---|"
            yield from (f"| `{flag}` | {_cell(text)} |" for flag, text in records)
        if command.epilog:
            yield "\n```text\n" + inspect.cleandoc(command.epilog).replace("\b\n", "").strip() + "\n```"
        yield ""


def all_commands() -> dict[str, click.Command]:
    """The command lines of the package by name, `luce`'s subcommands among them."""
    from luce.supervisor.cli.app import command as luce
    from luce.supervisor.cli.daemon import command as daemon

    return {"luce-daemon": daemon} | dict(_subcommands("luce", luce))


def _subcommands(name: str, group: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Those of groups within it, too."""
    assert isinstance(group, click.Group)
    context = click.Context(group)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _subcommands(f"{name} {word}", command)
        else:
            yield f"{name} {word}", command


def engine_flags() -> set[str]:
    """What `engine_options` adds to a command."""
    from luce.supervisor.cli.options import engine_options

    @click.command
    @engine_options
    def bare(**_: Any) -> None: ...

    return {flag for option in bare.params for flag in option.opts}


def _own_options(command: click.Command) -> Iterator[click.Option]:
    """Without the engine's, where it has them all."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    shared = engine_flags()
    has_all = shared <= {flag for option in options for flag in option.opts}
    return (option for option in options if not (has_all and shared & set(option.opts)))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
