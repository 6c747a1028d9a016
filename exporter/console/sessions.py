"""Who is signed in to the console: sessions in memory, and the token that a form has to bring along. Used by
:mod:`exporter.console.visiting`.

A session belongs to a browser that showed a token of scope operate. It ends when that token does, after some hours
without a request, when its owner signs out, and with the process. The cookie holds a random number and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

IDLE_SECONDS: Final = 12 * 3600.0
MOST_SESSIONS: Final = 1000
"""Beyond it the one that was used longest ago ends."""
ID_BYTES: Final = 32


@dataclass(slots=True)
class Session:
    """One browser that is signed in."""

    who: str
    token: bytes
    """Digest of the token that opened it."""
    used: float


class Sessions:
    """All sessions of one exporter.

    Args:
        tokens: those of scope operate that are in force now.
        monotonic: seconds.
    """

    def __init__(
        self, tokens: Callable[[], tuple[bytes, ...]], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokens = tokens
        self._monotonic = monotonic
        self._by_id: OrderedDict[bytes, Session] = OrderedDict()
        self._secret = secrets.token_bytes(32)

    def open(self, token: bytes, who: str) -> str:
        """A session for who showed this token, which is a right one; the cookie's value."""
        cookie = new_id()
        self._by_id[_digest(cookie.encode())] = Session(who, _digest(token), self._monotonic())
        while len(self._by_id) > MOST_SESSIONS:
            self._by_id.popitem(last=False)
        return cookie

    def find(self, cookie: str, *, used: bool = True) -> Session | None:
        """The session of a cookie; None where it is over or never was. ``used``: by a person, so that it lasts on."""
        # Looked up by a digest: how long that takes says nothing of an id that is right.
        key = _digest(cookie.encode("utf-8", "replace"))
        session = self._by_id.get(key)
        if session is None:
            return None
        now = self._monotonic()
        if now - session.used > IDLE_SECONDS or not self._in_force(session):
            del self._by_id[key]
            return None
        if used:
            session.used = now
            self._by_id.move_to_end(key)
        return session

    def close(self, cookie: str) -> None:
        """Sign out."""
        self._by_id.pop(_digest(cookie.encode("utf-8", "replace")), None)

    def __len__(self) -> int:
        return len(self._by_id)

    def _in_force(self, session: Session) -> bool:
        found = False
        for token in self._tokens():
            found |= hmac.compare_digest(_digest(token), session.token)
        return found

    def form_token(self, cookie: str) -> str:
        """What a form of the browser with this cookie has to bring along; another text every time.

        It is masked, so that pages may be compressed: what is the same in all of them is not in the text.
        """
        mask = secrets.token_bytes(32)
        return base64.urlsafe_b64encode(mask + _xor(mask, self._form_secret(cookie))).decode().rstrip("=")

    def is_form_token(self, given: str, cookie: str) -> bool:
        """Whether a form was made for the browser with this cookie."""
        try:
            both = base64.urlsafe_b64decode(given.encode("ascii") + b"=" * (-len(given) % 4))
        except ValueError:
            return False
        if not cookie or len(both) != 64:
            return False
        return hmac.compare_digest(_xor(both[:32], both[32:]), self._form_secret(cookie))

    def _form_secret(self, cookie: str) -> bytes:
        return hmac.digest(self._secret, cookie.encode("utf-8", "replace"), "sha256")


def new_id() -> str:
    """A random text for a cookie."""
    return secrets.token_urlsafe(ID_BYTES)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
