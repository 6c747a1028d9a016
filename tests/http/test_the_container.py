"""The files of the container: a user of its own, nothing writable but its data, no default token, all that is named is
there. No container engine is needed, so what one would make of them is not seen here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.config import ConfigError, check_exposure, parse

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "compose" / "exporter"


@pytest.fixture
def service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yml").read_text())["services"]["exporter"]
    return found


def test_it_runs_as_a_user_of_its_own_that_can_write_nothing_but_its_data(service: dict[str, Any]) -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text()
    (user,) = re.findall(r"^USER (\S+)$", dockerfile, re.MULTILINE)
    assert service["user"] == user
    assert user.split(":")[0] not in ("0", "root")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    writable = [mount.split(":")[1] for mount in service["volumes"] if not mount.endswith(":ro")]
    assert writable == ["/var/lib/verl-sentinel"]
    assert f'--data-dir", "{writable[0]}' in dockerfile


def test_it_is_published_on_loopback_only(service: dict[str, Any]) -> None:
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_everything_that_it_copies_or_mounts_is_there(service: dict[str, Any]) -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists(), source
    mounted = [mount.split(":")[0] for mount in service["volumes"] if mount.startswith("./")]
    assert mounted
    for source in mounted:
        assert (FOLDER / source).is_file()


def test_its_images_are_pinned() -> None:
    images = re.findall(r"^FROM (\S+)", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert images
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", image) for image in images)


def test_its_configuration_has_a_token_for_every_scope_and_no_default(service: dict[str, Any]) -> None:
    config = parse((FOLDER / "exporter.yml").read_text(), "exporter.yml")
    scopes = ("push", "alert", "operate")
    files = {scope: getattr(config.tokens, scope)[0].file for scope in scopes}
    assert files == {scope: f"/run/secrets/{scope}" for scope in scopes}
    assert service["secrets"] == list(scopes)
    check_exposure(config.listen, {scope: ("a",) for scope in scopes})
    with pytest.raises(ConfigError, match="no token is set"):
        check_exposure(config.listen, {"push": ("a",), "alert": ("a",), "operate": ()})
