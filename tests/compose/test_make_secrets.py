"""``make-secrets.sh``: random values for one user's eyes, and never a second time over the first."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from containers_view import COMPOSE, make_secrets, secrets_in, variables

NAMES = {"push", "alert", "operate", "grafana_password", "influxdb_password", "influxdb_token"}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_secret_is_long_and_another_each_time(tmp_path: Path) -> None:
    values = [
        path.read_text()
        for folder in ("one", "two")
        for path in secrets_in(tmp_path / folder).iterdir()
        if path.is_file()
    ]
    assert len(values) == 2 * len(NAMES)
    assert len(set(values)) == len(values)
    for value in values:
        # Nothing that YAML, a shell, a URL or an HTTP header would take for something else, and no newline at its end:
        # Grafana and InfluxDB would make it part of the password.
        assert len(value) >= 40
        assert value.replace("-", "").replace("_", "").isalnum()


def test_nobody_else_on_the_machine_can_read_them(tmp_path: Path) -> None:
    folder = secrets_in(tmp_path)
    assert {path.name for path in folder.iterdir() if path.is_file()} == NAMES
    assert mode(folder) == 0o700
    assert mode(tmp_path / ".env") == 0o600
    group = int(variables(tmp_path / ".env")["SECRETS_GID"])
    for path in folder.iterdir():
        assert mode(path) & stat.S_IRWXO == 0
        # A container joins this group and may read, no more.
        assert path.stat().st_gid == group
        assert mode(path) & stat.S_IRGRP
        assert not mode(path) & stat.S_IWGRP


def test_without_an_engine_that_is_root_the_group_is_that_of_the_container(tmp_path: Path) -> None:
    secrets_in(tmp_path / "source")
    (tmp_path / "make-secrets.sh").write_bytes((tmp_path / "source" / "make-secrets.sh").read_bytes())
    (tmp_path / "make-secrets.sh").chmod(0o755)
    assert make_secrets(tmp_path, "--rootless").returncode == 0
    assert variables(tmp_path / ".env")["SECRETS_GID"] == "0"
    assert (tmp_path / "secrets" / "push").stat().st_gid == os.getgid()


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    folder = secrets_in(tmp_path)
    before = {path: path.read_bytes() for path in [tmp_path / ".env", *filter(Path.is_file, folder.iterdir())]}
    for gone in (None, tmp_path / ".env"):
        if gone is not None:
            gone.unlink()
            del before[gone]
        done = make_secrets(tmp_path)
        assert done.returncode == 1
        assert "nothing was changed" in done.stderr
        assert "docker compose down --volumes" in done.stderr
        assert {path: path.read_bytes() for path in before} == before
    assert not (tmp_path / ".env").exists()


def test_an_unknown_option_changes_nothing(tmp_path: Path) -> None:
    secrets_in(tmp_path / "source")
    script = tmp_path / "make-secrets.sh"
    script.write_bytes((tmp_path / "source" / "make-secrets.sh").read_bytes())
    script.chmod(0o755)
    done = make_secrets(tmp_path, "--force")
    assert done.returncode == 1
    assert "unknown option '--force'; known: --rootless." in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"source", "make-secrets.sh"}


def test_what_is_interrupted_leaves_nothing_half_done(tmp_path: Path) -> None:
    """A machine without random bytes stands for it: the script ends on its way."""
    secrets_in(tmp_path / "source")
    script = tmp_path / "make-secrets.sh"
    script.write_bytes((tmp_path / "source" / "make-secrets.sh").read_bytes())
    script.chmod(0o755)
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "head").write_text("#!/bin/sh\nexit 0\n")
    (broken / "head").chmod(0o755)
    done = make_secrets(tmp_path, environment={"PATH": f"{broken}:{os.environ['PATH']}"})
    assert done.returncode == 1
    assert "no random bytes" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"source", "make-secrets.sh", "bin"}


@pytest.mark.parametrize(
    ("link", "file", "zone"),
    [
        ("/usr/share/zoneinfo/Asia/Shanghai", "Europe/Paris", "Asia/Shanghai"),
        ("../usr/share/zoneinfo/posix/America/Argentina/Buenos_Aires", "", "America/Argentina/Buenos_Aires"),
        ("/var/db/timezone/zoneinfo/Etc/GMT+3", "", "Etc/GMT+3"),
        ("", "Asia/Tokyo", "Asia/Tokyo"),
        ("/some/where/else", "Asia/Tokyo", "Asia/Tokyo"),
        ("", "", "UTC"),
        ("/usr/share/zoneinfo/$(id)", "a zone; id", "UTC"),
    ],
)
def test_the_time_zone_is_this_machine_s_and_it_is_said(tmp_path: Path, link: str, file: str, zone: str) -> None:
    shutil.copy(COMPOSE / "make-secrets.sh", tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    sed = shutil.which("sed")
    for name, text in {
        "readlink": f"[ -n '{link}' ] && printf '%s\\n' '{link}'",
        "sed": f"""case "$*" in *timezone) printf '%s\\n' '{file}' ;; *) exec {sed} "$@" ;; esac""",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    done = make_secrets(tmp_path, environment={"PATH": f"{programs}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert variables(tmp_path / ".env")["TZ"] == zone
    assert f"tickets wait: {zone}." in done.stdout
