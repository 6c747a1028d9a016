"""Requests to a running exporter. Called by the commands that ask one.

What speaks HTTP is imported by the first request: a command that asks nobody does not wait for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from exporter.cli.telling import stop

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

Url = Annotated[str, typer.Option("--url", envvar="VERL_SENTINEL_URL", help="Base URL of the exporter.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the exporter's answer as it is.")]
Who = Annotated[str, typer.Option("--who", help="Who decides; goes into the audit log. Default: your user name.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Show at most as many.")]

DEFAULT_URL = "http://127.0.0.1:9464"
TIMEOUT_SECONDS = 10.0
MOST_REASON_BYTES = 1024 * 1024
"""Of an answer that says why not."""


def ask(url: str, path: str, part: str, content: dict[str, Any] | None = None, *, method: str | None = None) -> Any:
    """GET, or POST ``content`` as JSON; ends the program with a sentence where that fails.

    ``part`` is a name that the exporter's answer has: without it, something else answers at that address.
    """
    with answered(url, path, content, method=method) as response:
        answer = json.load(response)
    if not isinstance(answer, dict) or part not in answer:
        stop(f"What answers at {url} is not a verl-sentinel exporter. Is --url right?", 1)
    return answer


@contextlib.contextmanager
def answered(
    url: str,
    path: str,
    content: dict[str, Any] | None = None,
    *,
    method: str | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Iterator[IO[bytes]]:
    """The body of the answer, to be read inside; ends the program with a sentence where it cannot be had, or ends
    early. ``timeout`` is for each wait, in seconds."""
    from http.client import HTTPException, IncompleteRead
    from urllib.error import HTTPError
    from urllib.request import Request

    check_url(url)
    request = Request(url.rstrip("/") + path, headers={"Accept": "application/json"}, method=method)
    if content is not None:
        request.data = json.dumps(content).encode()
        request.add_header("Content-Type", "application/json")
    token = operator_token()
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with opener(url).open(request, timeout=timeout) as response:
            yield response
    except HTTPError as error:
        try:
            reason = json.loads(error.read(MOST_REASON_BYTES))["reason"]
        except (OSError, ValueError, KeyError, TypeError, HTTPException):
            reason = f"it answered {error.code} {error.reason}."
        stop(f"The exporter at {url} refused: {reason}", 1)
    except IncompleteRead:
        stop(f"The exporter at {url} broke off its answer. Its log may say why.", 1)
    except (OSError, ValueError, HTTPException) as error:
        stop(f"The exporter at {url} cannot be asked: {why(error)}. {_what_to_do(error)}", 1)


def check_url(url: str) -> None:
    """End the program where this is no address of an exporter."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, usable = None, False
    if parts is not None and "@" in parts.netloc:  # and no word of it is repeated
        stop("--url holds a user name or password: give a token in VERL_SENTINEL_TOKEN_FILE instead.", 2)
    if not usable:
        stop(f"--url is {url!r}: an address that starts with http:// or https:// is expected.", 2)


def why(error: BaseException) -> str:
    """What an exception of the network says, in words."""
    return str(getattr(error, "reason", None) or str(error).strip() or type(error).__name__).removesuffix(".")


def _what_to_do(error: BaseException) -> str:
    """About an exporter that cannot be asked."""
    from ssl import SSLCertVerificationError

    if isinstance(getattr(error, "reason", error), SSLCertVerificationError):
        return (
            "Is --url right? If a private authority signed its certificate, "
            "name the authority's PEM file in VERL_SENTINEL_CA_FILE."
        )
    return "Is it running, and is --url right?"


def opener(url: str) -> OpenerDirector:
    """Through the user's proxy, if there is one, but never to this machine itself: the proxy is another one."""
    import urllib.request
    from urllib.parse import urlsplit

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """An exporter never redirects; what does is not it, and must not be handed the token."""

        def redirect_request(self, *_: Any) -> None:
            return None

    host = urlsplit(url).hostname or ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    parts: list[urllib.request.BaseHandler] = [NoRedirect()]
    if local:
        parts.append(urllib.request.ProxyHandler({}))
    authority = os.environ.get("VERL_SENTINEL_CA_FILE")
    if authority and url.startswith("https://"):
        import ssl

        try:
            parts.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=authority)))
        except OSError as error:  # ssl.SSLError is one
            stop(f"The certificates in {authority} (VERL_SENTINEL_CA_FILE) cannot be used: {why(error)}.", 2)
    return urllib.request.build_opener(*parts)


def operator_token() -> str:
    """From ``VERL_SENTINEL_TOKEN``, or the file that ``VERL_SENTINEL_TOKEN_FILE`` names; empty where neither is set."""
    try:
        return bearer()
    except ValueError as error:
        stop(str(error), 2)


def bearer() -> str:
    """The token, read anew at each call so that it can be rotated. Raises ``ValueError`` with a sentence."""
    file = os.environ.get("VERL_SENTINEL_TOKEN_FILE")
    if os.environ.get("VERL_SENTINEL_TOKEN") or not file:
        token, origin = os.environ.get("VERL_SENTINEL_TOKEN", "").strip(), "VERL_SENTINEL_TOKEN"
    else:
        origin = f"The token file {file} (VERL_SENTINEL_TOKEN_FILE)"
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except UnicodeDecodeError:
            raise ValueError(f"{origin} cannot be read: it is not UTF-8 text.") from None
        except OSError as error:
            raise ValueError(f"{origin} cannot be read: {error}.") from None
    if not re.fullmatch(r"[\x21-\x7e]*", token):
        raise ValueError(f"{origin} holds a token with spaces, line ends or characters outside ASCII.")
    return token


def user() -> str:
    """The name of whoever runs this."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        stop("This user has no name on this machine: say who decides with --who.", 2)


def quoted(part: str) -> str:
    """As one segment of a path."""
    from urllib.parse import quote

    return quote(part, safe="")
