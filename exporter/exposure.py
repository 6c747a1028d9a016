"""Who can reach the exporter, and what they have to show: address, tokens, TLS. Read by :mod:`exporter.config`."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

SCOPES = ("push", "alert", "operate")

SHORT_TOKEN = 16
"""Characters. A shorter token may be guessed, or is a word; 32 random bytes are 44."""


class ConfigError(Exception):
    """The program cannot start with this configuration; the text is a sentence for a person."""


class TokenSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where tokens come from: exactly one of the three."""

    file: str | None = None
    """A file with one token a line; empty lines and lines that start with # do not count."""
    env: str | None = None
    """Name of an environment variable that holds one token."""
    value: str | None = None
    """The token itself."""

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.file, self.env, self.value)) != 1:
            raise ValueError("a token has exactly one of file, env and value")


class Tokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bearer tokens by scope. A scope without any is open to all who can reach the port, which must be loopback."""

    push: tuple[TokenSource, ...] = ()
    alert: tuple[TokenSource, ...] = ()
    operate: tuple[TokenSource, ...] = ()


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``tls`` section: the exporter then speaks HTTPS, and nothing else."""

    cert_file: str
    """The certificate and those of the authorities between it and the root, as PEM."""
    key_file: str
    """Its private key, as PEM, not encrypted."""
    min_version: Literal["TLSv1.2", "TLSv1.3"] = "TLSv1.2"


def address(listen: str) -> tuple[str, int]:
    """Split ``host:port`` (IPv6 in brackets). Raises ``ValueError`` with a sentence."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(
            f"listen is {listen!r}: an address and a port are expected, such as 127.0.0.1:9464 or [::1]:9464"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def resolve_tokens(tokens: Tokens, environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The tokens of each scope. Raises :class:`ConfigError` where a file or variable is missing, empty or malformed."""
    return {
        scope: tuple(
            token for source in getattr(tokens, scope) for token in tokens_of(source, f"tokens.{scope}", environment)
        )
        for scope in SCOPES
    }


def check_exposure(listen: str, tokens: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse to be reachable from other machines without tokens. Raises :class:`ConfigError`."""
    loopback = is_loopback(address(listen)[0])
    open_scopes = [scope for scope in SCOPES if not tokens[scope]]
    if not loopback and open_scopes:
        raise ConfigError(
            f"listen is {listen}, which other machines can reach, but no token is set for {', '.join(open_scopes)}: "
            "set tokens for every scope (tokens: in the configuration file), or listen on 127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tokens_of(source: TokenSource, where: str, environment: Mapping[str, str]) -> list[str]:
    """What a source holds now. ``where``: the setting, for the sentence of the :class:`ConfigError`."""
    origin = _origin(source)
    if source.value is not None:
        found = [source.value]
    elif source.env is not None:
        if source.env not in environment:
            raise ConfigError(f"{where}: {origin} is not set.")
        found = [environment[source.env].strip()]
    else:
        try:
            text = Path(source.file or "").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}: {origin} cannot be read: {os_reason(error)}.") from None
        found = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if not found or not all(found):
        raise ConfigError(f"{where}: {origin} holds no token.")
    for token in found:
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise ConfigError(f"{where}: {origin} holds a token with spaces or characters outside ASCII.")
    return found


def weaknesses(found: Mapping[str, Sequence[tuple[TokenSource, Sequence[str]]]]) -> Iterator[str]:
    """What is unwise about tokens that are in force, a sentence each, which never shows one.

    Args:
        found: the sources of each scope, with what each holds.
    """
    scopes: dict[str, list[str]] = {}
    files: dict[str, str] = {}
    for scope, sources in found.items():
        for source, tokens in sources:
            short = sum(len(token) < SHORT_TOKEN for token in tokens)
            if short:
                holds = "a token" if short == 1 else f"{short} tokens"
                yield (
                    f"tokens.{scope}: {_origin(source)} holds {holds} of fewer than {SHORT_TOKEN} characters, which "
                    "can be guessed: make one with head -c 32 /dev/urandom | base64."
                )
            for token in tokens:
                named = scopes.setdefault(token, [])
                named += [] if scope in named else [scope]
            if source.file is not None:
                files.setdefault(source.file, scope)
    for together in sorted({tuple(named) for named in scopes.values() if len(named) > 1}):
        names = " and ".join(f"tokens.{scope}" for scope in together)
        yield f"The same token is in {names}: who has it may do all that these scopes allow. Give each its own."
    for file, scope in files.items():
        if readers := _readers(file):
            yield f"tokens.{scope}: the file {file} can be read by {readers}, and its tokens with it."


def _origin(source: TokenSource) -> str:
    if source.file is not None:
        return f"the file {source.file}"
    return f"the environment variable {source.env}" if source.env is not None else "its value"


def _readers(file: str) -> str:
    """Who else than the exporter can read a file; empty where nobody can.

    A file of another owner (root's) that the group may read is how the exporter itself gets to it.
    """
    try:
        status = os.stat(file)
    except OSError:
        return ""
    if status.st_mode & stat.S_IROTH:
        return "every user of this machine"
    return "its group" if status.st_mode & stat.S_IRGRP and status.st_uid == os.geteuid() else ""


def tls_context(tls: Tls, where: str = "tls") -> ssl.SSLContext:
    """The context of a server. ``where``: the section, for the sentence of the :class:`ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.min_version == "TLSv1.3" else ssl.TLSVersion.TLSv1_2
    load_certificate(context, tls, where)
    return context


def load_certificate(context: ssl.SSLContext, tls: Tls, where: str = "tls") -> None:
    """Take the files as they are now. Raises :class:`ConfigError` where they cannot be used."""
    readable(tls.cert_file, f"{where}.cert_file")
    readable(tls.key_file, f"{where}.key_file")
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", "") or error.strerror or str(error)
        words = str(reason).lower().replace("_", " ")
        raise ConfigError(
            f"{where}: {tls.cert_file} and {tls.key_file} cannot be used together: {words}. Expected are a "
            "certificate chain and its own key, both PEM, the key not encrypted."
        ) from None


def readable(file: str, where: str) -> None:
    """Raise :class:`ConfigError` where the file cannot be read."""
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{where}: the file {file} cannot be read: {os_reason(error)}.") from None


def os_reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
