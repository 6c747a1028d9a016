"""A wrong configuration stops the program with the line and what was expected; the program's start says the rest."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from exporter_process import PUSH, ExporterProcess, push, running, wait_for
from exporter_scene import batch

from exporter.config import Config, ConfigError, Tokens, TokenSource, check_exposure, load, parse, resolve_tokens
from exporter.protocol import Step, encode

WRONG = [
    ("recovry:\n  mode: auto\n", "line 1: recovry is not a known setting; did you mean recovery?"),
    ("\nlisten: 1\n", "line 2: listen: Expected str, got int."),
    ("listen: nope\n", "line 1: listen is 'nope': an address and a port are expected, such as 127.0.0.1:9464"),
    ("listen: 127.0.0.1:99999\n", "an address and a port are expected"),
    ("recovery:\n  mode: autox\n", "line 2: recovery.mode: Invalid enum value 'autox': expected "),
    ("recovery:\n  mode: auto\n  budget_per_day: 0\n", "line 3: recovery: budget_per_day is 0"),
    ("recovery:\n  deadlines:\n    step_seconds: -1\n", "line 3: recovery.deadlines: step_seconds is -1.0"),
    ("recovery: 3\n", "line 1: recovery: Expected a section with settings, got int."),
    (
        "recovery:\n  triggers:\n  - detectors: [surge]\n    sverity: warning\n",
        "line 4: sverity is not a known setting; did you mean severity?",
    ),
    (
        "recovery:\n  triggers:\n  - detectors: [surge, nonfinite]\n",
        "line 3: recovery.triggers: unknown detector 'nonfinite': did you mean 'non_finite'? Known: non_finite, surge",
    ),
    ("tokens:\n  push:\n    - fil: x\n", "line 3: fil is not a known setting; did you mean file?"),
    ("tokens:\n  push:\n    - file: a\n      env: b\n", "line 3: tokens.push[0]: a token has exactly one of file, env"),
    ("limits:\n  runs: 1\n  runs: 2\n", "line 3: runs is set twice, first in line 2."),
    ("limits:\n  runs: 0\n", "line 2: limits: runs is 0: it must be at least 1."),
    ("limits:\n  runs: many\n", "line 2: limits.runs: Expected int, got str."),
    ("incidents:\n  resolve_after_steps: 0\n", "line 2: incidents: resolve_after_steps is 0"),
    ("ended_run_grace_seconds: -5\n", "line 1: ended_run_grace_seconds is -5.0: it must be 0 or more."),
    (
        "detectors:\n  surge: {}\n  sruge: {}\n",
        "line 3: detectors.sruge: unknown detector 'sruge': did you mean",
    ),
    ("detectors:\n  surge:\n    k: 1\n    facter: 3\n", "line 4: detectors.surge: unknown option of detector surge"),
    (
        "detectors:\n  surge:\n    floors: {los: 1}\n",
        "line 3: detectors.surge: unknown signal in floors of detector surge",
    ),
    ("detectors:\n  surge:\n    floors: 3\n", "line 3: detectors.surge: detector surge: its options {'floors': 3}"),
    (
        "detectors:\n  fixed_limits:\n    kl_abov: 0.3\n",
        "line 3: detectors.fixed_limits: unknown option of detector fixed_limits 'kl_abov': did you mean 'kl_above'?",
    ),
    (
        "detection:\n  preset: manual\ndetectors:\n  fixed_limits:\n    kl_below: 0.5\n",
        "line 5: detectors.fixed_limits: detector fixed_limits: kl_below is 0.5: it must not be above kl_above (0.3).",
    ),
    (
        "\ndetection:\n  pages_per_week: 1\n  preset: gpro\n",
        "line 4: detection: preset is 'gpro': did you mean 'grpo'? Known: grpo, ppo, dapo, sft, manual.",
    ),
    ("detection:\n  preset: 3\n", "line 2: detection.preset: Expected str, got int."),
    ("detection:\n  presett: sft\n", "line 2: presett is not a known setting; did you mean preset?"),
    ("detection:\n  pages_per_week: 0\n", "line 2: detection: pages_per_week is 0.0: it must be from 0.001 to 1000."),
    ("detection:\n  pages_per_week: .nan\n", "line 2: detection: pages_per_week is nan"),
    ("a: [\n", "this is not YAML"),
    ("a: b: c\n", "line 1: this is not YAML: mapping values are not allowed here."),
    ("x: \x00\n", "this is not YAML"),
    ("listen: &a x\ndata_dir: *a\n", "anchors and aliases are not supported"),
    ("? [1, 2]\n: 3\n", "line 1: a key has to be a single word."),
    ("- 1\n", "line 1: Expected a section with settings, got array."),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_a_wrong_file_is_refused_with_file_line_and_what_was_expected(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(text, "sentinel.yml")
    assert str(refused.value).startswith("sentinel.yml")
    assert sentence in str(refused.value)


def test_an_empty_file_is_the_defaults() -> None:
    assert parse("", "f") == Config()
    assert Config().recovery.mode == "observe"


def test_settings_of_every_section_are_read() -> None:
    config = parse(
        "listen: 0.0.0.0:1234\nlimits: {runs: 3}\ndetectors:\n  surge: {factor: 4.0}\n"
        "recovery:\n  mode: approve\n  trigger: direct\nincidents:\n  resolve_after_steps: 4\n",
        "f",
    )
    assert (config.listen, config.limits.runs, config.recovery.mode) == ("0.0.0.0:1234", 3, "approve")
    assert config.detectors == {"surge": {"factor": 4.0}}
    assert config.incidents.resolve_after_steps == 4


def test_the_file_names_a_preset_and_its_options_go_before_those_of_the_preset() -> None:
    config = parse(
        "detection: {preset: manual, pages_per_week: 2}\ndetectors:\n  surge: {k: 4}\n  silent_run: {enabled: false}\n",
        "f",
    )
    assert (config.detection.preset, config.detection.pages_per_week) == ("manual", 2.0)
    names = {detector.name for detector in config.detector_plan()().all()}
    assert {"fixed_limits", "surge", "non_finite"} <= names
    assert names.isdisjoint({"gradient_instability", "silent_run"})


def test_a_preset_that_is_named_later_takes_the_place_of_the_one_in_the_file() -> None:
    config = parse("detection: {preset: manual}\ndetectors:\n  surge: {k: 4}\n", "f")
    names = {detector.name for detector in config.detector_plan("grpo")().all()}
    assert "gradient_instability" in names
    assert "fixed_limits" not in names
    with pytest.raises(ValueError, match="preset is 'mnual': did you mean 'manual'"):
        config.detector_plan("mnual")


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "f.yml"
    file.write_text("listen: 127.0.0.1:1\ndata_dir: /a\n")
    config = load(file, listen="127.0.0.1:2", data_dir="/b")
    assert (config.listen, config.data_dir) == ("127.0.0.1:2", "/b")
    assert load(file).data_dir == "/a"
    with pytest.raises(ConfigError, match="--listen is 'x'"):
        load(file, listen="x")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (TokenSource(file="/nowhere/token"), "the file /nowhere/token cannot be read: No such file or directory."),
        (TokenSource(env="NOT_SET"), "the environment variable NOT_SET is not set."),
        (TokenSource(env="EMPTY"), "the environment variable EMPTY holds no token."),
        (TokenSource(value="two words"), "its value holds a token with spaces"),
    ],
)
def test_a_token_that_cannot_be_had_is_named_without_being_shown(source: TokenSource, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve_tokens(Tokens(alert=(source,)), {"EMPTY": " "})
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("tokens.alert: ")
    assert "two words" not in str(refused.value)


def test_several_tokens_of_a_scope_come_from_file_environment_and_value(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("# ours\none\n\n two \n")
    sources = (TokenSource(file=str(tmp_path / "t")), TokenSource(env="T"), TokenSource(value="four"))
    assert resolve_tokens(Tokens(push=sources), {"T": "three\n"})["push"] == ("one", "two", "three", "four")


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.9.9.9:1"])
def test_on_loopback_tokens_may_be_left_out(listen: str) -> None:
    check_exposure(listen, {"push": (), "alert": (), "operate": ()})


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "sentinel.example:1"])
def test_off_loopback_every_scope_needs_a_token(listen: str) -> None:
    check_exposure(listen, {"push": ("a",), "alert": ("b",), "operate": ("c",)})
    with pytest.raises(ConfigError, match="no token is set for alert, operate: set tokens"):
        check_exposure(listen, {"push": ("a",), "alert": (), "operate": ()})


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exporter", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def refused(result: subprocess.CompletedProcess[str], sentence: str) -> None:
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "listen: 127.0.0.1:0\ntokens:\n  push:\n    - file: {folder}/none\n",
            "line 4: tokens.push: the file {folder}/none cannot be read: No such file or directory.",
        ),
        (
            "tokens:\n  push:\n    - env: PATH\n    - file: {folder}/empty\n",
            "line 4: tokens.push: the file {folder}/empty holds no token.",
        ),
        (
            "tokens: {{operate: [{{env: NOT_SET}}]}}\n",
            "line 1: tokens.operate: the environment variable NOT_SET is not set.",
        ),
        (
            "tls:\n  cert_file: {folder}/empty\n  key_file: {folder}/none\n",
            "line 3: tls.key_file: the file {folder}/none cannot be read",
        ),
        (
            "\ntls:\n  cert_file: {folder}/empty\n  key_file: {folder}/empty\n",
            "line 2: tls: {folder}/empty and {folder}/empty cannot be used together",
        ),
        (
            "influxdb:\n  url: http://h:8086\n  org: o\n  bucket: b\n  token:\n    file: {folder}/none\n",
            "line 6: influxdb.token: the file {folder}/none cannot be read: No such file or directory.",
        ),
        (
            "influxdb: {{url: http://h:8086, org: o, bucket: b,\n  token: {{file: {folder}/empty}}}}\n",
            "line 2: influxdb.token: the file {folder}/empty holds no token.",
        ),
        (
            "influxdb:\n  url: http://h:8086\n  org: o\n  bucket: b\n  token: {{env: NOT_SET}}\n",
            "line 5: influxdb.token: the environment variable NOT_SET is not set.",
        ),
        (
            "influxdb:\n  url: https://h:8086\n  org: o\n  bucket: b\n  ca_file: {folder}/none\n",
            "line 5: influxdb.ca_file: the file {folder}/none cannot be read: No such file or directory.",
        ),
        ("tls:\n  cert_file: a\n", "line 1: tls: Object missing required field key_file"),
        ("tls:\n  cert_file: a\n  key_file: b\n  min_version: 1.2\n", "line 4: tls.min_version: "),
    ],
)
def test_a_file_that_the_configuration_names_and_that_cannot_be_used_is_named_with_its_line(
    tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "empty").write_text("")
    file = tmp_path / "f.yml"
    file.write_text(text.format(folder=tmp_path))
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert f"{file}, {sentence.format(folder=tmp_path)}" in str(refused.value)


def test_a_wrong_file_stops_the_program_at_start(tmp_path: Path) -> None:
    file = tmp_path / "f.yml"
    file.write_text("limits:\n  rums: 3\n")
    refused(start("--config", str(file)), f"{file}, line 2: rums is not a known setting; did you mean runs?")
    refused(start("--config", str(tmp_path / "none.yml")), "cannot be read: No such file or directory")


def test_a_busy_port_is_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        result = start("--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path))
        refused(result, f"cannot listen on 127.0.0.1:{port}: Address already in use. Stop what uses that port")


def test_a_data_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = start("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "file" / "data"))
    refused(result, "cannot be written: Not a directory. Name another with data_dir.")


def test_a_damaged_journal_does_not_keep_the_program_from_starting_and_saying_so(tmp_path: Path) -> None:
    (tmp_path / "verl-sentinel.sqlite3").write_bytes(b"no database at all" * 500)
    exporter = ExporterProcess(tmp_path, ("--data-dir", str(tmp_path)))
    try:
        exporter.start(until_ready=False)
        answer = wait_for(lambda: "database" in (found := exporter.get("/readyz")).body.decode() and found, exporter)
        assert answer.status == 503
        assert "file is not a database" in answer.json["reasons"][0]
        pushed = exporter.post(PUSH, encode(batch()))
        assert (pushed.status, int(pushed.headers["Retry-After"]) > 0) == (503, True)
    finally:
        exporter.kill()


def test_two_exporters_cannot_share_a_data_folder(tmp_path: Path) -> None:
    with running(tmp_path):
        result = start("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
        refused(result, "Another exporter uses the data folder")


def test_listening_to_the_world_without_tokens_is_refused(tmp_path: Path) -> None:
    result = start("--listen", "0.0.0.0:0", "--data-dir", str(tmp_path))
    refused(result, "which other machines can reach, but no token is set for push, alert, operate")


def test_the_preset_of_the_file_is_what_watches_the_runs(tmp_path: Path) -> None:
    file = tmp_path / "sentinel.yml"
    limited = "detectors: {fixed_limits: {warmup: 0}, stalled_phase: {enabled: false}}\n"
    steps = [Step(step=1, metrics={"actor/kl_loss": 0.31, "actor/grad_norm": 0.5})]
    for preset, found in (("grpo", []), ("manual", ["fixed_limits"])):
        file.write_text(f"detection: {{preset: {preset}}}\n{limited}")
        with running(tmp_path, "--config", str(file)) as exporter:  # on the same data: a restart changes the preset
            push(exporter, run=preset, steps=steps)
            incidents = exporter.get("/api/v1/incidents").json["incidents"]
            assert [one["detector"] for one in incidents if one["run_id"] == preset] == found
