"""Certificates of an authority of our own, made with the ``openssl`` program. For the tests of TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the program openssl is not installed")


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder: its certificate is ``ca.pem``."""

    folder: Path
    name: str

    @classmethod
    def make(cls, folder: Path, name: str = "test authority") -> Authority:
        folder.mkdir(parents=True, exist_ok=True)
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem"),
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip
        return cls(folder, name)

    @property
    def file(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str, serial: int) -> tuple[Path, Path]:
        """Certificate and key for 127.0.0.1, as two files."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        _openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", str(key), "-out", str(request),
        )  # fmt: skip
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.file), "-CAkey", str(self.folder / "ca.key"),
            "-set_serial", str(serial), "-days", "2", "-extfile", str(extensions), "-out", str(certificate),
        )  # fmt: skip
        return certificate, key

    def client(self) -> ssl.SSLContext:
        """For a client that trusts this authority and no other."""
        return ssl.create_default_context(cafile=str(self.file))
