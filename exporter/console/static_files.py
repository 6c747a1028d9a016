"""Style sheets and scripts of the console, under addresses that change with what is in them. Used by the pages."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from exporter.console.sending import AnyRequest, Sent
from exporter.service.admission import Refused

MEDIA_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FOREVER: Final = "public, max-age=31536000, immutable"


def static_pages(files: Files) -> list[HTTPRouteHandler]:
    """The handler of all files; they need no sign-in, as the page of the sign-in has them too."""

    @get(files.prefix + "{name:str}")
    async def file(request: AnyRequest, name: str) -> Response[bytes]:
        found = files.get(name)
        if found is None:
            raise Refused("not_found", f"There is no file {name}.", status=404)
        return await Sent(found, MEDIA_TYPES[name.rpartition(".")[2]], cache=FOREVER).response(request)

    return [file]


class Files:
    """What is in the folder ``static``, read once."""

    def __init__(self) -> None:
        folder = resources.files("exporter.console") / "static"
        self._files = {
            one.name: one.read_bytes() for one in folder.iterdir() if one.name.rpartition(".")[2] in MEDIA_TYPES
        }
        together = hashlib.sha256()
        for name, content in sorted(self._files.items()):
            together.update(name.encode() + b"\0" + content)
        # One for all of them: a script names another beside it, and must get the one that it was written for.
        self.prefix = f"/console/static/{together.hexdigest()[:16]}/"

    def get(self, name: str) -> bytes | None:
        return self._files.get(name)

    def address(self, name: str) -> str:
        """The path of a file. Raises ``KeyError`` where there is none of the name."""
        if name not in self._files:
            raise KeyError(name)
        return self.prefix + name
