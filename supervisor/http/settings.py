"""ServeSettings: what the HTTP side is made with, frozen. The engine's own options are in SupervisorConfig."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from luce.supervisor.config import ByteCount, ConfigError
from luce.supervisor.http.answer_defaults import AnswerDefaults
from luce.supervisor.kv_events.config import Encoding, Endpoint, Media

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings(AnswerDefaults):
    """The defaults are those of all answers; `profiles` have some of their own."""

    host: str = "127.0.0.1"  # or unix:PATH, or a path that ends in .sock
    port: int = 8080
    socket_mode: str = "600"  # who may use a Unix socket, as chmod takes it
    ssl_cert_file: Path | None = None  # PEM, with what leads from it to a known authority; None: no TLS
    ssl_key_file: Path | None = None  # PEM; None: the key is in the certificate's file
    api_keys: tuple[str, ...] = ()  # any of them lets a request in; none: everybody who reaches the address
    key_file: Path | None = None  # with further keys, their names, scopes and limits; read again on SIGHUP
    open_to_all: bool = False  # others are meant to reach the server without a key: nobody has to be warned of it
    aliases: tuple[str, ...] = ()  # names under which /v1/models lists the model; any name is accepted
    chat_template: Path | None = None  # in place of the model's own
    slot_save_path: Path | None = None  # folder of the files that POST /slots/{id} saves and restores; None: none
    cache_isolation: Literal["off", "key"] = "off"  # key: no key's texts are served from what other keys have sent
    common_prompts: tuple[Path, ...] = ()  # files with system prompts that are no secret between keys
    repairs_calls: bool = True  # whether tool calls that come as text, beside the model's format, are read as calls
    compaction: Literal["live", "off"] = "off"  # live: summaries are answered from the conversation in memory
    guards_loops: bool = False  # whether an answer that says the same for hundreds of tokens is ended
    allowed_hosts: tuple[str, ...] = ()  # names to answer under beside this machine's own; "*" for all
    cors_origins: tuple[str, ...] = ()  # "*" for all; none: no CORS headers
    max_body_bytes: ByteCount = 32 * MIB
    max_choices: int = 16  # of one request (`n`)
    keep_alive_s: float = 5.0  # between signs of life in a stream: clients wait 300 s at most, proxies 60 s or less
    stalled_reader_s: float = 300.0  # after so long without reading, a client is taken for gone
    body_timeout_s: float = 60.0  # for a body to arrive
    head_timeout_s: float = 10.0  # for the head of a request to arrive, from its first byte on; for a TLS handshake
    idle_timeout_s: float = 120.0  # of a connection without a request
    request_timeout_s: float | None = None  # for a whole request; None: as long as it takes
    stream_kept_s: float = 300.0  # for which an answer with a name goes on without a reader, and is kept at its end
    streams_kept_bytes: ByteCount = 64 * MIB  # of such streams together
    shutdown_grace_s: float = 30.0  # for streams to end by themselves
    shutdown_delay_s: float = 0.0  # for which requests are still taken while /readyz says no already
    kv_events: str | None = None  # endpoint at which routers hear what is held of which texts; None: nowhere
    kv_events_replay: str | None = None  # where they ask for what they have missed
    kv_events_topic: str | None = None  # of the messages; None: kv@HOST@MODEL
    kv_events_tokens: bool = True  # whether ids of tokens are sent
    kv_events_encoding: Encoding = "array"  # of events: places in an array, or names in a map
    kv_events_media: Media = "each"  # one: what lies in host memory or on disk is told as what lies on the device
    profiles: Mapping[str, AnswerDefaults] = field(default_factory=dict)
    """Further names of the model, and what is different for those who ask for it by them."""
    answers_kept_bytes: ByteCount = 64 * MIB  # ids of answers, so that they come back as they were generated
    restores_answers: bool = True  # whether answers that a client spells otherwise are rendered as the model wrote them
    responses_kept_bytes: ByteCount = 64 * MIB  # of /v1/responses, in memory, for previous_response_id; 0: none

    def __post_init__(self) -> None:
        AnswerDefaults.__post_init__(self)
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port}: it must be from 0 to 65535")
        if not re.fullmatch(r"[0-7]{3}", self.socket_mode):
            raise ConfigError(f"socket_mode={self.socket_mode}: it must be three digits as chmod takes them, 660 say")
        if self.ssl_key_file is not None and self.ssl_cert_file is None:
            raise ConfigError("ssl_key_file is of no use without ssl_cert_file: name both")
        if self.socket_path is not None and self.ssl_cert_file is not None:
            raise ConfigError("ssl_cert_file: a Unix socket needs no TLS: leave it out")
        if not 0 < self.keep_alive_s <= 10:
            raise ConfigError(f"keep_alive_s={self.keep_alive_s}: it must be above 0 and at most 10")
        if self.head_timeout_s <= 0:
            raise ConfigError(f"head_timeout_s={self.head_timeout_s}: it must be above 0")
        if any(not key for key in self.api_keys):
            raise ConfigError("an API key is empty: leave it out, or name one")
        if self.common_prompts and self.cache_isolation == "off":
            raise ConfigError("common_prompts is of no use without cache_isolation: all prompts are common")
        self._check_kv_events()

    def _check_kv_events(self) -> None:
        for name in ("kv_events", "kv_events_replay"):
            if (endpoint := getattr(self, name)) is not None:
                try:
                    Endpoint.of(endpoint)
                except ConfigError as error:
                    raise ConfigError(f"{name}={error}") from None
        if self.kv_events is None and self.kv_events_replay is not None:
            raise ConfigError("kv_events_replay is of no use without kv_events: name both")

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys) or self.key_file is not None

    @property
    def socket_path(self) -> Path | None:
        """Of the Unix socket to listen at; None: it is TCP."""
        if self.host.startswith("unix:") and len(self.host) > len("unix:"):
            return Path(self.host.removeprefix("unix:"))
        return Path(self.host) if self.host.endswith(".sock") else None
