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
Options can also be set in the environment as LUCE_<OPTION> (LUCE_HOST_CACHE=8G; lists with commas), and in a TOML file
(host_cache = "8G", alias = ["a", "b"]). Flags override the environment, which overrides the file. Put keys into
LUCE_API_KEY or a file: other users of this machine see flags.

\b
Examples:
  luce serve
  luce serve --model m.gguf --ctx 65536 --lanes 4 --disk-cache ~/.cache/luce
  LUCE_API_KEY=… luce serve --model m.gguf --host 0.0.0.0
  luce serve --config luce.toml --print-config

\b
Exit codes: 0 stopped normally, 2 the start failed, 64 bad arguments, 70 the engine failed repeatedly.
"""


@click.command("serve", epilog=_EPILOG)
@engine_options
@click.option(
    "--host",
    metavar="HOST",
    help="Address to listen at. Beyond this machine, set keys (--api-key). unix:PATH, or a path that ends in .sock,"
    " is a Unix socket. Default: 127.0.0.1.",
)
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port; 0 chooses a free one. Default: 8080.")
@click.option(
    "--socket-mode",
    metavar="MODE",
    help="Permissions of a Unix socket, as for chmod (660: its group too). Default: 600, its owner.",
)
@click.option(
    "--ssl-cert-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="PEM file with the certificate and its chain; enables https. Default: http.",
)
@click.option(
    "--ssl-key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="PEM file with the certificate's key, without a password. Default: the certificate's file.",
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    help="Key that requests must bring; may be repeated. Prefer LUCE_API_KEY or --api-key-file: other users see flags"
    " in the process list. Default: no key is needed.",
)
@click.option(
    "--api-key-file", type=click.Path(path_type=Path), metavar="FILE", help="File with further keys, one per line."
)
@click.option(
    "--api-keys",
    "key_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with a table for each key: hash, scope (infer or admin), requests and tokens per minute, lanes,"
    " context. `luce keys new NAME` adds one. SIGHUP reads the file again.",
)
@click.option(
    "--open-to-all/--no-open-to-all",
    "open_to_all",
    default=None,
    help="Do not warn that other machines can use this server without a key.",
)
@click.option(
    "--alias",
    "aliases",
    multiple=True,
    metavar="NAME",
    help="Name under which the model is listed; may be repeated. Requests may use any name.",
)
@click.option(
    "--reasoning",
    type=click.Choice(["on", "off", "auto"]),
    help="Reasoning by default, for models that support it; auto: as the chat template does. Default: auto.",
)
@click.option(
    "--reasoning-budget",
    type=NOT_NEGATIVE,
    metavar="N",
    help="Maximum tokens of reasoning by default; then its end is forced. Default: no limit.",
)
@click.option(
    "--reasoning-effort",
    metavar="WORD",
    help="Default effort of reasoning: low, medium, high or another word that the chat template knows.",
)
@click.option(
    "--preserve-thinking",
    type=click.Choice(["on", "off", "auto"]),
    help="Keep the reasoning of earlier turns in the prompt, if the chat template can; auto: in requests with tools,"
    " where the model's makers recommend it. Default: auto.",
)
@click.option(
    "--chat-template-kwargs",
    "template_arguments",
    type=JsonObject(),
    metavar="JSON",
    help="Arguments for the chat template as a JSON object; arguments of a request override them.",
)
@click.option(
    "--force-temperature",
    type=Real(min=0, max=100),
    metavar="T",
    help="Temperature of all answers, overriding requests, for agents that send an unsuitable one.",
)
@click.option(
    "--chat-template",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Jinja template to use instead of the model's own.",
)
@click.option(
    "--cache-isolation",
    type=click.Choice(["off", "key"]),
    help="key: separate the caches of different API keys, so that timing does not reveal what another key has sent."
    " Default: off, clients share the cache.",
)
@click.option(
    "--common-prompt",
    "common_prompts",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="File with a system prompt that all keys share with --cache-isolation key; may be repeated. Default: none.",
)
@click.option(
    "--restore-answers/--no-restore-answers",
    "restores_answers",
    default=None,
    help="Restore earlier answers that a client reformatted or sent without reasoning, so that they come from the"
    " cache. Default: enabled.",
)
@click.option(
    "--compaction",
    type=click.Choice(["live", "off"]),
    help="live: answer a request for a summary from the cached conversation, so that its messages are not read again;"
    " the model then sees the conversation's system text and tools (see usage.luce.compaction). Default: off.",
)
@click.option(
    "--repair-calls/--no-repair-calls",
    "repairs_calls",
    default=None,
    help="Read a tool call that the model wrote as text as a call. Default: enabled.",
)
@click.option(
    "--loop-guard/--no-loop-guard",
    "guards_loops",
    default=None,
    help="End an answer that repeats one token or phrase for hundreds of tokens, as if its limit had come (see"
    " usage.luce.loop). Default: disabled.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Further host name of this server, for example a proxy's (* for all); may be repeated. Requests with unknown"
    " names are refused, as protection against DNS rebinding. Default: none.",
)
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Web origin whose pages may call this server (https://chat.example; * for all); may be repeated. Default:"
    " none.",
)
@click.option(
    "--keep-alive",
    "keep_alive_s",
    type=Seconds(max_s=10),
    metavar="S",
    help="Seconds between keep-alive events in a stream while a prompt is read; at most 10. Default: 5.",
)
@click.option(
    "--max-queue",
    type=NOT_NEGATIVE,
    metavar="N",
    help="Maximum number of requests that wait for a lane; further ones get 429. Default: 256.",
)
@click.option(
    "--queue-timeout",
    "queue_timeout_s",
    type=Seconds(or_none=True),
    metavar="S",
    help="Maximum seconds that a request waits for a lane, or none for no limit. Default: 600.",
)
@click.option(
    "--sleep-idle",
    "sleep_idle_s",
    type=Seconds(or_none=True),
    metavar="S",
    help="Seconds without requests after which the engine frees the device's memory. Conversations stay in host"
    " memory, and the next request loads the model again. Default: none, never.",
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
    help="How an embedding model combines the vectors of tokens. Default: from its file.",
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
    help="Maximum tokens of a text for the embedding model and the reranker. Default: their trained length, at most"
    " 8192.",
)
@click.option(
    "--embedding-gpu-layers",
    type=NOT_NEGATIVE,
    metavar="N",
    help="Number of layers of the embedding model and the reranker on the GPU; 0: none. Default: all, if there is a"
    " GPU.",
)
@click.option(
    "--slot-save-path",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the files that POST /slots/{id} saves and restores. Default: disabled.",
)
@click.option(
    "--shutdown-grace",
    "shutdown_grace_s",
    type=Seconds(),
    metavar="S",
    help="Seconds that running answers get after SIGTERM or Ctrl-C. Default: 30.",
)
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="Several models that take turns on the device: a TOML file with a table [models.NAME] for each, or a folder"
    " of GGUF files. Requests name theirs. Default: one model.",
)
@click.option(
    "--models-from",
    multiple=True,
    metavar="PLACE",
    help="Further models on this machine: huggingface, lmstudio, ollama, or a folder; may be repeated.",
)
@click.option(
    "--shutdown-delay",
    "shutdown_delay_s",
    type=Real(min=0),
    metavar="S",
    help="Seconds after SIGTERM during which requests are still accepted while /readyz says 503, so that a load"
    " balancer can react. Default: 0.",
)
@click.option(
    "--cache-store",
    metavar="URL",
    help="Object store for the files of --disk-cache, shared with other servers: s3://, gs:// or az:// with a bucket"
    " and a folder, or file://. Default: none.",
)
@click.option(
    "--cache-store-bytes",
    "cache_store_budget",
    type=Bytes(),
    metavar="BYTES",
    help="Maximum size of the object store (500G); this server deletes the oldest files beyond it. Default: nothing"
    " is deleted.",
)
@click.option(
    "--cache-store-days",
    type=Real(min=0),
    metavar="DAYS",
    help="Days without use after which this server deletes files of the object store. Default: never.",
)
@click.option(
    "--cache-store-rate",
    type=Bytes(),
    metavar="BYTES",
    help="Maximum bytes per second written to the object store. Default: no limit.",
)
@click.option(
    "--kv-events",
    metavar="ENDPOINT",
    help="Address at which routers learn which pages are cached, in vLLM's form: tcp://HOST:PORT or ipc://PATH binds,"
    " connect: before it connects. With several models (--models) the second uses the next port, or PATH.1, and so"
    " on. It needs no key. Default: disabled.",
)
@click.option(
    "--kv-events-replay",
    metavar="ENDPOINT",
    help="Address at which routers request missed KV events. Default: disabled.",
)
@click.option(
    "--kv-events-topic",
    metavar="TEXT",
    help="Topic of KV events; {model} stands for the model's name. Default: kv@HOST@{model}, with this machine's name.",
)
@click.option(
    "--kv-events-tokens/--no-kv-events-tokens",
    "kv_events_tokens",
    default=None,
    help="Include token ids in KV events; they reveal texts, and some routers need them. Default: enabled.",
)
@click.option(
    "--kv-events-encoding",
    type=click.Choice(["array", "map"]),
    help="Encoding of KV events: array (all routers), or map (vLLM from 0.24 on). Default: array.",
)
@click.option(
    "--kv-events-media",
    type=click.Choice(["each", "one"]),
    help="each: KV events distinguish device, host and disk (GPU, CPU, DISK). one: they always say GPU, for routers"
    " that drop a block when it leaves one of them. Default: each.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with options; LUCE_CONFIG names one too.",
)
@click.option("--print-config", is_flag=True, help="Show every option's value and source, as a TOML file.")
@click.pass_context
def command(context: click.Context, /, config_file: Path | None, print_config: bool, **values: Any) -> int:
    """Serve the OpenAI and Anthropic APIs (chat completions, completions, responses, messages), and a page at /.

    For Claude Code, Codex, opencode, pi, Open WebUI and any SDK. Once it is ready it prints the settings for each.
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
            "--kv-events-topic: with several models it must contain {model}, which stands for the model's name"
        )
    if configuration["model"] is not None:
        raise ConfigError("--model excludes --models: put the model into a table of the file")
    fixed: dict[str, object] = {
        "draft_answers": draft_answers(configuration, settings),
        "expert_profiles": expert_profiles(configuration, os.environ),
    }
    plan = read_fleet(configuration, fixed)
    if plan.left_out:
        named = ", ".join(plan.left_out)
        say(f"luce serve: ignored, because it applies to one model: {named} (put it into the model's table)")
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
