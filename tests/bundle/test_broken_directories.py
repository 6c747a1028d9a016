"""Whatever a directory holds, a check ends with sentences: no traceback, no endless loop, nothing outside is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sound_folder import PROMETHEUS, R, found_in, report_of, sound, write

from exporter.bundle.reading import MOST_BYTES, MOST_FILES

D = "grafana/dashboards/bad.json"
T = "rules/tests/bad.yml"


def said(root: Path, file: str) -> str:
    return " ".join(one.sentence for one in found_in(root) if one.file == file)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        (R, b"groups: [\n", "It is no YAML"),
        (R, b"groups: [*nobody]\n", "It is no YAML"),
        (R, b"\x00\x01\x02", "It is no text"),
        (R, b"groups:\n  - name: \xff\n", "a byte here is not UTF-8"),
        (R, b"", "It is empty"),
        (R, b"just words", "neither rules (groups) nor a configuration"),
        (R, b"[" * 100_000, "It is no YAML"),
        (R, b"a: " + b"x" * MOST_BYTES, "larger than 4 MiB"),
        (T, b"tests: {\n", "It is no YAML"),
        (D, b'{"panels": [', "It is no JSON"),
        (D, b"[" * 100_000, "It is no JSON that can be read"),
        (D, b"[1, 2]", "It is no dashboard"),
        (D, b'"panels"', "It is no dashboard"),
        (D, b'{"dashboard": {}}', "It is no dashboard"),
        (D, b'{"panels": 7}', "It is no dashboard"),
        (D, b"{" + b" " * MOST_BYTES, "larger than 4 MiB"),
    ],
    ids=range(16),
)
def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path, file: str, content: bytes, sentence: str) -> None:
    path = sound(tmp_path) / file
    path.write_bytes(content)
    assert sentence in said(tmp_path, file)


@pytest.mark.parametrize(
    "content",
    [
        "groups: 7\n",
        "groups: [7, [], {rules: 7}, {rules: [7, {}, {alert: []}, {alert: {a: b}, labels: 7, annotations: [1]}]}]\n",
        "groups: &g [{rules: [{alert: A, expr: up, labels: {<<: 7}}]}, *g]\n",
        "groups: [{rules: &r [{alert: A, expr: *r}]}]\n",
        "groups: [{name: a, rules: [{alert: A, expr: " + "-" * 3000 + "up}]}]\n",
        "groups: [{name: a, rules: [{record: a, expr: a}, {record: b, expr: c}, {record: c, expr: b}]}]\n",
        "groups: [{name: a, rules: [{record: a, expr: '" + "+".join(["up"] * 20_000) + "'}]}]\n",
    ],
    ids=range(7),
)
def test_rules_of_another_shape_end_in_sentences(tmp_path: Path, content: str) -> None:
    write(
        sound(tmp_path), {R: content, T: "rule_files: [7, {}]\ntests: [7, {alert_rule_test: [7, {exp_alerts: [7]}]}]\n"}
    )
    found_in(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        '{"panels": [7, [], {"panels": 7}, {"targets": 7}, {"targets": [7, {"expr": 7}]}, {"fieldConfig": []}]}',
        '{"panels": [], "templating": [], "annotations": 7, "links": {}, "tags": 7, "uid": [], "title": {}}',
        '{"panels": [], "templating": {"list": [7, {"type": "query"}, {"type": "query", "query": [1]}]}}',
        '{"panels": [{"fieldConfig": {"overrides": [7, {"properties": [7, {"id": "unit"}]}]}}]}',
        '{"panels": [], "links": [{"type": "dashboards", "tags": [{}, 7]}], "tags": [{}, []]}',
        '{"panels": [{"id": [1]}, {"id": {"a": 1}}], "uid": "' + "x" * 10_000 + '"}',
    ],
    ids=range(6),
)
def test_dashboards_of_another_shape_end_in_sentences(tmp_path: Path, content: str) -> None:
    write(sound(tmp_path), {D: content})
    assert found_in(tmp_path)


def test_without_any_of_the_folders_there_is_one_sentence(tmp_path: Path) -> None:
    (one,) = found_in(tmp_path)
    assert "neither a folder rules nor a folder grafana" in one.sentence


def test_a_part_that_is_missing_is_said_and_is_no_fault(tmp_path: Path) -> None:
    sound(tmp_path)
    (tmp_path / "grafana").rename(tmp_path / "elsewhere")
    report = report_of(tmp_path)
    assert "no folder grafana" in " ".join(report.notes)
    assert report.findings == []


def test_dashboards_without_rules_are_looked_at_with_the_rules_that_come_with_the_program(tmp_path: Path) -> None:
    sound(tmp_path)
    (tmp_path / "rules").rename(tmp_path / "elsewhere")
    (tmp_path / "compose").rename(tmp_path / "elsewhere/compose")
    report = report_of(tmp_path)
    assert "taken from those that come with verl-sentinel" in " ".join(report.notes)
    assert report.findings == []


def test_the_folders_themselves_can_be_given(tmp_path: Path) -> None:
    sound(tmp_path)
    assert [one.check for one in found_in(tmp_path / "rules")] == []
    assert found_in(tmp_path / "grafana") == []


def test_empty_folders_are_faults(tmp_path: Path) -> None:
    (tmp_path / "rules/prometheus").mkdir(parents=True)
    (tmp_path / "grafana").mkdir()
    assert [one.check for one in found_in(tmp_path)] == ["directory", "directory"]


def test_links_in_circles_and_out_of_the_directory_are_not_followed(tmp_path: Path) -> None:
    root = sound(tmp_path / "in")
    write(tmp_path, {"secret.yml": "groups: [{name: secret, rules: [{alert: Stolen, expr: up}]}]\n"})
    rules = root / "rules/prometheus"
    (rules / "out.rules.yml").symlink_to(tmp_path / "secret.yml")
    (rules / "circle.rules.yml").symlink_to("circle.rules.yml")
    (rules / "again").symlink_to("..")
    (root / "rules/runbooks/loop").symlink_to("..")
    found = found_in(root)
    assert {one.file for one in found} == {"rules/prometheus/out.rules.yml", "rules/prometheus/circle.rules.yml"}
    assert all("a link that leads nowhere, in a circle or out" in one.sentence for one in found)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(sound(tmp_path) / "rules/prometheus/pipe.rules.yml")
    assert "not a plain file" in said(tmp_path, "rules/prometheus/pipe.rules.yml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_sentence(tmp_path: Path) -> None:
    (sound(tmp_path) / R).chmod(0)
    assert "Permission denied" in said(tmp_path, R)


def test_more_files_and_folders_than_anybody_has_are_not_all_read(tmp_path: Path) -> None:
    sound(tmp_path)
    deep = tmp_path / "rules/prometheus" / "/".join("d" * 12)
    deep.mkdir(parents=True)
    for number in range(MOST_FILES + 5):
        (tmp_path / f"rules/runbooks/x{number}.md").touch()
    sentences = " ".join(one.sentence for one in found_in(tmp_path))
    assert f"More than {MOST_FILES} files" in sentences
    assert "folders deep" in sentences


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "exporter", "check", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_prints_findings_with_their_place_and_counts_them(tmp_path: Path) -> None:
    write(sound(tmp_path), {"rules/prometheus/idle.rules.yml": "groups: []\n"})
    done = command(str(tmp_path), "--without", "promtool", "--without", "amtool")
    assert done.returncode == 1
    assert done.stdout.startswith("rules/prometheus/idle.rules.yml:1: No configuration of Prometheus loads")
    assert "1 finding: loading 1." in done.stderr


def test_the_command_says_which_program_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "exporter", "check", str(sound(tmp_path))]
    empty = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, env=empty)
    assert done.returncode == 2
    assert "promtool is not installed: apt install prometheus" in done.stderr
    assert "amtool is not installed: apt install prometheus-alertmanager" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("/nowhere/at/all",), "/nowhere/at/all is no directory."),
        ((".", "--without", "curl"), "it is promtool or amtool that can be left out"),
        ((".", "--allow-metric", "("), "is no regular expression"),
    ],
)
def test_the_command_says_what_it_was_called_with(arguments: tuple[str, ...], sentence: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.programs
def test_what_the_programs_complain_of_is_a_finding_with_their_words(tmp_path: Path) -> None:
    sound(tmp_path)
    assert report_of(tmp_path, without=()).findings == []
    write(tmp_path, {"rules/prometheus/prometheus.yml": PROMETHEUS + "unknown_key: 1\n"})
    path = tmp_path / "rules/tests/small.yml"
    path.write_text(path.read_text().replace("value: 10", "value: 11"))
    (tmp_path / "rules/alertmanager.yml").write_text("route: {receiver: nobody}\nreceivers: [{name: people}]\n")
    found = {(one.file, one.check): one.sentence for one in report_of(tmp_path, without=()).findings}
    assert "unknown_key" in found["rules/prometheus/prometheus.yml", "promtool"]
    assert 'exp: {__name__="verl:loss:max", run="r"} 1.1E+01' in found["rules/tests/small.yml", "promtool"]
    assert "nobody" in found["rules/alertmanager.yml", "amtool"]
