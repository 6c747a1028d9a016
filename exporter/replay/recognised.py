"""Which reader a file wants, by what is in it. Called by ``verl-sentinel replay``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from exporter.follow.parsing import kind_of, parse_jsonl
from exporter.replay.opened import DAMAGED, lines, opened
from exporter.replay.rows import FileUnusable, Found, Reader


def _jsonl(path: Path) -> Iterator[Found]:
    from exporter.replay.verl_lines import read_jsonl

    return read_jsonl(path)


def _console(path: Path) -> Iterator[Found]:
    from exporter.replay.verl_lines import read_console

    return read_console(path)


def _csv(path: Path) -> Iterator[Found]:
    from exporter.replay.sheet import read_sheet

    return read_sheet(path)


def _tensorboard(path: Path) -> Iterator[Found]:
    from exporter.replay.tensorboard import read_events

    return read_events(path)


def _trainer_state(path: Path) -> Iterator[Found]:
    from exporter.replay.trainer_state import read_trainer_state

    return read_trainer_state(path)


READERS: Final[Mapping[str, Reader]] = {
    "jsonl": _jsonl,
    "console": _console,
    "csv": _csv,
    "tensorboard": _tensorboard,
    "trainer-state": _trainer_state,
}
"""By the name that ``--format`` takes. Of five a replay mostly needs one, which is imported by its first use."""
MARK: Final = b'"log_history"'
"""Somewhere in a trainer's state."""
HEAD_BYTES: Final = 64 * 1024
MOST_BYTES: Final = 256 * 1024 * 1024
"""A console log may begin with much else than steps; where so much has none, there is none."""
WHAT_IS_READ: Final = (
    "verl's file log (JSONL), verl's console log, CSV as W&B exports it, TensorBoard's event files "
    "and Hugging Face's trainer_state.json are read"
)


def format_of(path: Path) -> str:
    """The key of :data:`READERS` for a file or folder. Raises :class:`FileUnusable`."""
    if path.is_dir():
        return "tensorboard"
    with opened(path) as file:
        try:
            form = _form(file)
            empty = not form and not file.tell()
        except DAMAGED as error:
            raise FileUnusable(f"{path} is no whole gzip file, and nothing in it could be read: {error}.") from None
    if empty:
        raise FileUnusable(f"{path} is empty.")
    if not form:
        raise FileUnusable(f"{path} has no form that is known: {WHAT_IS_READ}. Name it with --format if it is one.")
    return form


def _form(file: IO[bytes]) -> str:
    head = b""
    try:
        while len(head) < HEAD_BYTES and (more := file.read(HEAD_BYTES - len(head))):
            head += more
    except DAMAGED:
        if not head:
            raise
        return _by_head(head)
    found = _by_head(head)
    if found:
        return found
    file.seek(0)
    read = 0
    for line in lines(file):
        if line is None:
            continue
        read += len(line)
        parser = kind_of(line)
        if parser is not None:
            return "jsonl" if parser is parse_jsonl else "console"
        if read > MOST_BYTES:
            break
    return ""


def _by_head(head: bytes) -> str:
    first = head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0]
    if first.startswith(b"{"):
        if kind_of(first) is not None:
            return "jsonl"
        if MARK in head:
            return "trainer-state"
    from exporter.replay.event_records import HEADER_BYTES, is_header
    from exporter.replay.sheet import columns_of, header_of

    if is_header(head[:HEADER_BYTES]):
        return "tensorboard"
    return "csv" if not first.startswith(b"{") and columns_of(header_of(first)) is not None else ""
