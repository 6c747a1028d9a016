"""TensorBoard's event files: records, and the few fields of their messages that hold scalars. Called by its reader.

A record is the length of its content (8 bytes), a masked CRC-32C of these, the content, and a CRC-32C of it. The length
is checked, for everything after a wrong one is garbage; the content is not, since in Python that takes longer than all
the rest. Formats: tensorflow/core/lib/io/record_writer.h, and event.proto, summary.proto and tensor.proto of
tensorflow/core.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Final

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""A larger record holds pictures or weights and is passed over."""
HEADER_BYTES: Final = 12
_CHUNK = 1024 * 1024
_KNOWN_HEADERS = 4096

_double = struct.Struct("<d")
_float = struct.Struct("<f")
_header = struct.Struct("<QI")


class Malformed(ValueError):
    """Bytes that are no such message."""


@dataclass(frozen=True, slots=True)
class Scalars:
    """One event. ``time``: Unix seconds."""

    step: int
    time: float
    values: tuple[tuple[str, float], ...]


def _table() -> tuple[int, ...]:
    table = []
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_CRC_TABLE: Final = _table()


def masked_crc32c(data: bytes) -> int:
    """As the record format has it.

    >>> hex(masked_crc32c((24).to_bytes(8, "little")))
    '0x224b7fa3'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def is_header(first: bytes) -> bool:
    """Whether these 12 bytes begin a record."""
    return len(first) == HEADER_BYTES and masked_crc32c(first[:8]) == _header.unpack(first)[1]


def records(file: IO[bytes]) -> Iterator[bytes | None]:
    """Contents of the records; None for one that is too large. Raises :class:`Malformed` at a damaged or cut one."""
    lengths: dict[bytes, int] = {}  # of headers that were checked: in a file there are few different ones
    while header := file.read(HEADER_BYTES):
        length = lengths.get(header)
        if length is None:
            if not is_header(header):
                raise Malformed("a record is damaged or cut off, and what follows cannot be read")
            length = _header.unpack(header)[0]
            if len(lengths) < _KNOWN_HEADERS:
                lengths[header] = length
        if length > MAX_RECORD_BYTES:
            _pass_over(file, length + 4)
            yield None
            continue
        content = file.read(length + 4)
        if len(content) < length + 4:
            raise Malformed("the last record is cut off")
        yield content[:length]


def _pass_over(file: IO[bytes], count: int) -> None:
    while count > 0:
        got = len(file.read(min(count, _CHUNK)))
        if not got:
            raise Malformed("the last record is cut off")
        count -= got


_COMMON = re.compile(
    rb"\x09(.{8})(?:\x10([\x80-\xff]{0,8}[\x00-\x7f]))?\x2a(?:[\x80-\xff][\x01-\x7f]|.)\x0a(?:[\x80-\xff][\x01-\x7f]|.)"
    rb"\x0a([\x01-\x7f])([^\x00-\x1f\x7f]+)"
    rb"(?:\x15(.{4})|\x42\x0a\x08\x01\x12\x00[\x22\x2a]\x04(.{4})(?:\x4a([\x00-\x7f])(.{0,127}))?)",
    re.DOTALL,
)
"""The event that nearly all are: time, step, and one value with a name and a float, which is plain or a tensor of type
float without a dimension, with the plugin's metadata behind it."""


def scalars(event: bytes) -> Scalars:
    """The scalars of an event. Raises :class:`Malformed`."""
    common = _COMMON.fullmatch(event)
    if common is not None:
        time, step_bytes, tag_length, tag, plain, tensor, length, metadata = common.groups()
        if tag_length[0] == len(tag) and (length is None or length[0] == len(metadata)):
            value = _float.unpack(tensor if plain is None else plain)[0]
            step = _varint(step_bytes, 0)[0] if step_bytes else 0
            return Scalars(step, _double.unpack(time)[0], ((tag.decode("utf-8", "replace"), value),))
    return _any_scalars(event)


def _any_scalars(event: bytes) -> Scalars:
    step, time = 0, 0.0
    values: list[tuple[str, float]] = []
    for number, value in _fields(event):
        if number == 1 and isinstance(value, bytes):
            time = _double.unpack(_sized(value, 8))[0]
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            values += (v for n, one in _fields(value) if n == 1 and isinstance(one, bytes) for v in _value(one))
    return Scalars(step, time, tuple(values))


def _value(message: bytes) -> Iterator[tuple[str, float]]:
    tag, number = "", None
    for field, value in _fields(message):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif field == 2 and isinstance(value, bytes):
            number = float(_float.unpack(_sized(value, 4))[0])
        elif field == 8 and isinstance(value, bytes):
            number = _tensor(value)
    if tag and number is not None:
        yield tag, number


_FORMATS: Final = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
"""Of TensorFlow's types of numbers: float, double, int32, int64."""
_VALUE_FIELDS: Final = {5: 1, 6: 2, 7: 3, 10: 9}
"""Field to the type whose numbers it holds."""


def _tensor(message: bytes) -> float | None:
    """The number in a tensor that has one; None for any other."""
    found: list[float] = []
    fields = list(_fields(message))
    kind = next((value for number, value in fields if number == 1 and isinstance(value, int)), 0)
    if kind not in _FORMATS:
        return None
    size = struct.calcsize(_FORMATS[kind])
    for number, value in fields:
        if number == 4 and isinstance(value, bytes) and value:
            if len(value) != size:
                return None
            found.append(float(struct.unpack(_FORMATS[kind], value)[0]))
        elif _VALUE_FIELDS.get(number) == kind:
            if isinstance(value, int):
                found.append(float(value - (1 << 64) if value >> 63 else value))
            elif kind in (1, 2) and len(value) == size:
                found.append(float(struct.unpack(_FORMATS[kind], value)[0]))
            elif kind in (3, 9):
                first, end = _varint(value, 0)
                if end != len(value):
                    return None
                found.append(float(first - (1 << 64) if first >> 63 else first))
            else:
                return None
    return found[0] if len(found) == 1 else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an int for a varint, else bytes."""
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            number, place = _varint(message, place)
            yield key >> 3, number
            continue
        if kind == 2:
            length, place = _varint(message, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise Malformed("a record is no event of TensorBoard")
        if place + length > end:
            raise Malformed("a record is no event of TensorBoard")
        yield key >> 3, message[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    result = shift = 0
    for byte in data[place : place + 10]:
        result |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, place
        shift += 7
    raise Malformed("a record is no event of TensorBoard")


def _sized(value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise Malformed("a record is no event of TensorBoard")
    return value
