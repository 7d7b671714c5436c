"""ImageIds: which ids stand in a prompt for an image, as engines say it.

All engines of one server have the same projector, and so the same ids for an image: any of them may be asked, once for
each image and salt. Knows no requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from luce.supervisor.engine.generation import EngineDied, EngineError
from luce.supervisor.engine.image_file import ImageFile
from luce.supervisor.requests import EngineFailedError, RequestRefusedError
from luce.supervisor.scheduling.engine_handle import EngineHandle

_MAX_KNOWN = 1024  # a large image has some thousand ids


class ImageIds:
    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int | None], tuple[int, ...]] = OrderedDict()

    async def ids(self, file: ImageFile, salt: int | None, engines: Sequence[EngineHandle]) -> tuple[int, ...]:
        """`salt`: of the text that will hold it; who has another one waits for the engine as if nobody had asked.
        Raises RequestRefusedError, EngineFailedError."""
        name = (file.name, salt)
        if (known := self._known.get(name)) is not None:
            self._known.move_to_end(name)
            return known
        failure = EngineDied("there is no engine now")
        for engine in engines:
            try:
                ids = await engine.image_ids(file, salt)
            except EngineDied as error:
                failure = error
                continue
            except EngineError as error:
                raise RequestRefusedError(error.code, error.text) from error
            self._known[name] = ids
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
            return ids
        raise EngineFailedError(str(failure)) from failure
