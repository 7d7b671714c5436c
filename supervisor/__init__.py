"""luce.supervisor: drives `luced`, the native daemon, from Python.

This module gives embedders their names and must stay cheap to import: it imports no heavy library and starts nothing.
"""

from luce.supervisor.client import EngineClient
from luce.supervisor.config import DaemonConfig
from luce.supervisor.generation import EngineDied, EngineError, Event, Generation, TokenEvent
from luce.supervisor.locate import NotInstalledError, find_luced, packaged_model
from luce.supervisor.process import EngineProcess, StartError, StopDeadlines

__all__ = [
    "DaemonConfig",
    "EngineClient",
    "EngineDied",
    "EngineError",
    "EngineProcess",
    "Event",
    "Generation",
    "NotInstalledError",
    "StartError",
    "StopDeadlines",
    "TokenEvent",
    "find_luced",
    "packaged_model",
]
