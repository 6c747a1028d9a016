"""The influxdb section: what is wrong with it is said in a sentence, and without it nothing is paid for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from exporter.service.sinks.settings import InfluxSettings, SinkToken, TokenUnavailable, read_token

GOOD: dict[str, Any] = {"url": "http://influxdb:8086", "org": "o", "bucket": "b"}


def test_the_least_that_has_to_be_set_is_where_to_write() -> None:
    settings = msgspec.convert(GOOD, InfluxSettings)
    assert settings.token is None
    assert settings.target == "http://influxdb:8086 org=o bucket=b"
    for missing in GOOD:
        with pytest.raises(msgspec.ValidationError, match=missing):
            msgspec.convert({k: v for k, v in GOOD.items() if k != missing}, InfluxSettings)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"url": "influxdb:8086"}, "an address such as http://influxdb:8086 is expected"),
        ({"url": "ftp://influxdb"}, "an address such as"),
        ({"url": "http://"}, "an address such as"),
        ({"url": "http://h:99999"}, "cannot be read"),
        ({"url": "http://h:8086/?org=a"}, "query or a fragment"),
        ({"url": "http://h a"}, "characters that an address cannot have"),
        ({"org": ""}, "org is ''"),
        ({"bucket": "a\nb"}, "bucket is"),
        ({"token": {}}, "exactly one of file and env"),
        ({"token": {"file": "a", "env": "b"}}, "exactly one of file and env"),
        ({"token": {"file": ""}}, "empty file or variable"),
        ({"token": {"value": "t"}}, "unknown field"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0"),
        ({"max_lag_hours": -1}, "max_lag_hours is -1"),
        ({"max_lag_hours": float("nan")}, "max_lag_hours is nan"),
        ({"max_lag_entries": 0}, "max_lag_entries is 0"),
        ({"tags": {"run": "x"}}, "taken"),
        ({"tags": {"time": "x"}}, "taken"),
        ({"tags": {"a b": "x"}}, "letters, digits and _"),
        ({"tags": {"cluster": ""}}, "1 to 256 characters"),
        ({"ca_file": ""}, "ca_file is empty"),
        ({"user": "x"}, "unknown field"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(change: dict[str, Any], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert({**GOOD, **change}, InfluxSettings)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(msgspec.ValidationError, match="user or password") as refused:
        msgspec.convert({**GOOD, "url": "http://me:hunter2@h:8086"}, InfluxSettings)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"two\nlines", "tökén".encode(), b"\xff"])
def test_a_file_that_holds_no_token_is_told_by_name_and_not_by_content(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "influx-token"
    file.write_bytes(content)
    with pytest.raises(TokenUnavailable, match="influx-token") as told:
        read_token(SinkToken(file=str(file)), {})
    assert "words" not in str(told.value)


def test_a_file_or_variable_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(TokenUnavailable, match="No such file"):
        read_token(SinkToken(file=str(tmp_path / "none")), {})
    with pytest.raises(TokenUnavailable, match="INFLUX is not set"):
        read_token(SinkToken(env="INFLUX"), {})
    assert read_token(SinkToken(env="INFLUX"), {"INFLUX": " t "}) == "t"
    assert read_token(None, {}) == ""


def test_the_client_is_not_imported_where_no_sink_is_set() -> None:
    code = (
        "import sys, exporter.cli, exporter.app, exporter.config, exporter.service.sinks.settings\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('influxdb_client', 'reactivex', 'pandas')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
