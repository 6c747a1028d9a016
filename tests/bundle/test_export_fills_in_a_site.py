"""What an export writes has the site's values in it, wherever they belong, and passes the check at once."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from sound_folder import found_in

from exporter.bundle.bundle import Bundle, bundle
from exporter.bundle.check import check
from exporter.bundle.site import SiteError, site
from exporter.bundle.sources import FILES, shipped
from exporter.bundle.writing import carry_out, plan

ALL: dict[str, Any] = {
    "scrape_interval": "15s",
    "evaluation_interval": "10s",
    "label": ["team=post-training", "cluster=eu-1", 'note=it\'s "so": # yes, 中文 [x] %s'],
    "exporter_url": "https://sentinel.example.org/verl",
    "console_url": "https://console.example.org",
    "runbook_url": "https://wiki.example.org/runbooks/verl",
    "grafana_url": "https://grafana.example.org/monitoring/",
    "prometheus_url": "https://prometheus.example.org/p",
    "alertmanager_url": ["http://am-1.example.org:9093", "http://am-2.example.org:9093"],
    "remote_write_url": "https://store.example.org/api/v1/write",
    "preset": ["manual"],
    "datasource": "site-prometheus",
    "job": "verl/exporter-1",
    "alert_token_file": "/run/secrets/it's the token",
    "image": "registry.example.org/verl/exporter:1.2",
}
SETS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "everything": ALL,
    "labels": {"label": ALL["label"]},
    "addresses": {"exporter_url": "http://[2001:db8::1]:9464", "grafana_url": "http://grafana.example.org"},
    "preset": {"preset": ["manual"]},
    "slow": {"scrape_interval": "30s"},
    "fast": {"scrape_interval": "1s", "evaluation_interval": "1s"},
}


def exported(folder: Path, only: tuple[str, ...] = (), **options: Any) -> Path:
    carry_out(plan(folder, bundle(site(**options), only)), "1", "verl-sentinel export")
    return folder


@pytest.fixture(scope="module")
def everything() -> Bundle:
    return bundle(site(**ALL))


def loaded(made: Bundle, path: str) -> Any:
    return yaml.safe_load(made.files[path])


def alerts(made: Bundle) -> list[dict[str, Any]]:
    read = [yaml.safe_load(text) for path, text in made.files.items() if path.endswith(".rules.yml")]
    return [rule for file in read for group in file["groups"] for rule in group["rules"] if "alert" in rule]


@pytest.mark.parametrize("options", SETS)
def test_what_is_written_passes_the_check_at_once(tmp_path: Path, options: str) -> None:
    assert found_in(exported(tmp_path, **SETS[options])) == []


@pytest.mark.parametrize("part", FILES)
def test_each_part_alone_passes_the_check(tmp_path: Path, part: str) -> None:
    root = exported(tmp_path, (part,), **ALL)
    found = found_in(root)
    assert [one.check for one in found] == (["directory"] if part == "compose" else [])


@pytest.mark.programs
def test_the_programs_take_what_is_written_and_its_tests_still_pass(tmp_path: Path) -> None:
    root = exported(tmp_path, **ALL)
    for path in (root / "rules/tests").glob("*.yml"):
        # What goes over days is filled in like the others and takes promtool a minute.
        if path.name not in ("alerting.yml", "resources.yml", "performance.yml", "rollouts.yml", "forecasts.yml"):
            path.unlink()
    report = check(root)
    assert report.missing == []
    assert [one for one in report.sorted() if one.check != "test"] == []
    assert report.looked_at["files with promtool"] > 15


def test_this_repository_passes_the_check() -> None:
    assert found_in(Path(__file__).resolve().parents[2]) == []


def test_no_address_that_is_only_a_default_is_left(everything: Bundle) -> None:
    for path, text in everything.files.items():
        if path.startswith("compose/"):
            continue  # addresses within a container, and of ports of its host
        left = re.findall(r"https?://(?:127\.0\.0\.1|localhost)[^\s\"']*|\"127\.0\.0\.1:\d+\"", text)
        assert left == [], path
        assert "/etc/verl-sentinel/alert-token" not in text, path
        assert "example.org//" not in text, path


def test_every_alert_has_the_site_s_addresses_and_labels(everything: Bundle) -> None:
    found = alerts(everything)
    assert len(found) > 50
    for alert in found:
        said = alert["annotations"]
        assert said["runbook_url"] == f"https://wiki.example.org/runbooks/verl/{alert['alert']}.md"
        assert said["dashboard_url"].startswith("https://grafana.example.org/monitoring/d/")
        assert said.get("console_url", "https://console.example.org/console/").startswith(
            "https://console.example.org/console/"
        )
        assert alert["labels"]["team"] == "post-training"
        assert alert["labels"]["cluster"] == "eu-1"
        assert alert["labels"]["note"] == 'it\'s "so": # yes, 中文 [x] %s'


def test_the_rules_of_prometheus_say_how_often_they_are_evaluated(everything: Bundle) -> None:
    plain = {path: yaml.safe_load(text) for path, text in shipped("rules").items() if path.endswith(".rules.yml")}
    for path, text in everything.files.items():
        if path.endswith(".rules.yml"):
            for group, before in zip(yaml.safe_load(text)["groups"], plain[path]["groups"], strict=True):
                assert group["interval"] == before.get("interval", "10s"), path
            assert "global.evaluation_interval" not in text, path


def test_prometheus_scrapes_and_tells_the_site_s_programs(everything: Bundle) -> None:
    config = loaded(everything, "rules/prometheus/prometheus.yml")
    assert config["global"] == {
        "scrape_interval": "15s",
        "evaluation_interval": "10s",
        "external_labels": {"cluster": "eu-1"},
    }
    assert config["rule_files"][-1] == "presets/verl-manual.rules.yml"
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    exporter = jobs["verl/exporter-1"]
    assert exporter["static_configs"] == [{"targets": ["sentinel.example.org:443"]}]
    assert (exporter["scheme"], exporter["metrics_path"]) == ("https", "/verl/metrics")
    assert jobs["prometheus"]["static_configs"] == [{"targets": ["prometheus.example.org:443"]}]
    both = {"targets": ["am-1.example.org:9093", "am-2.example.org:9093"]}
    assert jobs["alertmanager"]["static_configs"] == [both]
    assert config["alerting"]["alertmanagers"] == [{"static_configs": [both]}]
    stored = loaded(everything, "rules/prometheus/remote_write.yml")
    assert stored["remote_write"][0]["url"] == "https://store.example.org/api/v1/write"
    assert stored["global"]["external_labels"] == {"cluster": "eu-1"}
    assert 'up{job="verl/exporter-1"}' in everything.files["rules/prometheus/verl-monitoring.rules.yml"]


def test_alertmanager_reaches_the_exporter_with_its_token(everything: Bundle) -> None:
    text = everything.files["rules/alertmanager.yml"]
    receivers = {one["name"]: one for one in yaml.safe_load(text)["receivers"]}
    hook = receivers["recovery"]["webhook_configs"][0]
    assert hook["url"] == "https://sentinel.example.org/verl/api/v1/alerts"
    assert hook["http_config"]["authorization"]["credentials_file"] == "/run/secrets/it's the token"
    assert "# " in text, "the comments are for those who go on from here"


def test_dashboards_begin_with_the_site_s_data_source_and_lead_to_its_console(everything: Bundle) -> None:
    boards = {path: json.loads(text) for path, text in everything.files.items() if path.endswith(".json")}
    assert len(boards) == 7
    for path, board in boards.items():
        sources = [one for one in board["templating"]["list"] if one["type"] == "datasource"]
        assert [one["current"]["value"] for one in sources] == ["site-prometheus"], path
        assert "https://console.example.org" in everything.files[path], path
    assert not [path for path in everything.files if path.startswith("grafana/provisioning/datasources/")], (
        "it is there"
    )


def test_grafana_is_told_of_the_site_s_prometheus_and_the_containers_of_theirs() -> None:
    made = bundle(site(prometheus_url="http://prometheus.example.org:9090", scrape_interval="30s"))
    (source,) = loaded(made, "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus.example.org:9090"
    assert source["jsonData"]["timeInterval"] == "30s"
    (inside,) = loaded(made, "compose/grafana/datasources/prometheus.yml")["datasources"]
    assert inside["url"] == "${PROMETHEUS_URL}"
    volumes = loaded(made, "compose/compose.yml")["services"]["grafana"]["volumes"]
    assert "./grafana/datasources:/etc/grafana/provisioning/datasources:ro" in volumes


def test_the_containers_have_the_site_s_intervals_and_links_and_an_image_that_need_not_be_built(
    everything: Bundle,
) -> None:
    exporter = loaded(everything, "compose/compose.yml")["services"]["exporter"]
    assert exporter["image"] == "registry.example.org/verl/exporter:1.2"
    assert "build" not in exporter
    config = loaded(everything, "compose/prometheus/prometheus.yml")
    assert config["global"]["scrape_interval"] == "15s"
    assert config["rule_files"][-1] == "/etc/prometheus/rules/presets/verl-manual.rules.yml"
    links = loaded(everything, "compose/exporter/exporter.yml")["links"]
    assert links == {"console": "https://console.example.org", "grafana": "https://grafana.example.org/monitoring"}


def test_everything_that_the_compose_file_mounts_is_there(everything: Bundle) -> None:
    for name, service in loaded(everything, "compose/compose.yml")["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith(".") and source != "./secrets/notify":
                path = (Path("/compose") / source).resolve().relative_to("/").as_posix()
                assert any(file == path or file.startswith(f"{path}/") for file in everything.files), (name, source)


def test_the_compose_file_is_still_one(everything: Bundle) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("check_jsonschema")
    vendored = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(loaded(everything, "compose/compose.yml"))] == []


def test_without_a_preset_its_rules_tests_and_runbooks_are_not_there() -> None:
    plain, more = bundle(site()), bundle(site(preset=["manual"]))
    added = set(more.files) - set(plain.files)
    assert {path.split("/")[1] for path in added} == {"prometheus", "tests", "runbooks"}
    config = "rules/prometheus/prometheus.yml"
    assert not [one for one in loaded(plain, config)["rule_files"] if "presets" in one]
    assert [one for one in loaded(more, config)["rule_files"] if "presets" in one] == ["presets/verl-manual.rules.yml"]
    assert "so they are off" not in more.files[config]


def test_nothing_but_the_named_files_of_a_checkout_is_written(everything: Bundle) -> None:
    """A checkout may have secrets and data beside them."""
    assert not [path for path in everything.files if "secrets/" in path or path.endswith((".env", ".py"))]


def test_the_same_values_give_the_same_files(everything: Bundle) -> None:
    assert bundle(site(**ALL)).files == everything.files


def test_an_export_without_values_differs_from_the_repository_where_it_has_to() -> None:
    made = bundle(site(), ("rules", "alertmanager"))
    there = shipped("rules") | shipped("alertmanager")
    assert [path for path, text in made.files.items() if text != there[path]] == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"label": ["team"]}, "NAME=VALUE is expected"),
        ({"label": ["1team=a"]}, "NAME=VALUE is expected"),
        ({"label": ["__team=a"]}, "NAME=VALUE is expected"),
        ({"label": ["te-am=a"]}, "NAME=VALUE is expected"),
        ({"label": ["team=a", "team=b"]}, "is given twice"),
        ({"label": ["severity=a"]}, "alerts have a label of that name already"),
        ({"label": ["run=a"]}, "alerts have a label of that name already"),
        ({"label": ["team="]}, "has to be printable"),
        ({"label": ["team=a\nb"]}, "has to be printable"),
        ({"label": ["team=\x1b[31m"]}, "has to be printable"),
        ({"label": ["team=" + "a" * 201]}, "1 to 200 characters"),
        ({"label": ["team={{ query `up` }}"]}, "as a template or a variable"),
        ({"label": ["team=${HOME}"]}, "as a template or a variable"),
        ({"exporter_url": "sentinel:9464"}, "--exporter-url is 'sentinel:9464'"),
        ({"exporter_url": "http://u:p@sentinel"}, "without a user"),
        ({"console_url": "http://a/?x=1"}, "--console-url"),
        ({"grafana_url": 'http://a"b'}, "--grafana-url"),
        ({"grafana_url": "http://a/{{ b }}"}, "--grafana-url"),
        ({"grafana_url": "http://a/${b}"}, "--grafana-url"),
        ({"runbook_url": "http://a/b\nc"}, "--runbook-url"),
        ({"prometheus_url": "http://a,b"}, "--prometheus-url"),
        ({"alertmanager_url": ["http://a", "https://b"]}, "the same scheme and the same path"),
        ({"scrape_interval": "15"}, "is no duration as Prometheus writes it"),
        ({"scrape_interval": "0s"}, "out of bounds"),
        ({"scrape_interval": "3m"}, "out of bounds"),
        ({"evaluation_interval": "1h"}, "out of bounds"),
        ({"job": 'a"b'}, "--job"),
        ({"job": "a b"}, "--job"),
        ({"datasource": "a/b"}, "--datasource"),
        ({"alert_token_file": "a\nb"}, "--alert-token-file"),
        ({"alert_token_file": " "}, "--alert-token-file"),
        ({"image": "a b"}, "--image"),
        ({"preset": ["nobody"]}, "--preset 'nobody' is not known: manual."),
    ],
)
def test_a_value_that_would_mean_something_else_in_a_file_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SiteError, match=re.escape(sentence)):
        site(**options)


def test_an_interval_at_which_a_window_would_hold_too_few_samples_is_refused_with_the_longest_that_fits() -> None:
    from exporter.bundle.windows import fit

    rules = "groups: [{name: a, rules: [{record: 'verl:x', expr: 'rate(verl_training_steps_total[2m])'}]}]\n"
    fit({"rules/prometheus/a.rules.yml": rules}, {}, site(scrape_interval="30s"))
    with pytest.raises(SiteError) as refused:
        fit({"rules/prometheus/a.rules.yml": rules}, {}, site(scrape_interval="1m"))
    assert str(refused.value) == (
        "--scrape-interval 1m is too long for windows that have to hold 4 samples: rules/prometheus/a.rules.yml line 1 "
        "(verl:x) has one of 120s. At most 30s will do."
    )
    with pytest.raises(SiteError, match="has one of 60s"):
        fit({}, {"d.json": '{"expr": "rate(verl_training_steps_total[1m])"}'}, site(scrape_interval="30s"))
    over_recorded = rules.replace("rate(verl_training_steps_total[2m])", "max_over_time(verl:x[2m])")
    with pytest.raises(SiteError, match="--evaluation-interval 1m is too long"):
        fit({"a": over_recorded}, {}, site(scrape_interval="5s", evaluation_interval="1m"))
