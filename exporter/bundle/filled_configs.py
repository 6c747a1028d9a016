"""Configurations of Prometheus, Alertmanager and Grafana with a site's values. Called by :mod:`exporter.bundle.bundle`.

They are changed in place, so that their comments stay: they are for the people who go on from here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection
from urllib.parse import urlsplit

import yaml

from exporter.bundle.edits import Edits, at, quoted
from exporter.bundle.filled_rules import with_job
from exporter.bundle.reading import entries, items, text_of, value_of
from exporter.bundle.site import (
    DEFAULT_ALERTMANAGER,
    DEFAULT_EXPORTER,
    DEFAULT_PROMETHEUS,
    DEFAULT_TOKEN_FILE,
    Site,
    host_and_port,
    seconds,
)


def filled_prometheus(
    text: str,
    site: Site,
    loaded: Collection[str],
    presets: Collection[str],
    *,
    below: str = "",
    targets: bool = True,
) -> str:
    """A configuration of Prometheus.

    Args:
        text: as it comes with the program.
        site: what to fill in.
        loaded: names of the rule files, without their folders, that are written beside it.
        presets: those of presets that are switched on, by their path below the folder of the others.
        below: the folder of the rule files as Prometheus will see them, where it is another than the configuration's.
        targets: whether the programs are where the site says.
    """
    edits = Edits(_without_hints(with_job(text, site), presets))
    general = at(edits.root, "global")
    edits.set(general, "evaluation_interval", site.evaluated_every)
    edits.set(general, "scrape_interval", site.scrape_interval)
    if "cluster" in site.labels:
        outside = value_of(general, "external_labels")
        if outside is not None:
            edits.set(outside, "cluster", quoted(site.labels["cluster"]))
        else:
            edits.set(general, "external_labels", f"{{cluster: {quoted(site.labels['cluster'])}}}")
    _rule_files(edits, loaded, [posixpath.join(below, one) for one in presets])
    jobs = items(value_of(edits.root, "scrape_configs"))
    for job in jobs:
        own = value_of(job, "scrape_interval")
        if own is not None and _shorter(text_of(own), site):
            edits.replace(own, site.scrape_interval)
    if targets:
        for manager in items(at(edits.root, "alerting", "alertmanagers")):
            _target(edits, manager, DEFAULT_ALERTMANAGER, site.alertmanagers, "path_prefix", "")
        for job in jobs:
            _target(edits, job, DEFAULT_EXPORTER, (site.exporter,), "metrics_path", "/metrics")
            _target(edits, job, DEFAULT_PROMETHEUS, (site.prometheus,), "metrics_path", "/metrics")
            _target(edits, job, DEFAULT_ALERTMANAGER, site.alertmanagers, "metrics_path", "/metrics")
    for store in items(value_of(edits.root, "remote_write")):
        url = value_of(store, "url")
        if url is not None and site.remote_write:
            edits.replace(url, quoted(site.remote_write))
    return edits.done()


def _shorter(own: str, site: Site) -> bool:
    """Whether a job is asked more often than the site wants."""
    try:
        return seconds(own) < seconds(site.scrape_interval)
    except ValueError:
        return False


def _rule_files(edits: Edits, loaded: Collection[str], presets: Collection[str]) -> None:
    """Presets that are switched on are loaded, and nothing that is not written."""
    listed = items(value_of(edits.root, "rule_files"))
    for item in listed:
        if posixpath.basename(text_of(item)) not in loaded and not set(text_of(item)) & set("*?["):
            edits.drop_lines(item, item)
    if listed and presets:
        end = edits.span(listed[-1])[1]
        indent = " " * max(0, listed[-1].start_mark.column - 2)
        edits.insert(end, "".join(f"\n{indent}- {one}" for one in presets))


def _without_hints(text: str, presets: Collection[str]) -> str:
    """Without the comment that says how a preset is switched on, where it is."""
    for one in presets:
        text = re.sub(rf"(?:^ *#[^\n]*\n)*?^ *# - {re.escape(one)}\n", "", text, flags=re.MULTILINE)
    return text


def _target(edits: Edits, section: yaml.Node, default: str, urls: tuple[str, ...], path: str, end: str) -> None:
    """Replace the addresses of a section whose targets are one program's, and say scheme and path where they matter."""
    if urls == (default,):
        return
    usual = host_and_port(default)
    hit = False
    for group in items(value_of(section, "static_configs")):
        targets = value_of(group, "targets")
        if targets is not None and [text_of(one) for one in items(targets)] == [usual]:
            edits.replace(targets, "[" + ", ".join(quoted(host_and_port(url)) for url in urls) + "]")
            hit = True
    if not hit:
        return
    parts = urlsplit(urls[0])
    if parts.path:
        edits.set(section, path, quoted(parts.path + end))
    if parts.scheme == "https":
        edits.set(section, "scheme", "https")


def filled_alertmanager(text: str, site: Site) -> str:
    """A configuration of Alertmanager: where the exporter is, and the file with its token."""
    edits = Edits(text)
    seen: set[int] = set()

    def walk(node: yaml.Node | None) -> None:
        if node is None or id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            if str(node.value).startswith(f"{DEFAULT_EXPORTER}/") and site.exporter != DEFAULT_EXPORTER:
                edits.replace(node, quoted(site.exporter + str(node.value).removeprefix(DEFAULT_EXPORTER)))
            elif node.value == DEFAULT_TOKEN_FILE and site.token_file != DEFAULT_TOKEN_FILE:
                edits.replace(node, quoted(site.token_file))
        for child in node.value if isinstance(node, yaml.CollectionNode) else ():
            for one in child if isinstance(child, tuple) else (child,):
                walk(one)

    walk(edits.root)
    return edits.done()


def filled_datasource(text: str, site: Site, url: str) -> str:
    """Grafana's provisioning of the data source.

    Args:
        text: as it comes with the program.
        site: how often Prometheus scrapes, and under which uid the dashboards look for it.
        url: where Grafana's server finds Prometheus; empty where its environment says that.
    """
    edits = Edits(text)
    for source in items(value_of(edits.root, "datasources")):
        known = entries(source)
        if url and "url" in known:
            edits.replace(known["url"][1], quoted(url))
        if site.datasource and "uid" in known:
            edits.replace(known["uid"][1], quoted(site.datasource))
        often = at(source, "jsonData", "timeInterval")
        # Not below what it comes with: the steps of a training are slower than most scrapes.
        if often is not None and seconds(text_of(often)) < seconds(site.scrape_interval):
            edits.replace(often, site.scrape_interval)
    filled = edits.done()
    if url:
        filled = re.sub(
            r"^# PROMETHEUS_URL is where Grafana's server reaches it; compose sets it\. ", "# ", filled, flags=re.M
        )
    return filled
