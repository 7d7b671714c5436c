"""`luce`: the group of the commands for people. Loads a command's module only when that command is wanted."""

from __future__ import annotations

import importlib

import click

from luce.supervisor.cli.entry import run_command

# Command name -> (module, one line of help); modules load late, so that `luce --help` is fast.
_COMMANDS = {
    "serve": ("luce.supervisor.cli.serve", "Serve the OpenAI and Anthropic APIs, for agents and programs."),
    "chat": ("luce.supervisor.cli.terminal.chat", "Talk to a model in the terminal."),
    "ps": ("luce.supervisor.cli.watching.ps", "Show which servers and engines run on this machine."),
    "top": ("luce.supervisor.cli.watching.top", "Watch a server: its lanes, its memory, how fast it is."),
    "models": ("luce.supervisor.cli.watching.models", "Show a server's models, or those that lie on this machine."),
    "run": ("luce.supervisor.cli.run", "Generate text for a prompt."),
    "rpc-worker": ("luce.supervisor.cli.rpc_worker", "Lend this machine's devices to a model served elsewhere."),
    "keys": ("luce.supervisor.cli.keys", "Make API keys for a server that others reach."),
    "cache": ("luce.supervisor.cli.cache", "See and remove what a disk cache holds of conversations."),
    "bench": ("luce.supervisor.cli.bench.command", "Measure what this machine does with a model, or a server."),
    "eval": ("luce.supervisor.cli.evaluation.command", "Find out whether a model answers rightly."),
    "tokenize": ("luce.supervisor.cli.pipeline.tokens", "Turn text into token ids."),
    "detokenize": ("luce.supervisor.cli.pipeline.tokens", "Turn token ids into text, as they come."),
    "compress": ("luce.supervisor.cli.compress", "Shorten a text to the parts that matter to a question."),
    "calibrate": ("luce.supervisor.cli.calibration.command", "Find out which layer --kv-offload-layer should name."),
    "experts": (
        "luce.supervisor.cli.experts.command",
        "Learn which experts of a mixture are used, for --expert-profile.",
    ),
    "inspect": ("luce.supervisor.cli.inspect", "Show what a model file is and what it costs in memory."),
    "convert": ("luce.supervisor.cli.convert", "Convert a DFlash drafter's checkpoint to a GGUF file for --draft."),
    "check": ("luce.supervisor.cli.checking.command", "Check that memory, lanes and drafts change no answer, for CI."),
    "fieldtest": (
        "luce.supervisor.cli.fieldtest.command",
        "Measure this machine and a model, for a report that others read.",
    ),
    "doctor": ("luce.supervisor.cli.doctor", "Check this installation, with a generation through the real daemon."),
}
_ATTRIBUTES = {"tokenize": "tokenize", "detokenize": "detokenize"}


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        command = getattr(module, _ATTRIBUTES.get(cmd_name, "command"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in _COMMANDS.items()])


@click.command(
    "luce", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="luce-daemon", prog_name="luce")
def command() -> None:
    """Local language models by luce-daemon. `luce run "Who are you?" --chat` is a first one to try."""


def main() -> None:
    """Entry point of `luce`."""
    run_command(command, "luce")
