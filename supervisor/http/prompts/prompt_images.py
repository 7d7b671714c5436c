"""PromptImages: the images of a request's messages on their way to the engine: refused or put in words where the server
has no projector, else their files and their ids. Knows the supervisor's door; no dialect and no template.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from luce.supervisor.engine.image_file import ImageFile
from luce.supervisor.http.errors import api_error
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt, TextPrompt
from luce.supervisor.http.prompts.message_images import MessageImage, images_of, without_images
from luce.supervisor.requests import PromptImage, RequestError

if TYPE_CHECKING:
    from luce.supervisor.supervisor import Supervisor


class PromptImages:
    """For one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._files: weakref.WeakValueDictionary[str, ImageFile] = weakref.WeakValueDictionary()

    def readable(self, asked: AnswerRequest) -> AnswerRequest:
        """As the model can read it. Raises ApiError."""
        prompt = asked.prompt
        if self._supervisor.has_images or isinstance(prompt, TextPrompt):
            return asked
        messages = without_images(prompt.messages)
        return asked if messages is prompt.messages else replace(asked, prompt=replace(prompt, messages=messages))

    async def ids_of(self, prompt: ChatPrompt | TextPrompt) -> Mapping[str, Sequence[int]]:
        """What stands in the prompt for each image, by its name. Raises ApiError."""
        if isinstance(prompt, TextPrompt):
            return {}
        ids: dict[str, Sequence[int]] = {}
        images = list(images_of(prompt.messages))
        if images:
            await asyncio.to_thread(lambda: [image.name for image in images])  # each reads all of a file
        for image in images:
            try:
                ids[image.name] = await self._supervisor.image_ids(self._file(image))
            except RequestError as error:
                raise api_error(error) from error
        return ids

    def placed(self, prompt: ChatPrompt | TextPrompt, places: Sequence[tuple[int, str]]) -> Sequence[PromptImage]:
        """`places`: where the ids of each begin, and its name."""
        if isinstance(prompt, TextPrompt) or not places:
            return ()
        files = {image.name: self._file(image) for image in images_of(prompt.messages)}
        return [PromptImage(position, files[name]) for position, name in places]

    def _file(self, image: MessageImage) -> ImageFile:
        """The same for all requests that hold the image now."""
        file = self._files.get(image.name)
        if file is None:
            file = self._files[image.name] = ImageFile(image.name, image.file())
        return file
