"""`luce serve`: the OpenAI and Anthropic APIs on a port. The command line; gathers the configuration.

Knows flags and exit codes; what is done with the configuration is in serve_start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_OK, Failure, run_async, say
from luce.supervisor.cli.model_files import NO_DRAFT, check_file, read_model, read_packaged_draft
from luce.supervisor.cli.numbers import Bytes, JsonObject, Real, Seconds, Tokens
from luce.supervisor.cli.options import NOT_NEGATIVE, engine_options, wants_packaged_draft
from luce.supervisor.cli.output import write_output
from luce.supervisor.config import ConfigError, OnOff
from luce.supervisor.config.loading import Configuration, Flag, known_options, read_configuration
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.models.cache_folder import cache_folder

_MAX_CTX = 1 << 28
_EPILOG = """\b
Each option can stand in the environment as LUCE_<OPTION> (LUCE_HOST_CACHE=8G, LUCE_CACHE_ISOLATION=key; lists with
commas), and in a TOML file (host_cache = "8G", alias = ["a", "b"]). A flag comes before the environment, that before
the file. Keys belong into LUCE_API_KEY or a file: other users of this machine see flags.

\b
Examples:
  luce serve
  luce serve --model m.gguf --ctx 65536 --lanes 4 --disk-cache ~/.cache/luce
  LUCE_API_KEY=… luce serve --model m.gguf --host 0.0.0.0
  luce serve --config luce.toml --print-config

\b
Exit codes: 0 ended as it was told to, 2 the start failed, 64 bad arguments, 70 the engine failed for good.
"""


@click.command("serve", epilog=_EPILOG)
@engine_options
@click.option(
    "--host",
    metavar="HOST",
    help="Address to listen at. Where others reach it, keys keep them out (--api-key). unix:PATH, or a path that ends"
    " in .sock, is a Unix socket. Default: 127.0.0.1.",
)
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port; 0 takes a free one. Default: 8080.")
@click.option(
    "--socket-mode",
    metavar="MODE",
    help="Who may use a Unix socket, as chmod takes it (660: its group too). Default: 600, its owner.",
)
@click.option(
    "--ssl-cert-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Certificate in PEM, with those that lead to a known authority: serves https. Default: http.",
)
@click.option(
    "--ssl-key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Its key in PEM, without a password. Default: it is in the certificate's file.",
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    help="Lets requests in that bring it; may be given several times. Better in LUCE_API_KEY or --api-key-file, which"
    " no list of processes shows. Default: everybody who reaches the address is let in.",
)
@click.option(
    "--api-key-file", type=click.Path(path_type=Path), metavar="FILE", help="File with further keys, one a line."
)
@click.option(
    "--api-keys",
    "key_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with a table for each key: the key's hash, its scope (infer or admin), its requests and tokens a"
    " minute, most lanes, longest context. `luce keys new NAME` writes one. SIGHUP reads it anew.",
)
@click.option(
    "--open-to-all/--no-open-to-all",
    "open_to_all",
    default=None,
    help="Others than this machine are meant to be served without a key: the start text does not warn of it.",
)
@click.option(
    "--alias",
    "aliases",
    multiple=True,
    metavar="NAME",
    help="Name under which the model is listed; may be given several times. Requests may name any model.",
)
@click.option(
    "--reasoning",
    type=click.Choice(["on", "off", "auto"]),
    help="Whether models that can reason do so where a request does not say; auto leaves it to the template."
    " Default: auto.",
)
@click.option(
    "--reasoning-budget",
    type=NOT_NEGATIVE,
    metavar="N",
    help="Tokens of reasoning after which its end is forced, where a request does not say. Default: without bounds.",
)
@click.option(
    "--reasoning-effort",
    metavar="WORD",
    help="low, medium, high or another word that the model's template knows, where a request does not say.",
)
@click.option(
    "--preserve-thinking",
    type=click.Choice(["on", "off", "auto"]),
    help="Whether the reasoning of earlier turns stays in the prompt, with templates that can do either; auto: in"
    " requests with tools, where the model's makers advise it. Default: auto.",
)
@click.option(
    "--chat-template-kwargs",
    "template_arguments",
    type=JsonObject(),
    metavar="JSON",
    help="Arguments for the chat template as a JSON object; those of a request come first.",
)
@click.option(
    "--force-temperature",
    type=Real(min=0, max=100),
    metavar="T",
    help="Temperature of all answers, whatever requests say: for agents that send one which does not suit the model.",
)
@click.option(
    "--chat-template",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Jinja template in place of the model's own.",
)
@click.option(
    "--cache-isolation",
    type=click.Choice(["off", "key"]),
    help="key: what one API key has sent speeds up nothing of another's, which could find out by the time it takes that"
    " somebody has sent the same. Default: off, clients share what has been read.",
)
@click.option(
    "--common-prompt",
    "common_prompts",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="File with a system prompt that all keys share with --cache-isolation key; may be given several times."
    " Default: none.",
)
@click.option(
    "--restore-answers/--no-restore-answers",
    "restores_answers",
    default=None,
    help="Whether an earlier answer that a client sends back in another spelling, or without its reasoning, is read as"
    " the model wrote it. Default: it is.",
)
@click.option(
    "--compaction",
    type=click.Choice(["live", "off"]),
    help="live: a request that summarises a conversation in memory behind a system text of its own and without tools is"
    " answered from that conversation, so that its messages are not read again; usage.luce says so (compaction)."
    " The model then sees the conversation's own system text and tools. Default: off.",
)
@click.option(
    "--repair-calls/--no-repair-calls",
    "repairs_calls",
    default=None,
    help="Whether a tool call that the model spells beside its format, so that it comes as text, is read as a call."
    " Default: it is.",
)
@click.option(
    "--loop-guard/--no-loop-guard",
    "guards_loops",
    default=None,
    help="Whether an answer is ended, as by its limit, that repeats one token or phrase for hundreds of tokens;"
    " usage.luce says so (loop). Default: it is not.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Name that the server answers under, beside this machine's own and its addresses: what a proxy in front of it"
    " is called, say (* for all); may be given several times. Others are refused, because a foreign page's name may"
    " have been pointed at this machine. Default: none.",
)
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Web origin whose pages may call this server (https://chat.example; * for all); may be given several times."
    " Default: none.",
)
@click.option(
    "--keep-alive",
    "keep_alive_s",
    type=Seconds(max_s=10),
    metavar="S",
    help="Seconds between signs of life in a stream while a prompt is read; at most 10. Default: 5.",
)
@click.option(
    "--max-queue",
    type=NOT_NEGATIVE,
    metavar="N",
    help="Requests that may wait for a lane; one more is answered 429. Default: 256.",
)
@click.option(
    "--queue-timeout",
    "queue_timeout_s",
    type=Seconds(or_none=True),
    metavar="S",
    help="Seconds that a request may wait for a lane, or none for as long as it takes. Default: 600.",
)
@click.option(
    "--sleep-idle",
    "sleep_idle_s",
    type=Seconds(or_none=True),
    metavar="S",
    help="Seconds without requests after which the model's memory is given back; conversations are kept in the host,"
    " and the next request loads the model again. Default: none, it is kept.",
)
@click.option(
    "--embedding-model",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="GGUF file of an embedding model, which serves /v1/embeddings beside the model that answers. Default: none.",
)
@click.option(
    "--embedding-pooling",
    type=click.Choice(["mean", "cls", "last"]),
    help="How its vector of a text is made from those of the tokens. Default: as its file says.",
)
@click.option(
    "--rerank-model",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="GGUF file of a reranker, which serves /v1/rerank. Default: none.",
)
@click.option(
    "--embedding-ctx",
    type=Tokens(1, _MAX_CTX),
    metavar="TOKENS",
    help="Tokens of the longest text that either reads. Default: what the model was trained for, at most 8192.",
)
@click.option(
    "--embedding-gpu-layers",
    type=NOT_NEGATIVE,
    metavar="N",
    help="Layers of either on the GPU; 0: none. Default: all, where there is a GPU.",
)
@click.option(
    "--slot-save-path",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the files that POST /slots/{id} saves and restores. Default: it does not.",
)
@click.option(
    "--shutdown-grace",
    "shutdown_grace_s",
    type=Seconds(),
    metavar="S",
    help="Seconds that running answers get to end after SIGTERM or Ctrl-C. Default: 30.",
)
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="Several models that take turns on the device: a TOML file with a table [models.NAME] for each, or a folder of"
    " GGUF files. Requests name theirs. Default: one model.",
)
@click.option(
    "--models-from",
    multiple=True,
    metavar="PLACE",
    help="Further models, found on this machine: huggingface, lmstudio, ollama, or a folder; may be given several"
    " times.",
)
@click.option(
    "--shutdown-delay",
    "shutdown_delay_s",
    type=Real(min=0),
    metavar="S",
    help="Seconds after SIGTERM for which requests are still taken while /readyz says 503 already, so that a balancer"
    " sends no more before the port is closed. Default: 0.",
)
@click.option(
    "--cache-store",
    metavar="URL",
    help="Object store where what --disk-cache holds is kept for other servers too, and found by this one: s3://,"
    " gs:// or az:// with a bucket and a folder, or file://. Default: none.",
)
@click.option(
    "--cache-store-bytes",
    "cache_store_budget",
    type=Bytes(),
    metavar="BYTES",
    help="What it may hold (500G); this server then deletes what was written longest ago. Default: it deletes nothing.",
)
@click.option(
    "--cache-store-days",
    type=Real(min=0),
    metavar="DAYS",
    help="Days after which this server deletes what nobody has used there. Default: never.",
)
@click.option(
    "--cache-store-rate",
    type=Bytes(),
    metavar="BYTES",
    help="Bytes a second that are written there at most. Default: what it takes.",
)
@click.option(
    "--kv-events",
    metavar="ENDPOINT",
    help="Where routers hear which pages of texts are held, as vLLM publishes it: tcp://HOST:PORT or ipc://PATH is"
    " bound, with connect: before it connected. Of several models (--models) the second has the next port, or PATH.1,"
    " and so on. Whoever reaches it needs no key. Default: nowhere.",
)
@click.option(
    "--kv-events-replay",
    metavar="ENDPOINT",
    help="Where they ask for what they have missed. Default: nowhere.",
)
@click.option(
    "--kv-events-topic",
    metavar="TEXT",
    help="Topic of these messages, {model} standing for the model's name. Default: kv@HOST@{model}, with this machine's"
    " name.",
)
@click.option(
    "--kv-events-tokens/--no-kv-events-tokens",
    "kv_events_tokens",
    default=None,
    help="Whether they hold the ids of tokens, from which texts can be read and routers make their own names of blocks."
    " Default: they do.",
)
@click.option(
    "--kv-events-encoding",
    type=click.Choice(["array", "map"]),
    help="How each event is encoded: array, as vLLM did at first and all routers decode, or map, as vLLM does from 0.24"
    " on. Default: array.",
)
@click.option(
    "--kv-events-media",
    type=click.Choice(["each", "one"]),
    help="each: device, host and disk are told apart (GPU, CPU, DISK). one: all as GPU, for routers that take a block"
    " for gone once it has left one of them. Default: each.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with options; LUCE_CONFIG names one too.",
)
@click.option("--print-config", is_flag=True, help="Show every option's value and where it came from, as a TOML file.")
@click.pass_context
def command(context: click.Context, /, config_file: Path | None, print_config: bool, **values: Any) -> int:
    """Serve the OpenAI and Anthropic APIs: chat completions, completions, responses, messages; and a status page.

    Point Claude Code, Codex, opencode, pi, Open WebUI or any SDK at it: what to tell each is shown once it is ready.
    """
    given = {name: None if value == NO_DRAFT else value for name, value in values.items() if _is_given(context, name)}
    try:
        configuration = read_configuration(known_flags(), given, os.environ, config_file)
        if print_config:
            return _print(configuration)
        settings = configuration.serve_settings()
        if configuration["models"] is not None or configuration["models_from"]:
            return _serve_many(configuration, settings)
        model = read_model(configuration["model"])
        for field in ("embedding_model", "rerank_model"):
            if configuration[field] is not None:
                check_file(configuration[field], f"--{field.replace('_', '-')}")
        config = configuration.supervisor_config(
            model=model,
            draft=draft_of(configuration),
            draft_answers=draft_answers(configuration, settings),
            expert_profiles=expert_profiles(configuration, os.environ),
        )
    except ConfigError as error:
        raise Failure(str(error), EXIT_BAD_ARGS) from error
    from luce.supervisor.cli.serve_start import check_settings, serve_until_stopped

    check_settings(settings)
    return run_async(lambda: serve_until_stopped(config, settings))


def _serve_many(configuration: Configuration, settings: ServeSettings) -> int:
    """Raises Failure, ConfigError."""
    from luce.supervisor.cli.serve_start import check_settings, serve_fleet_until_stopped
    from luce.supervisor.config.models_file import read_fleet

    if settings.kv_events_topic is not None and "{model}" not in settings.kv_events_topic:
        raise ConfigError(
            "--kv-events-topic: it has to tell several models apart: write {model} where the name is to be"
        )
    if configuration["model"] is not None:
        raise ConfigError("--model is one model, and --models are several: put it into a table of theirs")
    fixed: dict[str, object] = {
        "draft_answers": draft_answers(configuration, settings),
        "expert_profiles": expert_profiles(configuration, os.environ),
    }
    plan = read_fleet(configuration, fixed)
    if plan.left_out:
        named = ", ".join(plan.left_out)
        say(f"luce serve: not used, as it fits one model: {named} (put it into the model's table)")
    for member in plan.config.members:
        check_file(member.config.model, f"models.{member.name}: model")
    check_settings(settings)
    return run_async(lambda: serve_fleet_until_stopped(plan, settings, configuration["log_level"]))


def draft_of(configuration: Configuration) -> Path | None:
    """The packaged model comes with its drafter, where nothing is said of either. Raises Failure."""
    is_packaged = configuration["model"] is None and all("model" not in one.options for one in configuration["engines"])
    is_silent = configuration.settings["draft"].origin == "default"
    is_wanted = wants_packaged_draft(**{name: configuration[name] for name in ("mtp", "draft_max", "draft_method")})
    draft: Path | None = read_packaged_draft() if is_packaged and is_silent and is_wanted else configuration["draft"]
    return draft


def draft_answers(configuration: Configuration, settings: ServeSettings) -> OnOff | None:
    """Clients that are kept apart could tell by the speed of a draft what others were answered."""
    asked: OnOff | None = configuration["draft_answers"]
    return "off" if asked is None and settings.cache_isolation == "key" else asked


def expert_profiles(configuration: Configuration, environ: Mapping[str, str]) -> Path | None:
    """Which experts a mixture uses most is not learnt anew after each start, where nothing else is said."""
    asked: Path | None = configuration["expert_profiles"]
    is_silent = configuration.settings["expert_profiles"].origin == "default"
    folder = cache_folder(environ) if is_silent else None
    return asked if folder is None else folder / "experts"


def known_flags() -> dict[str, Flag]:
    """What the command line has of the options, by their field."""
    fields = known_options({})
    return {
        option.name: Flag(names[0], _checker(option), tuple(names[1:]))
        for option in command.params
        if isinstance(option, click.Option) and option.name in fields
        for names in [[name.removeprefix("--") for name in option.opts]]
    }


def _checker(option: click.Option) -> Callable[[object], object]:
    def check(value: object) -> object:
        try:
            return option.type.convert(value, option, None)
        except click.UsageError as error:
            raise ValueError(error.message) from None

    return check


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _print(configuration: Configuration) -> int:
    from luce.supervisor.config.text import configuration_text

    configuration.check()
    write_output(configuration_text(configuration).encode(errors="backslashreplace"))
    return EXIT_OK
