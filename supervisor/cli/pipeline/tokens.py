"""`luce tokenize` and `luce detokenize`: text to ids and ids to text, as stages of a pipeline. No engine runs here."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import click

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_OK, Failure
from luce.supervisor.cli.input import STDIN, read_file, read_stdin, stdin_chunks, utf8
from luce.supervisor.cli.model_files import read_model, text_model
from luce.supervisor.cli.options import model_option
from luce.supervisor.cli.output import write_output
from luce.supervisor.cli.pipeline.ids import IdReader, encode_ids

_text_ids_option = click.option(
    "--text-ids", is_flag=True, help="Ids are decimal numbers, one per line, instead of int32, little endian."
)


@click.command("tokenize")
@click.argument("file", type=click.Path(path_type=Path))
@model_option
@_text_ids_option
@click.option(
    "--special/--no-special",
    default=True,
    show_default=True,
    help="Read the text of a special token, such as <|im_start|>, as that token.",
)
@click.option(
    "--bos/--no-bos",
    default=True,
    show_default=True,
    help="Add the tokens that the model expects around a text, such as BOS.",
)
def tokenize(file: Path, model: Path | None, text_ids: bool, special: bool, bos: bool) -> int:
    """Write the token ids of FILE, a text in UTF-8 (- is stdin), to stdout, with the model's tokenizer."""
    source, data = (STDIN, read_stdin()) if str(file) == "-" else (str(file), read_file(file))
    content = utf8(data, source)
    with text_model(read_model(model)) as text:
        ids = text.tokenize(content, add_special=bos, parse_special=special)
    write_output(encode_ids(ids, as_text=text_ids))
    return EXIT_OK


@click.command("detokenize")
@model_option
@_text_ids_option
@click.option("--special/--no-special", default=False, show_default=True, help="Write special tokens as text.")
def detokenize(model: Path | None, text_ids: bool, special: bool) -> int:
    """Read token ids from stdin and write their text to stdout as they arrive."""
    with text_model(read_model(model)) as text:
        for ids in _ids_from_stdin(text_ids):
            write_output(b"".join(text.piece(token, special=special) for token in ids))
    return EXIT_OK


def _ids_from_stdin(text_ids: bool) -> Iterator[array[int]]:
    if sys.stdin is not None and sys.stdin.isatty():
        raise Failure("stdin is a terminal: put a program that writes token ids before the pipe", EXIT_BAD_ARGS)
    reader = IdReader(as_text=text_ids)
    for data in stdin_chunks():
        yield reader.feed(data)
    yield reader.finish()
