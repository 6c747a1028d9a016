"""One request to InfluxDB through influxdb-client, and what came of it. Used by the InfluxDB sink's thread.

Every failure becomes one of three: the data is at fault (leave it out), the settings are (a person has to look), or the
server is away (try again). No message holds the token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.service.sinks.settings import InfluxSettings, TokenUnavailable, read_token

MESSAGE_LENGTH = 300
"""Of what a server says of itself."""

SPLITS = 100
"""Halvings that may be spent on the points that a server refuses in one request; then the rest of it is left out."""

WRITTEN = 204
"""The one status with which InfluxDB says that all is written, and what stands in for it; a proxy's page has 200."""

HINT = "check url, org, bucket and token in the section influxdb"

LONGEST_ASKED_WAIT = 300.0
"""Seconds; a server that asks for more is asked again after as long."""

_PARTIAL = re.compile(r"partial write.*\bdropped=(\d+)", re.DOTALL)


class Rejected(Exception):
    """The server will never take these points; ``dropped`` is how many, where it took the others, else None."""

    def __init__(self, message: str, dropped: int | None = None) -> None:
        super().__init__(message)
        self.dropped = dropped


class NotAllowed(Exception):
    """Token, organisation, bucket or address are wrong: a person has to change something, here or there."""


class Unavailable(Exception):
    """The server did not take it now; ``retry_after`` are the seconds for which it asked, or 0."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class Taken:
    """Points that the server took, points that it refuses for good, and why it does."""

    written: int
    rejected: int = 0
    why: str = ""


class InfluxServer:
    """A connection, made at the first write and anew after one that was not allowed, with the token as it then is.

    Args:
        settings: where to write.
        environment: holds the token where the settings name a variable.
    """

    def __init__(self, settings: InfluxSettings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._environment = environment
        self._client: Any = None
        self._api: Any = None
        self._token = ""

    def write_lines(self, lines: Sequence[bytes]) -> Taken:
        """Write lines; those that the server refuses are found by halving, and left out.

        Raises :class:`NotAllowed` or :class:`Unavailable`; some of the lines may have been written then.
        """
        waiting = [lines]
        written = rejected = 0
        why = ""
        splits = SPLITS
        while waiting:
            part = waiting.pop()
            lost = 0
            try:
                self.write(b"\n".join(part))
            except Rejected as error:
                if error.dropped is None and len(part) > 1 and splits > 0:
                    splits -= 1
                    middle = len(part) // 2
                    waiting += [part[middle:], part[:middle]]
                    continue
                lost = len(part) if error.dropped is None else min(len(part), error.dropped)
                why = str(error)
            rejected += lost
            written += len(part) - lost
        return Taken(written, rejected, why)

    def write(self, body: bytes) -> None:
        """Write one request. Raises :class:`Rejected`, :class:`NotAllowed` or :class:`Unavailable`."""
        from influxdb_client.client.exceptions import InfluxDBError
        from urllib3.exceptions import HTTPError

        try:
            self._connect()
            self._api.write(bucket=self._settings.bucket, org=self._settings.org, record=body)
            # The client takes every 2xx for success.
            answer = self._client.api_client.last_response
        except InfluxDBError as error:
            raise self._meaning(error) from None
        except UnicodeDecodeError:
            self.close()
            raise NotAllowed(
                f"{self._settings.url} answered what no InfluxDB answers, not even text ({HINT})."
            ) from None
        except HTTPError as error:
            raise Unavailable(f"{self._settings.url} does not answer: {self._clean(str(error))}") from None
        except (OSError, ValueError) as error:
            # Certificates that cannot be read, an address that urllib3 does not like.
            self.close()
            raise NotAllowed(f"{self._settings.url} cannot be asked: {self._clean(str(error))}") from None
        if answer.status != WRITTEN:
            self.close()
            said = self._clean(str(answer.data)) or "nothing"
            told = (
                f"{self._settings.url} answered {answer.status}, not {WRITTEN} as an InfluxDB that has written: {said}"
            )
            raise NotAllowed(f"{told} ({HINT}).")

    def close(self) -> None:
        """Give up the connection; the next write makes another."""
        client, self._client, self._api = self._client, None, None
        if client is not None:
            client.close()

    def _connect(self) -> None:
        if self._api is not None:
            return
        from influxdb_client.client.influxdb_client import InfluxDBClient
        from influxdb_client.client.write_api import SYNCHRONOUS

        try:
            self._token = read_token(self._settings.token, self._environment)
        except TokenUnavailable as error:
            raise NotAllowed(str(error)) from None
        # The client's own batching and retries are off: they forget in memory, and here the journal remembers.
        self._client = InfluxDBClient(
            url=self._settings.url,
            token=self._token,
            org=self._settings.org,
            timeout=int(self._settings.timeout_seconds * 1000),
            enable_gzip=self._settings.gzip,
            ssl_ca_cert=self._settings.ca_file,
            retries=False,
        )
        self._api = self._client.write_api(write_options=SYNCHRONOUS)

    def _meaning(self, error: Any) -> Exception:
        status = int(getattr(error, "status", 0) or 0)
        said = self._clean(str(error.message if error.response is not None else getattr(error, "reason", error)))
        content_type = str((error.headers or {}).get("Content-Type", "")) if error.response is not None else ""
        answer = f"{self._settings.url} answered {status}: {said}"
        # Too large is too large, whoever says so: a proxy says it as a page.
        if status == 413 or (status in (400, 422) and "html" not in content_type.lower()):
            partial = _PARTIAL.search(said)
            return Rejected(answer, int(partial.group(1)) if partial else None)
        if 300 <= status < 500 and status not in (408, 429):
            self.close()
            return NotAllowed(f"{answer} ({HINT}).")
        if not status:
            self.close()
            if "CERTIFICATE_VERIFY_FAILED" in said:
                mend = (
                    "if a private authority signed its certificate, name the authority's PEM file in influxdb.ca_file"
                )
                return NotAllowed(f"{self._settings.url} cannot be trusted: {said} ({mend}).")
            return Unavailable(f"{self._settings.url} does not answer: {said}")
        return Unavailable(answer, _seconds(error.retry_after if error.response is not None else None))

    def _clean(self, text: str) -> str:
        """One line of bounded length, without the token, whatever the server or a proxy echoes."""
        if self._token:
            text = text.replace(self._token, "***")
        return " ".join(text.split())[:MESSAGE_LENGTH]


def _seconds(text: object) -> float:
    """Seconds of a ``Retry-After``; 0 where it is a date or nothing."""
    try:
        return min(max(float(str(text)), 0.0), LONGEST_ASKED_WAIT)
    except ValueError:
        return 0.0
