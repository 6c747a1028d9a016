"""Files of a past run, packed by gzip or not, and their lines. Called by the readers of each form."""

from __future__ import annotations

import contextlib
import gzip
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, cast

from exporter.follow.parsing import Garbage
from exporter.replay.rows import FileUnusable

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""As ``follow`` has it."""
GZIP: Final = b"\x1f\x8b"
DAMAGED: Final = (EOFError, zlib.error, gzip.BadGzipFile)
"""What reading raises where a packed file was cut off or spoilt."""
CUT_OFF: Final = Garbage("the packed file is cut off or damaged, and what follows cannot be read")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, unpacked by its first bytes and whatever its name.

    Raises :class:`FileUnusable` where it cannot be read; :data:`DAMAGED` come from reading a packed one.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # asked before: to open a pipe may wait for ever
            raise FileUnusable(f"{path} is not a regular file, so it cannot be replayed.")
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == GZIP
            yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
    except gzip.BadGzipFile:
        raise
    except OSError as error:
        raise FileUnusable(f"{path} cannot be read: {error.strerror or error}.") from None


def lines(file: IO[bytes]) -> Iterator[bytes | None]:
    """Lines without their ends; None for one that is too long. Raises :data:`DAMAGED`."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (more := file.readline(MAX_LINE_BYTES)) and not more.endswith(b"\n"):
                pass
            yield None
        else:
            yield line.rstrip(b"\r\n")
