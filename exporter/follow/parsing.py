"""Steps in the lines that verl writes: its ``file`` logger's JSON, and its console log. Called by the follower.

The console logger prints ``step:7 - actor/loss:0.5 - perf/throughput:np.float64(812.5)``. In a real log that stands
behind Ray's coloured ``(TaskRunner pid=123)``, behind a progress bar that ended without a line feed, or with another
process's words inside it. What cannot be a metric is left out and counted; the rest of the line stays.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import msgspec

MAX_STEP = 2**53
MAX_KEY_LENGTH = 256
"""Longer names are cut; the exporter takes no longer ones."""


@dataclass(frozen=True, slots=True)
class Logged:
    """One step as a line has it."""

    step: int
    metrics: dict[str, float]
    writer: str = ""
    """The process that logged it, where the line says so: another one is another start of the trainer."""
    left_out: int = 0
    """Parts of the line that are no numbers under a name."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """A line that should have been a step."""

    reason: str


@dataclass(frozen=True, slots=True)
class LastStep:
    """verl says how many steps the training has."""

    step: int


Found = Logged | Garbage | LastStep
Parser = Callable[[bytes], Iterator[Found]]
"""What is in one line, without its line end."""


class _FileLine(msgspec.Struct):
    step: int
    data: dict[str, Any]


class _NumbersLine(msgspec.Struct):
    """What nearly every line is: numbers alone."""

    step: int
    data: dict[str, float | None]


_decode_line = msgspec.json.Decoder(_FileLine).decode
_decode_numbers = msgspec.json.Decoder(_NumbersLine).decode


def parse_jsonl(line: bytes) -> Iterator[Found]:
    """One line of verl's ``file`` logger. ``null`` is NaN: that is how verl writes what is not finite.

    >>> list(parse_jsonl(b'{"step": 3, "data": {"actor/loss": null, "lr": 1, "note": "x"}}'))
    [Logged(step=3, metrics={'actor/loss': nan, 'lr': 1.0}, writer='', left_out=1)]
    >>> list(parse_jsonl(b'{"step": 3, "da'))
    [Garbage(reason='no step of the file logger: Unterminated string starting at: line 1 column 13 (char 12)')]
    """
    try:
        numbers = _decode_numbers(line)
        names = numbers.data
        if 0 <= numbers.step < MAX_STEP and "" not in names and len(max(names, key=len, default="")) <= MAX_KEY_LENGTH:
            if None in names.values():
                names.update((name, math.nan) for name, value in list(names.items()) if value is None)
            yield Logged(numbers.step, cast(dict[str, float], names))
            return
    except (ValueError, RecursionError, msgspec.MsgspecError):
        pass  # something else is among them, or it is no such line: what follows says
    if not line.strip():
        return
    try:
        try:
            logged = _decode_line(line)
        except msgspec.DecodeError:
            # Python's own encoder, which older tools use, spells NaN as NaN, and its decoder takes what is too large.
            logged = msgspec.convert(json.loads(line), _FileLine)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        yield Garbage(f"no step of the file logger: {error}")
        return
    step, data = logged.step, logged.data
    if not 0 <= step < MAX_STEP:
        yield Garbage(f"step {step} is out of range")
        return
    metrics: dict[str, float] = {}
    left_out = 0
    for key, value in data.items():
        number = math.nan if value is None else _plain_number(value)
        if number is None or not key:
            left_out += 1
        else:
            metrics[_name(key)] = number
    yield Logged(step, metrics, left_out=left_out)


def _plain_number(value: Any) -> float | None:
    if not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


_STEP = re.compile(r"(?<![A-Za-z_/.:-])step:(\d{1,16}) - ")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_WRITER = re.compile(r"\(([A-Za-z_]\w*) pid=(\d+)(?:, ip=([0-9a-fA-F.:]+))?\)")
_LAST_STEP = re.compile(r"Total training steps: (\d{1,9})\b")
_NUMBER = re.compile(
    r"(?:np\.|numpy\.)?(?:float|int|uint|bool|half|single|double|longdouble)\w*\((?P<inner>[^()]*)\)"
    r"|(?P<plain>[^()\s]+)"
)
_WORDS = {"True": 1.0, "False": 0.0}


def parse_console(line: bytes) -> Iterator[Found]:
    """The steps in one line of verl's console log; nothing for a line that has none.

    >>> line = b"\\x1b[36m(TaskRunner pid=7)\\x1b[0m step:2 - actor/lr:1e-06 - a/b:np.float64(nan) - cut"
    >>> list(parse_console(line))
    [Logged(step=2, metrics={'actor/lr': 1e-06, 'a/b': nan}, writer='TaskRunner pid=7', left_out=1)]
    >>> list(parse_console(b"training/global_step:5 - x"))
    []
    """
    if b"step:" not in line:
        if b"Total training steps: " in line:
            told = _LAST_STEP.search(line.decode("utf-8", "replace"))
            if told and int(told[1]) > 0:
                yield LastStep(int(told[1]))
        return
    text = _COLOUR.sub("", line.decode("utf-8", "replace"))
    starts = list(_STEP.finditer(text))
    for index, start in enumerate(starts):
        step = int(start[1])
        if step >= MAX_STEP:
            yield Garbage(f"step {step} is out of range")
            continue
        end = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        writers = list(_WRITER.finditer(text, 0, start.start()))
        writer = writers[-1][0].strip("()") if writers else ""
        metrics: dict[str, float] = {}
        left_out = 0
        for part in text[start.end() : end].split(" - "):
            key, _, value = part.rpartition(":")
            number = console_number(value)
            # Metric names of verl hold spaces only where a data source has one; a word of another process has them.
            if number is None or not key or not key.isprintable():
                left_out += 1
            else:
                metrics[_name(key)] = number
        if metrics:
            yield Logged(step, metrics, writer, left_out)
        else:
            yield Garbage(f"step {step} without a metric")


def console_number(text: str) -> float | None:
    """A number as Python prints it, numpy's scalars too.

    >>> [console_number(t) for t in ("0.5", "np.int32(7)", "nan", "-inf", "np.True_", "1_0", "0.5x", "")]
    [0.5, 7.0, nan, -inf, 1.0, None, None, None]
    """
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    inner = (found["inner"] if found["plain"] is None else found["plain"]).strip().removeprefix("np.").removesuffix("_")
    if inner in _WORDS:
        return _WORDS[inner]
    try:
        return None if "_" in inner else float(inner)
    except ValueError:
        return None


def _name(key: str) -> str:
    return key[:MAX_KEY_LENGTH]


def kind_of(line: bytes) -> Parser | None:
    """Which parser a file wants, by one of its lines; None where this line does not tell."""
    start = line.lstrip()
    if start.startswith(b"{"):
        return None if any(isinstance(found, Garbage) for found in parse_jsonl(line)) else parse_jsonl
    return parse_console if any(isinstance(found, Logged) for found in parse_console(line)) else None
