"""What the routes share: reading what a request asks for, and waiting for what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from litestar import Request

from exporter.service.admission import Refused

_T = TypeVar("_T")
AnyRequest = Request[Any, Any, Any]


class Person(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who decides; goes into the audit log."""

    who: str


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which incident is acknowledged, and by whom."""

    id: str
    who: str


def decoded(decode: Callable[[], _T]) -> _T:
    """What ``decode`` gives; raises :class:`Refused` with msgspec's message, which ends with the path of the field."""
    try:
        return decode()
    except RecursionError:
        raise Refused("malformed", "The body is nested too deeply to be read.", where="body") from None
    except msgspec.DecodeError as error:
        raise malformed(error) from None


def malformed(error: msgspec.DecodeError) -> Refused:
    message, _, place = str(error).partition(" - at `")
    key, in_dict, field = place.partition("` in `")  # of a key that is no text
    if in_dict:
        message, place = f"{message} as a {key}", field
    where = place.rstrip("`") or ("$" if isinstance(error, msgspec.ValidationError) else "body")
    return Refused("malformed", f"The body is not what is expected: {message.removesuffix('.')}.", where=where)


def settle(done: asyncio.Future[_T | Refused], result: _T | Refused) -> None:
    """Hand over what the core answered; whoever asked may be gone by then."""
    if not done.done():
        done.set_result(result)


async def settled(done: asyncio.Future[_T | Refused]) -> _T:
    """The result; raises it where it is a refusal."""
    result = await done
    if isinstance(result, Refused):
        raise result
    return result


def person(who: str, where: str = "$.who") -> str:
    """The name of who decides. Raises :class:`Refused` where it is none."""
    if not who.strip() or len(who) > 200 or not who.isprintable():
        message = "Say who decides, in 1 to 200 printable characters: it goes into the audit log."
        raise Refused("malformed", message, where=where)
    return who.strip()
