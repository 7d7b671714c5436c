"""Files that others have put into the folders of engines' disk caches since the engines began: they are told of them.

Daemons on one machine may share a folder; each lists it at its start only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from luce.supervisor.cache_store.local_folder import folder_of
from luce.supervisor.engine.generation import EngineDied, EngineError
from luce.supervisor.scheduling.engine_handle import EngineHandle

_LOG = logging.getLogger("luce.cache_store")


async def adopt_what_has_come(handles: Sequence[EngineHandle]) -> None:
    for handle in handles:
        files, folder = handle.disk_files, folder_of(handle)
        if files is None or folder is None:
            continue
        try:
            adopted = await files.adopt(await asyncio.to_thread(folder.files))
        except (EngineDied, EngineError, OSError) as error:
            _LOG.warning("%s could not be told of new files in its disk cache: %s", handle.monitor.name, error)
        else:
            _LOG.info("%s was told of %d new files in its disk cache", handle.monitor.name, adopted.n_new)
