"""TLS: the exporter speaks it when it has a certificate, takes a new one while it runs, and our own clients trust a
private authority."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from certificates import Authority, needs_openssl
from exporter_process import PUSH, ExporterProcess, running, wait_for
from exporter_scene import batch

from exporter.exposure import ConfigError, Tls, tls_context
from exporter.protocol import Run, encode
from trainer_entry.push import PushClient
from trainer_entry.settings import VARIABLES, Settings, read_settings

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
        assert exporter.metrics()['verl_sentinel_reload_failures_total{what="certificate"}'] == 1
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


def client(url: str, folder: Path, ca_file: Path | None, told: list[str]) -> PushClient:
    settings = Settings(url=url, ca_file=ca_file, state_dir=folder / "state")
    return PushClient(settings, Run(run_id="r"), heartbeat_seconds=None, report=told.append)


def test_the_trainers_client_trusts_the_authority_that_it_is_given_and_no_other(
    tmp_path: Path, authority: Authority
) -> None:
    other = Authority.make(tmp_path / "other", "another authority")
    told: list[str] = []
    with running(tmp_path, "--config", configured(tmp_path, authority), context=authority.client()) as exporter:
        for ca_file in (None, other.file, tmp_path / "none"):
            distrusting = client(exporter.url, tmp_path, ca_file, told)
            distrusting.step(1, {"actor/grad_norm": 1.0})
            assert not distrusting.flush(30)
            distrusting.close(0.1)
        assert "CERTIFICATE_VERIFY_FAILED" in told[0]
        assert "CERTIFICATE_VERIFY_FAILED" in told[1]
        assert f"{tmp_path / 'none'} (VERL_SENTINEL_CA_FILE) holds no certificates that can be read" in told[2]
        trusting = client(exporter.url, tmp_path, authority.file, told)
        trusting.step(2, {"actor/grad_norm": 1.0})
        assert trusting.flush(30)
        trusting.close()
        assert exporter.metrics()['verl_training_step{run="r"}'] == 2


def test_the_authority_is_read_from_the_environment_and_handed_on() -> None:
    settings = read_settings({"VERL_SENTINEL_URL": "https://h", "VERL_SENTINEL_CA_FILE": " /etc/ca.pem "})
    assert settings is not None
    assert settings.ca_file == Path("/etc/ca.pem")
    assert "VERL_SENTINEL_CA_FILE" in VARIABLES


def test_the_commands_trust_the_authority_that_they_are_given(tmp_path: Path, authority: Authority) -> None:
    with running(tmp_path, "--config", configured(tmp_path, authority), context=authority.client()) as exporter:
        command = [sys.executable, "-m", "exporter", "runs", "list", "--url", exporter.url]
        results = [
            subprocess.run(
                command,
                env={**os.environ, **trusting},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            for trusting in ({}, {"VERL_SENTINEL_CA_FILE": str(authority.file)}, {"SSL_CERT_FILE": str(authority.file)})
        ]
    assert [result.returncode for result in results] == [1, 0, 0], results
    assert "certificate verify failed" in results[0].stderr
    assert "name the authority's PEM file in VERL_SENTINEL_CA_FILE" in results[0].stderr
    assert "Is it running" not in results[0].stderr
