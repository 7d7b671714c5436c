"""ImageFile: an image on its way to engines, as a file that commands name.

It lies in memory, and has a name only as long as somebody in this process holds it: however the process ends, nothing
is left behind. Owns the file; knows nothing of requests.
"""

from __future__ import annotations

import os
import weakref


class ImageFile:
    """There while it is referred to, for processes of this user."""

    def __init__(self, name: str, data: bytes) -> None:
        """`name`: by content. Raises OSError where there is no memory for it."""
        self.name = name
        fd = os.memfd_create("luce-image")
        try:
            with os.fdopen(fd, "wb", closefd=False) as stream:
                stream.write(data)
        except BaseException:
            os.close(fd)
            raise
        self.path = f"/proc/{os.getpid()}/fd/{fd}"
        weakref.finalize(self, os.close, fd)
