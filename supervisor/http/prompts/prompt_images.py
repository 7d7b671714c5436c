"""PromptImages: the images of a request's messages on their way to the engine: refused or put in words where the server
has no projector, else their files and their ids. Knows the supervisor's door; no dialect and no template.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from luce.protocol import ErrorCode
from luce.supervisor.engine.image_file import ImageFile
from luce.supervisor.http.errors import api_error
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt, TextPrompt
from luce.supervisor.http.prompts.message_images import MessageImage, Unreadable, images_of, without_images
from luce.supervisor.requests import PromptImage, RequestError

if TYPE_CHECKING:
    from luce.supervisor.model_backend import ModelBackend


_MAX_KNOWN_FAULTS = 1024


class PromptImages:
    """For one supervisor."""

    def __init__(self, supervisor: ModelBackend) -> None:
        self._supervisor = supervisor
        self._known_faults: OrderedDict[str, Unreadable] = OrderedDict()
        self._files: weakref.WeakValueDictionary[tuple[str, int | None], ImageFile] = weakref.WeakValueDictionary()

    async def readable(self, asked: AnswerRequest, salt: int | None = None) -> AnswerRequest:
        """With words in place of images that the model cannot read; `salt`: the prompt's. Raises ApiError, also where
        the client sends such an image now."""
        prompt = asked.prompt
        if isinstance(prompt, TextPrompt):
            return asked
        faults = await self._faults(prompt, salt) if self._supervisor.has_images else None
        messages = without_images(prompt.messages, faults)
        return asked if messages is prompt.messages else replace(asked, prompt=replace(prompt, messages=messages))

    async def _faults(self, prompt: ChatPrompt, salt: int | None) -> Mapping[str, Unreadable]:
        """Of the images that engines refuse, by their names."""
        images = [image for image in images_of(prompt.messages) if image.is_readable]
        if images:
            await asyncio.to_thread(lambda: [image.name for image in images])  # each reads all of a file
        faults: dict[str, Unreadable] = {}
        for image in images:
            fault = self._known_faults.get(image.name) or await self._fault_of(image, salt)
            if fault is not None:
                faults[image.name] = fault
        return faults

    async def _fault_of(self, image: MessageImage, salt: int | None) -> Unreadable | None:
        try:
            await self._supervisor.image_ids(self._file(image, salt), salt)
        except RequestError as error:
            if error.code != ErrorCode.BAD_IMAGE:
                raise api_error(error) from error
            why = str(error).removeprefix(f"{error.code}: ")
            fault = self._known_faults[image.name] = Unreadable("image", why, code=error.code)
            if len(self._known_faults) > _MAX_KNOWN_FAULTS:
                self._known_faults.popitem(last=False)
            return fault
        return None

    async def ids_of(self, prompt: ChatPrompt | TextPrompt, salt: int | None = None) -> Mapping[str, Sequence[int]]:
        """What stands in the prompt for each image, by its name; `salt`: the prompt's. REQUIRES: they are readable.
        Raises ApiError."""
        if isinstance(prompt, TextPrompt):
            return {}
        ids: dict[str, Sequence[int]] = {}
        for image in images_of(prompt.messages):
            try:
                ids[image.name] = await self._supervisor.image_ids(self._file(image, salt), salt)
            except RequestError as error:
                raise api_error(error) from error
        return ids

    def placed(
        self, prompt: ChatPrompt | TextPrompt, places: Sequence[tuple[int, str]], salt: int | None = None
    ) -> Sequence[PromptImage]:
        """`places`: where the ids of each begin, and its name."""
        if isinstance(prompt, TextPrompt) or not places:
            return ()
        files = {image.name: self._file(image, salt) for image in images_of(prompt.messages)}
        return [PromptImage(position, files[name]) for position, name in places]

    def _file(self, image: MessageImage, salt: int | None) -> ImageFile:
        """The same for all requests of one salt that hold the image now."""
        name = (image.name, salt)
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = ImageFile(image.name, image.file())
        return file
