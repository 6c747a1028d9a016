"""TLS: the exporter speaks it when it has a certificate, takes a new one while it runs, and our own clients trust a
private authority."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
from pathlib import Path

import pytest
from certificates import Authority, needs_openssl
from exporter_process import PUSH, ExporterProcess, running, wait_for
from exporter_scene import batch

from exporter.exposure import ConfigError, Tls, tls_context
from exporter.protocol import encode

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


def configured(folder: Path, authority: Authority, **more: str) -> str:
    """A configuration file with copies of the authority's first certificate."""
    certificate, key = authority.issue("first", 1001)
    shutil.copy(certificate, folder / "cert.pem")
    shutil.copy(key, folder / "key.pem")
    settings = {"cert_file": folder / "cert.pem", "key_file": folder / "key.pem", **more}
    lines = "".join(f"  {name}: {value}\n" for name, value in settings.items())
    (folder / "config.yml").write_text(f"tls:\n{lines}")
    return str(folder / "config.yml")


def serial(exporter: ExporterProcess, context: ssl.SSLContext) -> int:
    """Serial number of the certificate that a new connection gets."""
    host, port = exporter.url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return int(secured.getpeercert()["serialNumber"], 16)  # type: ignore[index,arg-type]


def test_a_push_over_tls_and_a_certificate_that_is_changed_while_it_runs(tmp_path: Path, authority: Authority) -> None:
    context = authority.client()
    with running(tmp_path, "--config", configured(tmp_path, authority), context=context) as exporter:
        assert exporter.url.startswith("https://")
        assert exporter.post(PUSH, encode(batch())).status == 200
        assert serial(exporter, context) == 1001
        certificate, key = authority.issue("second", 1002)
        shutil.copy(certificate, tmp_path / "cert.pem")  # which does not fit the key: the pair in use stays
        os.kill(exporter.pid, signal.SIGHUP)
        wait_for(lambda: "read before stays in use" in exporter.log, exporter)
        assert serial(exporter, context) == 1001
        shutil.copy(key, tmp_path / "key.pem")
        wait_for(lambda: serial(exporter, context) == 1002, exporter)
        assert exporter.post(PUSH, encode(batch(seq=2))).status == 200
        assert "Traceback" not in exporter.log


def test_what_does_not_speak_tls_gets_nothing_and_costs_no_log(tmp_path: Path, authority: Authority) -> None:
    with running(tmp_path, "--config", configured(tmp_path, authority), context=authority.client()) as exporter:
        host, port = exporter.url.removeprefix("https://").split(":")
        for sent in (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01", bytes(300), b"\x80" * 5000):
            with socket.create_connection((host, int(port)), timeout=20) as plain:
                plain.sendall(sent)
                plain.shutdown(socket.SHUT_WR)
                assert b"verl" not in plain.recv(4096)
        with pytest.raises(ssl.SSLError):
            serial(exporter, ssl.create_default_context())
        assert exporter.get("/healthz").status == 200
        assert "Traceback" not in exporter.log
        assert len(exporter.log.splitlines()) < 12


def test_old_versions_of_tls_are_refused(tmp_path: Path, authority: Authority) -> None:
    config = configured(tmp_path, authority, min_version="TLSv1.3")
    with running(tmp_path, "--config", config, context=authority.client()) as exporter:
        old = authority.client()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            serial(exporter, old)
        assert serial(exporter, authority.client()) == 1001


def test_a_certificate_that_cannot_be_used_is_a_sentence(tmp_path: Path, authority: Authority) -> None:
    certificate, _ = authority.issue("one", 1)
    _, other = authority.issue("two", 2)
    for cert, key in ((certificate, other), (other, other), (certificate, certificate)):
        with pytest.raises(ConfigError, match=r"cannot be used together: .*both PEM, the key not encrypted\."):
            tls_context(Tls(cert_file=str(cert), key_file=str(key)))
    with pytest.raises(ConfigError, match=r"^tls\.key_file: the file .* cannot be read: No such file or directory\.$"):
        tls_context(Tls(cert_file=str(certificate), key_file=str(tmp_path / "none")))
