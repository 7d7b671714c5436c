"""DaemonConfig: every option of `luced` as one frozen value, and its one way to become arguments. SupervisorConfig: the
same and the supervisor's own.

What an option is called on command lines, and what it is for, stands in options.json; here are the types and defaults.
None means "the daemon decides", because only it has seen the model and the machine. It must not know where files are
found, nor start anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from luce.supervisor.config.table import engine_options

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
FlashAttention = Literal["auto", "on", "off"]
LogLevel = Literal["error", "warn", "info", "debug"]
OnOff = Literal["on", "off"]
DraftAccept = Literal["match", "rejection"]
DraftMethod = Literal["none", "dflash", "mtp", "auto"]
EmbeddingPooling = Literal["mean", "cls", "last"]
RopeScaling = Literal["none", "linear", "yarn"]
SplitMode = Literal["none", "layer", "row", "tensor"]
KvflashPolicy = Literal["auto", "query", "draft", "lru"]
ByteCount = Annotated[int, "bytes"]  # written 8G for short where people write it
TokenCount = Annotated[int, "tokens"]  # 32K for short
NumberOrAuto = Annotated[int | Literal["auto"], "number"]
TokensOrAuto = Annotated[int | Literal["auto"], "tokens"]

CACHE_TYPES: tuple[CacheType, ...] = get_args(CacheType)


OPENMP_SPIN_COUNT = 20_000
"""How long an OpenMP thread of luced spins before it sleeps: some 0.3 ms, longer than threads that have a core each
wait for each other. luced shortens it itself while other programs want the cores, where threads that spin for their
turn take it from those that compute."""


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that luced is started with: the caller's, with our OpenMP default where it says nothing itself.
    libgomp reads it before main(), so it cannot be an option of luced."""
    chosen = dict(environment)
    if "GOMP_SPINCOUNT" not in chosen and "OMP_WAIT_POLICY" not in chosen:
        chosen["GOMP_SPINCOUNT"] = str(OPENMP_SPIN_COUNT)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """What one `luced` is started with."""

    model: Path
    ctx: TokenCount | None = None
    pool: TokenCount | None = None
    lanes: int | None = None
    queue: int | None = None
    batch: TokenCount | None = None
    ubatch: TokenCount | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    device: str | None = None
    rpc: str | None = None
    split_mode: SplitMode | None = None
    tensor_split: str | None = None
    main_gpu: int | None = None
    cpu_moe: bool = False
    n_cpu_moe: int | None = None
    moe_cache_mib: int | None = None
    expert_memory: ByteCount | None = None
    expert_profile: Path | None = None
    expert_profiles: Path | None = None
    experts_fixed: bool = False
    override_tensor: str | None = None
    no_mmap: bool = False
    mlock: bool = False
    fit: OnOff | None = None
    gpu_memory: ByteCount | None = None
    reserve_gpu: ByteCount | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    flash_attn: FlashAttention | None = None
    rope_scaling: RopeScaling | None = None
    rope_scale: float | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_orig_ctx: TokenCount | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None
    override_kv: tuple[str, ...] | None = None
    slots: int | None = None
    host_cache: ByteCount | None = None
    host_cache_type: str | None = None
    disk_cache: Path | None = None
    disk_budget: ByteCount | None = None
    prefix_cache: OnOff | None = None
    kvflash: TokensOrAuto | None = None
    kvflash_tau: int | None = None
    kvflash_policy: KvflashPolicy | None = None
    kvflash_pin: tuple[str, ...] | None = None
    kvflash_scorer: Path | None = None
    kvflash_scorer_cache_type: CacheType | None = None
    kvflash_layer: NumberOrAuto | None = None
    prefill: Literal["full", "auto", "sparse"] | None = None
    prefill_scorer: Path | None = None
    prefill_keep: float | None = None
    prefill_from: TokenCount | None = None
    prefill_repair: OnOff | None = None
    draft: Path | None = None
    mmproj: Path | None = None
    mtp: bool = False
    draft_method: DraftMethod | None = None
    draft_max: int | None = None
    draft_gate: OnOff | None = None
    no_warmup: bool = False
    draft_accept: DraftAccept | None = None
    draft_answers: OnOff | None = None
    draft_ngram: OnOff | None = None
    draft_tree: int | None = None
    spec_memory: ByteCount | None = None
    draft_cache_type_k: CacheType | None = None
    draft_cache_type_v: CacheType | None = None
    draft_gpu_layers: int | None = None
    draft_threads: int | None = None
    seed: int | None = None
    log_level: LogLevel | None = None
    load_timeout: int | None = None
    trace: Path | None = None
    embedding: Literal["auto", "mean", "cls", "last", "rank"] | None = None
    stream_fd: int | None = None
    mux: bool = False
    die_with_parent: bool = False

    def to_argv(self) -> list[str]:
        """The arguments behind the program's name."""
        argv: list[str] = []
        for field, option in engine_options().items():
            value = getattr(self, field, None)
            if option.takes is None:
                argv += [f"--{option.name}"] if value else []
            elif value is not None and value != ():
                argv += [f"--{option.name}", ",".join(value) if isinstance(value, tuple) else str(value)]
        return argv


class ConfigError(ValueError):
    """A configuration that cannot be: the text says what to change."""


@dataclass(frozen=True, slots=True, init=False)
class EngineConfig:
    """One of several engines: what it has of its own. `options` are those of DaemonConfig, in place of the
    supervisor's; `environment` is added to this process's, for instance CUDA_VISIBLE_DEVICES."""

    environment: Mapping[str, str]
    binary: Path | None
    options: Mapping[str, Any]

    def __init__(
        self, *, environment: Mapping[str, str] | None = None, binary: Path | None = None, **options: Any
    ) -> None:
        unknown = set(options) - _ENGINE_OPTIONS
        if unknown:
            raise ConfigError(f"an engine has no option {', '.join(sorted(unknown))}")
        object.__setattr__(self, "environment", dict(environment or {}))
        object.__setattr__(self, "binary", binary)
        object.__setattr__(self, "options", options)

    @classmethod
    def of(cls, value: EngineConfig | Mapping[str, Any]) -> EngineConfig:
        """A mapping has the same names; `env` stands for `environment`."""
        if isinstance(value, EngineConfig):
            return value
        names = {"env": "environment"}
        return cls(**{names.get(name, name): item for name, item in value.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig(DaemonConfig):
    """What a Supervisor is made with. All options of DaemonConfig, for every engine, and the supervisor's own."""

    engines: Sequence[EngineConfig | Mapping[str, Any]] = ()  # none: one engine as above; else one for each
    binary: Path | None = None  # luced; None: the one that is installed

    max_queue: int = 256  # requests that may wait for a lane
    queue_timeout_s: float | None = 600.0  # how long, where the request does not say; None: as long as it takes

    start_timeout_s: float = 600.0  # a model of hundreds of GB from a slow disk
    restart_delay_s: float = 0.1  # before an engine that did nothing before it died is started again; doubled each time
    max_restart_delay_s: float = 30.0
    restart_limit: int = 10  # deaths in a row without any work in between; then the engine is given up

    ping_interval_s: float = 0.25  # while requests run, and none of them has moved for so long
    idle_ping_interval_s: float = 5.0  # otherwise
    stopped_timeout_s: float = 2.0  # silence of an engine that a signal has stopped
    asleep_timeout_s: float = 5.0  # of one that uses no CPU
    busy_timeout_s: float = 120.0  # of one that computes
    stalled_timeout_s: float = 180.0  # without progress of any request
    slow_factor: float = 4.0  # all but the first grow to so many of the slowest steps that were seen
    final_timeout_s: float = 5.0  # between the end of a request's tokens and its final reply
    acquittal_tokens: int = 16  # new ones, after which earlier deaths of engines are not held against a request

    pin_min_tokens: TokenCount = 1024  # shortest prefix that is worth a slot
    pin_half_life_s: float = 600.0  # of a slot's worth while nobody uses it
    slot_budget: ByteCount | None = None  # bytes of pages and tails that slots may hold; None: what the engine has
    share_min_tokens: TokenCount = 256  # a request waits for another that is reading so much of the same prefix
    sleep_idle_s: float | None = None  # without requests, after which an engine gives its memory back; None: never

    cache_store: str | None = None  # s3://, gs://, az:// or file://: where disk_cache is kept for others too
    cache_store_budget: ByteCount | None = None  # what it may hold; None: nothing is deleted for room
    cache_store_days: float | None = None  # after which what nobody has used is deleted; None: never
    cache_store_rate: ByteCount | None = None  # bytes a second that are written there at most; None: what it takes

    embedding_model: Path | None = None  # a GGUF file: what /v1/embeddings is served with, by an engine of its own
    embedding_pooling: EmbeddingPooling | None = None  # None: as the file says
    rerank_model: Path | None = None  # the same for /v1/rerank
    embedding_ctx: TokenCount | None = None  # tokens of the longest text of either; None: what they can, at most 8192
    embedding_gpu_layers: int | None = None  # of either; None: all, where there is a GPU

    def __post_init__(self) -> None:
        if self.max_queue < 0:
            raise ConfigError(f"max_queue={self.max_queue}: it must be 0 or more")
        for name in ("ping_interval_s", "idle_ping_interval_s", "start_timeout_s", "final_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0")

        if self.sleep_idle_s is not None and self.sleep_idle_s <= 0:
            raise ConfigError("sleep_idle_s must be above 0; leave it out, and engines keep their memory")
        for accept in (self.draft_accept, *(engine.options.get("draft_accept") for engine in self.engine_configs())):
            if accept == "rejection":
                raise ConfigError("draft_accept: rejection was removed: leave it out, and drafts are matched")
        traces = [str(trace) for engine in self.engine_configs() if (trace := self.daemon_config(engine).trace)]
        if len(set(traces)) < len(traces):
            raise ConfigError("trace: each engine writes a file of its own: name it in the engine's options")
        self._check_kvflash()
        self._check_embedding()
        self._check_cache_store()

    def embedding_config(self) -> SupervisorConfig | None:
        """What the engine of the embedding model is started and watched with. None: there is none."""
        if self.embedding_model is None:
            return None
        return self._beside(self.embedding_model, self.embedding_pooling or "auto")

    def rerank_config(self) -> SupervisorConfig | None:
        return None if self.rerank_model is None else self._beside(self.rerank_model, "rank")

    def _beside(self, model: Path, embedding: Literal["auto", "mean", "cls", "last", "rank"]) -> SupervisorConfig:
        """What is said of processes holds for this one as well; what is said of the model does not."""
        plain: dict[str, Any] = {entry.name: entry.default for entry in fields(DaemonConfig) if entry.name != "model"}
        of_process: dict[str, Any] = {name: getattr(self, name) for name in ("threads", "log_level", "load_timeout")}
        chosen: dict[str, Any] = {"model": model, "embedding": embedding, "engines": ()}
        chosen |= {"ctx": self.embedding_ctx, "gpu_layers": self.embedding_gpu_layers}
        # A long text is one step, within which nothing is heard of the engine.
        chosen |= {name: _LONG_STEP * getattr(self, name) for name in ("busy_timeout_s", "stalled_timeout_s")}
        return replace(self, **(plain | of_process | chosen))

    def _check_cache_store(self) -> None:
        for name in ("cache_store_budget", "cache_store_days", "cache_store_rate"):
            value = getattr(self, name)
            if value is not None and self.cache_store is None:
                raise ConfigError(f"{name} is for an object store: name one with cache_store, or leave it out")
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be above 0; leave it out for no limit")
        if self.cache_store is not None:
            for engine in self.engine_configs():
                daemon = self.daemon_config(engine)
                if daemon.disk_cache is None or daemon.disk_budget == 0:
                    raise ConfigError("cache_store goes through a folder: give each engine a disk_cache")

    def _check_embedding(self) -> None:
        if self.embedding_pooling is not None and self.embedding_model is None:
            raise ConfigError("embedding_pooling is for an embedding model: name one with embedding_model")
        for name in ("embedding_ctx", "embedding_gpu_layers"):
            if getattr(self, name) is not None and self.embedding_model is None and self.rerank_model is None:
                raise ConfigError(f"{name} is for an embedding model or a reranker: name one, or leave it out")
        if self.embedding_ctx is not None and self.embedding_ctx < 1:
            raise ConfigError("embedding_ctx must be 1 or more")

    def _check_kvflash(self) -> None:
        """How a bounded pool is used says nothing where there is none."""
        engines = self.engine_configs()
        bounded = [self.daemon_config(engine).kvflash is not None for engine in engines]
        for name in _OF_KVFLASH:
            given = [engine.options.get(name) is not None for engine in engines]
            is_needless = getattr(self, name) is not None and not any(bounded)
            if is_needless or any(has and not fits for has, fits in zip(given, bounded, strict=True)):
                raise ConfigError(
                    f"{name} is for a pool that texts may outgrow: set kvflash to a number of tokens, or to auto, or"
                    f" leave {name} out"
                )

    def engine_configs(self) -> list[EngineConfig]:
        """The engines, at least one."""
        return [EngineConfig.of(engine) for engine in self.engines] or [EngineConfig()]

    def daemon_config(self, engine: EngineConfig) -> DaemonConfig:
        """What one of them is started with."""
        common = DaemonConfig(**{name: getattr(self, name) for name in _DAEMON_FIELDS})
        config = replace(common, **engine.options)
        if config.kvflash is not None:
            return config
        # What is said for all engines is for those that have such a pool.
        unsaid: dict[str, Any] = dict.fromkeys(_OF_KVFLASH - engine.options.keys())
        return replace(config, **unsaid)


_LONG_STEP = 10
_OF_KVFLASH = frozenset(
    {"kvflash_tau", "kvflash_policy", "kvflash_pin", "kvflash_scorer", "kvflash_scorer_cache_type", "kvflash_layer"}
)
_DAEMON_FIELDS = frozenset(entry.name for entry in fields(DaemonConfig))
_ENGINE_OPTIONS = _DAEMON_FIELDS - {"embedding", "stream_fd", "mux", "die_with_parent"}
