"""All files of an export, as they will be written. Called by :mod:`exporter.cli.export`; writes nothing itself."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from exporter.bundle.filled_compose import filled_compose, filled_exporter
from exporter.bundle.filled_configs import filled_alertmanager, filled_datasource, filled_prometheus
from exporter.bundle.filled_rules import addressed, filled_dashboard, filled_rules, filled_tests
from exporter.bundle.layout import rules_in
from exporter.bundle.reading import composed, items, text_of, value_of
from exporter.bundle.site import PARTS, Site
from exporter.bundle.sources import shipped
from exporter.bundle.windows import fit

_PRESETS: Final = "rules/prometheus/presets/"
_NOT_WRITTEN: Final = frozenset({"rules/prometheus/federation.yml"})
"""It is for the Prometheus above those of all clusters, which has no rules."""

_SOURCE: Final = "grafana/provisioning/datasources/"
_CONTAINERS_SOURCE: Final = "compose/grafana/datasources/"
"""The Grafana among the containers has another Prometheus than the site's."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What to write."""

    parts: tuple[str, ...]
    files: dict[str, str]
    """Text by path below the directory, sorted."""

    @staticmethod
    def executable(path: str) -> bool:
        return path.endswith(".sh")


def part_of(path: str) -> str:
    """The part of an export that a path belongs to; empty for what belongs to none.

    >>> part_of("rules/templates/verl.tmpl"), part_of("rules/tests/a.yml"), part_of("README.md")
    ('alertmanager', 'rules', '')
    """
    if path.startswith(("rules/templates/", "rules/alertmanager")):
        return "alertmanager"
    return {"rules": "rules", "grafana": "dashboards", "compose": "compose"}.get(path.partition("/")[0], "")


def bundle(site: Site, only: Collection[str] = ()) -> Bundle:
    """Every file, filled in.

    Args:
        site: what to fill in.
        only: parts that are wanted; all where it is empty.

    Raises:
        SiteError: where the rules do not hold at these intervals.
        NotInstalled: where files are missing from the installation.
    """
    parts = tuple(part for part in PARTS if not only or part in only)
    # Configurations name rule files, whether or not these are written too.
    rules = _chosen(shipped("rules"), site)
    names = [posixpath.basename(path) for path in rules if _is_rules(path) and not path.startswith(_PRESETS)]
    presets = [path.removeprefix("rules/prometheus/") for path in rules if path.startswith(_PRESETS)]
    files: dict[str, str] = {}
    for part in parts:
        source = rules if part == "rules" else shipped(part)
        if part == "compose":
            source |= _for_containers()
        if site.datasource:
            # It is there already, and two of one uid would fight.
            source = {path: text for path, text in source.items() if not path.startswith(_SOURCE)}
        files |= {path: _filled(path, text, site, names, presets) for path, text in source.items()}
    fit(
        {path: text for path, text in rules.items() if _is_rules(path)},
        {path: text for path, text in files.items() if path.endswith(".json")},
        site,
    )
    for path, text in files.items():
        _read_again(path, text)
    return Bundle(parts, dict(sorted(files.items())))


def _for_containers() -> dict[str, str]:
    sources = {path: text for path, text in shipped("dashboards").items() if path.startswith(_SOURCE)}
    return {_CONTAINERS_SOURCE + posixpath.basename(path): text for path, text in sources.items()}


def _is_rules(path: str) -> bool:
    return path.endswith(".rules.yml")


def _chosen(rules: Mapping[str, str], site: Site) -> dict[str, str]:
    """Without presets that are not switched on, what is only of use with them, and what nobody asked for."""
    wanted = {f"{_PRESETS}verl-{preset}.rules.yml" for preset in site.presets}
    chosen = {
        path: text
        for path, text in rules.items()
        if (not path.startswith(_PRESETS) or path in wanted)
        and path not in _NOT_WRITTEN
        and (site.remote_write or path != "rules/prometheus/remote_write.yml")
    }
    alerts = {
        rule.name
        for path, text in chosen.items()
        if _is_rules(path)
        for rule in rules_in(path, composed(text))
        if rule.kind == "alert"
    }
    return {path: text for path, text in chosen.items() if _of_use(path, text, chosen, alerts)}


def _of_use(path: str, text: str, chosen: Collection[str], alerts: Collection[str]) -> bool:
    if path.startswith("rules/tests/"):
        tested = [text_of(item) for item in items(value_of(composed(text), "rule_files"))]
        return all(posixpath.normpath(posixpath.join(posixpath.dirname(path), one)) in chosen for one in tested)
    if path.startswith("rules/runbooks/"):
        return posixpath.basename(path).removesuffix(".md") in alerts
    return True


def _filled(path: str, text: str, site: Site, names: Collection[str], presets: Collection[str]) -> str:
    name = posixpath.basename(path)
    if path.startswith("rules/tests/"):
        return filled_tests(text, site)
    if _is_rules(path):
        return filled_rules(text, site)
    if path.startswith("rules/prometheus/"):
        return filled_prometheus(text, site, names, presets)
    if path == "rules/alertmanager.yml":
        return filled_alertmanager(text, site)
    if path.startswith("grafana/dashboards/"):
        return filled_dashboard(text, site)
    if path.startswith("grafana/provisioning/datasources/"):
        return filled_datasource(text, site, site.prometheus)
    if path.startswith(_CONTAINERS_SOURCE):
        return filled_datasource(text, site, "")
    if path.startswith("compose/prometheus/"):
        return filled_prometheus(text, site, names, presets, below="/etc/prometheus/rules", targets=False)
    if path == "compose/compose.yml":
        return filled_compose(text, site)
    if path == "compose/exporter/exporter.yml":
        return filled_exporter(text, site)
    return addressed(text, site) if name.endswith((".md", ".tmpl")) else text


def _read_again(path: str, text: str) -> None:
    """What was filled in has left a file that can be read; anything else is a fault of this program."""
    try:
        if path.endswith(".json"):
            json.loads(text)
        elif re.search(r"\.ya?ml$", path):
            composed(text)
    except (ValueError, yaml.YAMLError) as error:
        raise RuntimeError(f"{path} could not be filled in, which is a fault of verl-sentinel: {error}") from error
