"""``make up`` with fewer programs: tokens, ports, settings, foreign processes, and a stand-in for Grafana."""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
import stat
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from local_machine import ROOT, SECONDS, Machine, path_without_programs, running

from compose.local import services as parts
from compose.local.services import PORTS
from demo.processes import free_port


def test_without_the_programs_the_exporter_runs_alone_and_the_rest_is_named(machine: Machine, tmp_path: Path) -> None:
    told = machine.up(PATH=path_without_programs(tmp_path))
    assert machine.pids().keys() == {"exporter"}
    assert "apt install prometheus." in told
    assert "apt install prometheus-alertmanager." in told
    config = (machine.folder / "config" / "exporter.yml").read_text()
    assert "mode: observe" in config
    assert "trigger: direct" in config


def test_tokens_are_random_private_and_the_ones_that_open_the_exporter(machine: Machine, tmp_path: Path) -> None:
    path = path_without_programs(tmp_path)
    told = machine.up(PATH=path)
    files = {scope: machine.folder / "tokens" / scope for scope in ("push", "alert", "operate")}
    tokens = {scope: file.read_text().strip() for scope, file in files.items()}
    assert len(set(tokens.values())) == 3
    for scope, file in files.items():
        assert len(tokens[scope]) >= 40
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert str(file) in told
        assert tokens[scope] not in told
    assert stat.S_IMODE(machine.folder.stat().st_mode) == 0o700

    def status(token: str) -> int:
        request = urllib.request.Request(
            f"{machine.url('exporter')}/api/v1/runs", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert status(tokens["operate"]) == 200
    assert status(tokens["push"]) in (401, 403)
    machine.down()
    machine.up(PATH=path)
    assert {scope: file.read_text().strip() for scope, file in files.items()} == tokens


def test_what_is_told_to_a_trainer_is_what_its_side_reads(machine: Machine, tmp_path: Path) -> None:
    told = machine.up(PATH=path_without_programs(tmp_path))
    (line,) = [line for line in told.splitlines() if line.strip().startswith("export ")]
    given = dict(word.split("=", 1) for word in line.split()[1:])
    assert given == {
        "VERL_SENTINEL_URL": machine.url("exporter"),
        "VERL_SENTINEL_TOKEN_FILE": str(machine.folder / "tokens" / "push"),
    }


def test_a_port_that_is_taken_is_named_and_nothing_is_started(machine: Machine, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", machine.ports["exporter"]))
        other.listen()
        done = machine.make("up", PATH=path_without_programs(tmp_path))
    assert done.returncode == 1
    assert f"port {machine.ports['exporter']}, where the exporter would listen" in done.stderr
    assert "make up EXPORTER_PORT=" in done.stderr
    assert machine.pids() == {}


def test_another_port_while_it_runs_is_refused_and_taken_after_down(machine: Machine, tmp_path: Path) -> None:
    path = path_without_programs(tmp_path)
    machine.up(PATH=path)
    other = str(free_port(frozenset(machine.ports.values())))
    done = machine.make("up", PATH=path, EXPORTER_PORT=other)
    assert done.returncode == 1
    assert f"runs with port {machine.ports['exporter']} for exporter, and {other} was asked for" in done.stderr
    machine.down()
    assert f"http://127.0.0.1:{other}" in machine.up(PATH=path, EXPORTER_PORT=other)


def test_another_mode_while_it_runs_is_said_to_need_a_new_start(machine: Machine, tmp_path: Path) -> None:
    path = path_without_programs(tmp_path)
    machine.up(PATH=path)
    assert "runs on with the configuration that it was started with" in machine.up(PATH=path, RECOVERY="approve")
    machine.down()
    assert "runs on with" not in machine.up(PATH=path, RECOVERY="approve")
    assert "mode: approve" in (machine.folder / "config" / "exporter.yml").read_text()


def test_settings_of_one_s_own_go_before_ours_and_a_wrong_one_is_told_with_its_line(
    machine: Machine, tmp_path: Path
) -> None:
    path = path_without_programs(tmp_path)
    machine.folder.mkdir()
    own = machine.folder / "exporter.yml"
    own.write_text("retention: {days: 7}\nrecovery: {mode: approve, trigger: direct}\n")
    machine.up(PATH=path)
    config = yaml.safe_load((machine.folder / "config" / "exporter.yml").read_text())
    assert config["retention"] == {"days": 7}
    assert config["recovery"]["mode"] == "approve"
    assert config["tokens"]["push"]
    machine.down()
    for text, sentence in {
        "retention: {day: 7}\n": "line 1",
        "listen: 0.0.0.0:1\n": "says listen, which `make up` sets itself",
        "- no mapping\n": "cannot be used",
        "\x00": "cannot be used",
    }.items():
        own.write_text(text)
        done = machine.make("up", PATH=path)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert not any(running(pid) for pid in machine.pids().values())


def test_a_pid_that_another_program_has_now_is_left_alone(machine: Machine) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        run = machine.folder / "run"
        run.mkdir(parents=True)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        ticks = int(Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[19])
        for key, entry in {
            "prometheus": {"pid": stranger.pid, "start_ticks": ticks - 1, "boot": boot},
            "exporter": {"pid": stranger.pid, "start_ticks": ticks, "boot": "of another boot"},
            "alertmanager": {"pid": -1, "start_ticks": 0, "boot": boot},
        }.items():
            (run / f"{key}.json").write_text(json.dumps(entry))
        (run / "grafana.json").write_text("half a fi")
        told = machine.down()
        assert told.count("had ended before") == 4
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_program_that_ends_at_once_is_named_with_its_last_words(machine: Machine, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    broken = programs / "prometheus"
    broken.write_text("#!/bin/sh\necho 'no space left on this device' >&2\nexit 3\n")
    broken.chmod(0o755)
    done = machine.make("up", PATH=f"{programs}:/bin" if not shutil.which("prometheus", path="/bin") else str(programs))
    assert done.returncode == 1
    assert "Prometheus ended before it was ready" in done.stderr
    # What else was started goes on, and is ended by down.
    assert running(machine.pids()["exporter"])
    assert "exporter: ended" in machine.down()


def test_two_at_once_are_refused_in_a_sentence(machine: Machine) -> None:
    machine.folder.mkdir()
    with (machine.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = machine.make("up")
    assert done.returncode == 1
    assert "Another `make up` or `make down` is at work" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("RECOVERY", "yes", "'yes' is no mode of recovery"),
        ("EXPORTER_PORT", "70000", "'70000' is no port"),
        ("PROMETHEUS_PORT", "ninety", "'ninety' is no port"),
    ],
)
def test_a_wrong_setting_is_told_before_anything_happens(
    machine: Machine, name: str, value: str, sentence: str
) -> None:
    done = machine.make("up", **{name: value})
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not machine.folder.exists()


def test_one_port_for_two_programs_is_refused(machine: Machine) -> None:
    done = machine.make("up", EXPORTER_PORT=str(machine.ports["prometheus"]))
    assert done.returncode == 1
    assert "each program needs its own port" in done.stderr


def test_grafana_is_started_where_there_is_one_with_what_this_repository_provisions(
    machine: Machine, tmp_path: Path
) -> None:
    """A program of that name stands for it: no Grafana is to be had here."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "grafana").write_text(
        textwrap.dedent(f"""\
            #!{sys.executable}
            import http.server, json, os, sys
            with open(os.environ["GF_PATHS_DATA"] + ".json", "w") as file:
                json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}, file)
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_response(200 if self.path == "/api/health" else 404)
                    self.end_headers()
            address = (os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"]))
            http.server.HTTPServer(address, Handler).serve_forever()
            """)
    )
    (programs / "grafana").chmod(0o755)
    told = machine.up(PATH=str(programs))
    assert machine.url("grafana") in told
    assert str(machine.folder / "tokens" / "grafana") in told
    seen = json.loads((machine.folder / "grafana.json").read_text())
    assert seen["arguments"][0] == "server"
    environment = seen["environment"]
    provisioning = Path(environment["GF_PATHS_PROVISIONING"])
    assert (provisioning / "datasources" / "prometheus.yml").is_file()
    provider = yaml.safe_load((provisioning / "dashboards" / "verl-sentinel.yml").read_text())["providers"][0]
    shown = {path.name: path.read_text() for path in Path(provider["options"]["path"]).glob("*.json")}
    assert shown.keys() == {path.name for path in (ROOT / "grafana" / "dashboards").glob("*.json")}
    # Their links lead to the console of this stack.
    assert not any("127.0.0.1:9464" in text for text in shown.values())
    assert Path(environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]).is_file()
    assert environment["GF_SECURITY_ADMIN_PASSWORD"] == f"$__file{{{machine.folder / 'tokens' / 'grafana'}}}"
    assert environment["PROMETHEUS_URL"] == machine.url("prometheus")
    assert f"grafana: {machine.url('grafana')}" in (machine.folder / "config" / "exporter.yml").read_text()
    assert "grafana: ended" in machine.down()


def test_make_runs_these_commands() -> None:
    said = {
        target: subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        ).stdout
        for target in ("up", "down")
    }
    assert "python -m compose.local up" in said["up"]
    assert "python -m compose.local down" in said["down"]


def test_every_program_has_a_port_and_a_sentence_for_when_it_is_missing() -> None:
    assert PORTS.keys() == {"exporter", *parts.PROGRAMS}
    assert parts.WITHOUT.keys() == parts.PROGRAMS.keys()
