"""luce.supervisor: drives `luced`, the native daemon, from Python.

This module gives embedders their names and must stay cheap to import: it imports no heavy library and starts nothing.
"""

from luce.protocol import PinSpan, Reading, ReadingArgs
from luce.supervisor.config import ConfigError, DaemonConfig, EngineConfig, SupervisorConfig
from luce.supervisor.embedding.model import EmbeddingStatus, Relevance, TextVector
from luce.supervisor.engine.client import EngineClient
from luce.supervisor.engine.generation import (
    Compressed,
    DeathCause,
    EngineDied,
    EngineError,
    Event,
    Generation,
    TokenEvent,
)
from luce.supervisor.engine.locate import NotInstalledError, find_luced, packaged_draft, packaged_model
from luce.supervisor.engine.process import EngineProcess, StartError, StopDeadlines
from luce.supervisor.engine.watchdog import EngineState
from luce.supervisor.requests import (
    Begun,
    DeadlineError,
    EngineFailedError,
    EngineKillerError,
    FinishedEvent,
    GenerateRequest,
    PrefillEvent,
    PromptTokenEvent,
    PromptTooLongError,
    QueueFullError,
    RequestError,
    RequestEvent,
    RequestRefusedError,
    SupervisorClosedError,
    TextSalt,
)
from luce.supervisor.scheduling.text_files import SavedText
from luce.supervisor.supervisor import Supervisor
from luce.supervisor.supervisor_status import EngineStatus, LaneStatus, SupervisorStatus

__all__ = [
    "Begun",
    "Compressed",
    "ConfigError",
    "DaemonConfig",
    "DeadlineError",
    "DeathCause",
    "EmbeddingStatus",
    "EngineClient",
    "EngineConfig",
    "EngineDied",
    "EngineError",
    "EngineFailedError",
    "EngineKillerError",
    "EngineProcess",
    "EngineState",
    "EngineStatus",
    "Event",
    "FinishedEvent",
    "GenerateRequest",
    "Generation",
    "LaneStatus",
    "NotInstalledError",
    "PinSpan",
    "PrefillEvent",
    "PromptTokenEvent",
    "PromptTooLongError",
    "QueueFullError",
    "Reading",
    "ReadingArgs",
    "Relevance",
    "RequestError",
    "RequestEvent",
    "RequestRefusedError",
    "SavedText",
    "StartError",
    "StopDeadlines",
    "Supervisor",
    "SupervisorClosedError",
    "SupervisorConfig",
    "SupervisorStatus",
    "TextSalt",
    "TextVector",
    "TokenEvent",
    "find_luced",
    "packaged_draft",
    "packaged_model",
]
