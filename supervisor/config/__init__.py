"""luce.supervisor.config: what engines, the supervisor and the server are made with.

options has the typed configurations and table the engine's options by name; values, loading and text are the command
line's, the environment's and TOML files' way to them and back, and are imported from where they are.
"""

from luce.supervisor.config.options import (
    CACHE_TYPES,
    OPENMP_SPIN_COUNT,
    ByteCount,
    CacheType,
    ConfigError,
    DaemonConfig,
    EngineConfig,
    NumberOrAuto,
    OnOff,
    SupervisorConfig,
    TokenCount,
    TokensOrAuto,
    engine_environment,
)

__all__ = [
    "CACHE_TYPES",
    "OPENMP_SPIN_COUNT",
    "ByteCount",
    "CacheType",
    "ConfigError",
    "DaemonConfig",
    "EngineConfig",
    "NumberOrAuto",
    "OnOff",
    "SupervisorConfig",
    "TokenCount",
    "TokensOrAuto",
    "engine_environment",
]
