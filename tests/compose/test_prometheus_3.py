"""Prometheus 3 takes the rules and the configuration that 2.42 takes: what its migration guide names, looked for here.

The other files of this folder, and those of ``rules/tests``, ask the real 2.42. No Prometheus 3 runs here. What stands
for it is its own grammar, the list of what changed, and for ranges a trick: made one millisecond shorter, a range of
2.42 leaves out the sample at its left end, as one of 3 does.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from email.message import Message
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from containers_view import COMPOSE, ROOT, compose_file

from compose.local import services as parts
from compose.local.answers import answers
from compose.local.services import PORTS, Settings
from demo.processes import Child, free_port

RULES = ROOT / "rules"
RULE_FILES = sorted((RULES / "prometheus").rglob("*.rules.yml"))
CONFIGURATIONS = [
    *(path for path in sorted((RULES / "prometheus").glob("*.yml")) if not path.name.endswith(".rules.yml")),
    COMPOSE / "prometheus" / "prometheus.yml",
]
NODE = ROOT / "tests" / "node"

EXPERIMENTAL = {
    *("double_exponential_smoothing", "end", "histogram_quantiles", "holt_winters", "info", "limit_ratio", "limitk"),
    *("mad_over_time", "max_of", "min_of", "range", "sort_by_label", "sort_by_label_desc", "start", "start_timestamp"),
    *("step", "ts_of_first_over_time", "ts_of_last_over_time", "ts_of_max_over_time", "ts_of_min_over_time"),
}
"""Behind a feature flag in 3, or gone (``holt_winters``)."""

FLAGS = {
    "--config.file",
    "--storage.tsdb.path",
    "--storage.tsdb.retention.time",
    "--web.external-url",
    "--web.listen-address",
}
"""Flags of Prometheus 3: those of its list that we use."""

ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
"""What Prometheus 3 sends when it scrapes; with native histograms protobuf goes before it."""

RANGE = re.compile(r"\[((?:\d+(?:ms|[smhdwy]))+)(:[^\]]*)?\]")
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "y": 31_536_000.0}
SCRAPE_SECONDS = 15.0
"""The longest interval that the rules are made for."""


def rules() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in RULE_FILES:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                yield f"{path.name}: {rule.get('alert') or rule['record']}", rule


@cache
def expressions() -> dict[str, str]:
    """Every expression of a rule, of a test of one, of a dashboard, and in a template of a rule."""
    found = {f"{where} {index}": str(rule["expr"]) for index, (where, rule) in enumerate(rules())}
    for path in sorted((RULES / "tests").glob("*.yml")):
        for index, test in enumerate(yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]):
            for number, one in enumerate(test.get("promql_expr_test", [])):
                found[f"{path.name}: test {index}, {number}"] = one["expr"]
    for where, rule in rules():
        for name, text in {**rule.get("annotations", {}), **rule.get("labels", {})}.items():
            for number, one in enumerate(re.findall(r'query\s+"((?:[^"\\]|\\.)*)"', text)):
                found[f"{where}, {name} {number}"] = one.replace('\\"', '"')
    return found


def seconds(duration: str) -> float:
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdwy])", duration))


@pytest.mark.programs
def test_the_grammar_of_prometheus_3_reads_every_expression() -> None:
    if shutil.which("node") is None or not (NODE / "node_modules" / "@prometheus-io").is_dir():
        pytest.skip("node, or the npm packages of tests/node, are not installed")
    found = expressions()
    broken = ["sum by (run) (up", "nothing_like_that(up)", 'up{run=~"a" job="b"}', "up[5m"]
    done = subprocess.run(
        ["node", "promql_3.mjs"],
        cwd=NODE,
        input=json.dumps([*found.values(), *broken]),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    errors = json.loads(done.stdout)
    assert {name: error for name, error in zip(found, errors, strict=False) if error} == {}
    assert all(errors[len(found) :])


def test_no_function_is_used_that_needs_a_feature_flag() -> None:
    for where, expression in expressions().items():
        used = set(re.findall(r"\b([a-z_0-9]+)\s*\(", re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)))
        assert not used & EXPERIMENTAL, where


@pytest.mark.programs
@pytest.mark.parametrize("test", sorted((RULES / "tests").glob("*.yml")), ids=lambda path: path.stem)
def test_every_rule_does_the_same_where_a_range_leaves_out_its_left_end(test: Path, tmp_path: Path) -> None:
    """The tests of the rules, with each range one millisecond shorter: a sample at its very left end is not in it."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    copy = tmp_path / "rules"
    shutil.copytree(RULES, copy)
    for path in [*copy.rglob("*.rules.yml"), copy / "tests" / test.name]:
        path.write_text(RANGE.sub(_shorter, path.read_text(encoding="utf-8")), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", test.name],
        cwd=copy / "tests",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 or _differs_by_rounding_alone(done.stderr), done.stdout + done.stderr


def _differs_by_rounding_alone(told: str) -> bool:
    """Whether all that promtool found is the same but for the rounding of a rate over a millisecond less.

    That is the sixth digit of a value, and a one in what an alert's sentence says of it: of 149.9999 s it is 2m 29s.
    The alerts and their labels are to be the same.
    """
    values = re.findall(r"^ +exp: (.*)\n +got: (.*)$", told, re.MULTILINE)
    alerts = re.findall(r"^ +exp:\[(.*?)\] *, *\n +got:\[(.*?)\] *$", told, re.MULTILINE | re.DOTALL)
    whole = len(values) + len(alerts) == len(re.findall(r"^ +got:", told, re.MULTILINE)) > 0
    return whole and all(_same_values(*pair) for pair in values) and all(_same_alerts(*pair) for pair in alerts)


def _same_values(expected: str, got: str) -> bool:
    value = re.compile(r" ([-+]?\d\S*?)(?=,|$)")
    rounded = [value.sub(lambda found: f" {float(found[1]):.6g}", text) for text in (expected, got)]
    return rounded[0] == rounded[1]


def _same_alerts(expected: str, got: str) -> bool:
    labels = [re.findall(r"^ +Labels:(\{.*\})$", text, re.MULTILINE) for text in (expected, got)]
    words = [re.split(r"\d+", text) for text in (expected, got)]
    numbers = [[int(number) for number in re.findall(r"\d+", text)] for text in (expected, got)]
    near = all(abs(one - other) <= 1 for one, other in zip(*numbers, strict=False))
    return labels[0] == labels[1] and words[0] == words[1] and near


def _shorter(found: re.Match[str]) -> str:
    return f"[{round(seconds(found[1]) * 1000) - 1}ms{found[2] or ''}]"


def test_every_range_holds_two_samples_wherever_its_ends_are() -> None:
    for where, expression in expressions().items():
        for duration, step in RANGE.findall(expression):
            every = seconds(step.removeprefix(":")) if step.strip(":") else SCRAPE_SECONDS
            assert seconds(duration) >= 2 * every, f"{where}: [{duration}{step}]"


def test_no_regular_expression_depends_on_whether_a_dot_matches_a_newline() -> None:
    """A dot may stand in ``.*`` and ``.+`` only, and then for values in which a newline cannot be.

    Names of metrics, jobs, rule groups and detectors have none; what senders choose (runs, projects, nodes) is matched
    in no rule, and the exporter takes printable characters only.
    """
    ours = {"__name__", "job", "rule_group", "alertname", "detector", "outcome", "phase", "state", "kind", "code"}
    texts = expressions()
    for path in CONFIGURATIONS:
        for number, one in enumerate(re.findall(r"'(\{.*\})'", path.read_text(encoding="utf-8"))):
            texts[f"{path.name} {number}"] = one
    for where, text in texts.items():
        for label, pattern in re.findall(r'(\w+)\s*[=!]~\s*"((?:[^"\\]|\\.)*)"', text):
            assert label in ours or "." not in re.sub(r"\\\\.", "", pattern), f"{where}: {label}=~{pattern}"
            assert "." not in re.sub(r"\\\\\.|\.[*+]", "", pattern), f"{where}: {label}=~{pattern}"


def test_no_bucket_or_quantile_is_named_by_a_whole_number() -> None:
    """3 writes ``le="1"`` as ``le="1.0"`` when it scrapes."""
    for where, text in expressions().items():
        for label, value in re.findall(r'\b(le|quantile)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', text):
            assert value == "+Inf" or re.fullmatch(r"\d+\.\d+|\d+\.\d+e[+-]\d+", value), f"{where}: {label}={value}"


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_configuration_has_nothing_that_3_removed_or_reads_otherwise(path: Path) -> None:
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    for manager in config.get("alerting", {}).get("alertmanagers", []):
        # Only v2 is left, and is the default since 2.14.
        assert manager.get("api_version", "v2") == "v2"
    # References to environment variables are filled in since 3.
    assert not any("$" in str(value) for value in config["global"].get("external_labels", {}).values())
    for job in config["scrape_configs"]:
        assert "scrape_classic_histograms" not in job
        for group in job["static_configs"]:
            # No port is added to what has none.
            assert all(re.search(r":\d+$", target) for target in group["targets"])
    for write in config.get("remote_write", []):
        # The default of HTTP/2 is another: who says nothing takes each as it is.
        assert "enable_http2" not in write.get("http_config", {})


def test_the_command_lines_have_only_flags_that_3_has(tmp_path: Path) -> None:
    settings = Settings(folder=tmp_path, ports=PORTS)
    local = parts.services(settings, {"exporter": "python", "prometheus": "prometheus"})[1].argv[1:]
    containers = compose_file()["services"]["prometheus"]["command"]
    for flag in [argument.split("=", 1)[0] for argument in [*local, *containers]]:
        assert flag in FLAGS


def test_the_names_that_rules_record_and_set_are_names_of_old() -> None:
    """3 takes any UTF-8; what is read by 2.42, by Grafana 10 and by people has letters, digits and underscores."""
    for where, rule in rules():
        assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", rule.get("record", "alert")), where
        for name in rule.get("labels", {}):
            assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name), where


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a real one."""
    folder = tmp_path_factory.mktemp("exporter")
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "exporter", "--listen", address, "--data-dir", str(folder / "data")]
    child = Child("the exporter", command, folder / "log")
    child.start()
    try:
        child.wait_until(lambda: answers(f"http://{address}/readyz"), 60.0, "it was ready")
        yield address
    finally:
        child.stop()


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (ACCEPT, "application/openmetrics-text"),
        (
            f"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,{ACCEPT}",
            "",
        ),
        ("text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.4", "text/plain"),
        ("*/*", "text/plain"),
        ("", "text/plain"),
    ],
)
def test_a_scrape_names_its_format_for_3_fails_one_that_does_not(exporter: str, accept: str, expected: str) -> None:
    connection = http.client.HTTPConnection(exporter, timeout=60)
    connection.request("GET", "/metrics", headers={"Accept": accept} if accept else {})
    answer = connection.getresponse()
    body = answer.read().decode("utf-8")
    connection.close()
    header = Message()
    header["Content-Type"] = answer.getheader("Content-Type", "")
    kind, version = header.get_content_type(), header.get_param("version")
    assert kind == (expected or "application/openmetrics-text")
    assert version == ("0.0.4" if kind == "text/plain" else "1.0.0")
    assert body.endswith("# EOF\n") == (kind == "application/openmetrics-text")


def test_what_is_scraped_has_names_that_2_takes_too(exporter: str) -> None:
    connection = http.client.HTTPConnection(exporter, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode("utf-8")
    connection.close()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-zA-Z_][a-zA-Z0-9_]*=\"|\{\}| )", line), line


def test_alertmanager_s_matchers_mean_the_same_to_its_old_and_its_new_parser() -> None:
    """Since 0.27 Alertmanager reads matchers as UTF-8; a plain name with a quoted value is the same to both."""
    found = re.findall(r"^\s*-\s+'?(\w+(?:=|!=|=~|!~).*?)'?$", (RULES / "alertmanager.yml").read_text(), re.MULTILINE)
    routes = yaml.safe_load((RULES / "alertmanager.yml").read_text(encoding="utf-8"))
    matchers = [*found, *_matchers(routes)]
    assert matchers
    for matcher in matchers:
        assert re.fullmatch(r'[a-zA-Z_]\w*\s*(=|!=|=~|!~)\s*"[^"\\]*"', matcher), matcher


def _matchers(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            if key.endswith("matchers"):
                yield from one
            else:
                yield from _matchers(one)
    elif isinstance(value, list):
        for one in value:
            yield from _matchers(one)


def test_rounding_is_told_from_a_difference() -> None:
    """Of the check above."""
    value = '  FAILED:\n    expr: "x", time: 1h,\n        exp: {__name__="x"} 5E-02\n        got: %s\n'
    assert _differs_by_rounding_alone(value % '{__name__="x"} 4.9999999999999996E-02')
    assert not _differs_by_rounding_alone(value % '{__name__="x"} 4.9E-02')
    assert not _differs_by_rounding_alone(value % "nil")
    one = '            0:\n              Labels:{run="r%s"}\n              Annotations:{summary="%s"}\n            '
    alert = "    alertname: VerlSurge, time: 15m, \n        exp:[\n%s], \n        got:[%s]\n"
    told = alert % (one % ("1", "2m 30s"), "\n" + one % ("1", "2m 29s"))
    assert _differs_by_rounding_alone(told)
    assert _differs_by_rounding_alone(told + value % '{__name__="x"} 4.9999999999999996E-02')
    assert not _differs_by_rounding_alone(alert % (one % ("1", "2m 30s"), "\n" + one % ("2", "2m 30s")))
    assert not _differs_by_rounding_alone(alert % (one % ("1", "2m 30s"), "\n" + one % ("1", "4m 30s")))
    assert not _differs_by_rounding_alone(alert % (one % ("1", "2m 30s"), ""))
    assert not _differs_by_rounding_alone("  FAILED:\n    err: nothing to compare\n")
