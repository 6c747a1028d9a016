"""The compose file and the exporter's configuration with a site's values. Called by :mod:`exporter.bundle.bundle`.

Containers find each other by their names, so only what people's browsers see is a site's, and the exporter's image: an
export has no source to build it from.
"""

from __future__ import annotations

import yaml

from exporter.bundle.edits import Edits, at, quoted
from exporter.bundle.reading import entries, items, text_of
from exporter.bundle.site import Site
from exporter.links import DEFAULT_CONSOLE, DEFAULT_GRAFANA


def filled_compose(text: str, site: Site) -> str:
    """The compose file."""
    edits = Edits(text)
    exporter = entries(at(edits.root, "services", "exporter"))
    if "build" in exporter:
        key, build = exporter["build"]
        edits.drop_lines(key, build)
    if "image" in exporter:
        key, image = exporter["image"]
        indent = " " * key.start_mark.column
        edits.before(
            key, f"{indent}# Built from a checkout, in its root: {_BUILD} -t {site.image or text_of(image)} .\n"
        )
        if site.image:
            edits.replace(image, quoted(site.image))
    for volume in items(at(edits.root, "services", "grafana", "volumes")):
        if text_of(volume).startswith("../grafana/provisioning:"):
            inside = text_of(volume).split(":")[1]
            edits.replace(volume, f"../grafana/provisioning/dashboards:{inside}/dashboards:ro")
            column = " " * (volume.start_mark.column - 2)
            edits.insert(edits.span(volume)[1], f"\n{column}- ./grafana/datasources:{inside}/datasources:ro")
    root = at(edits.root, "services", "grafana", "environment", "GF_SERVER_ROOT_URL")
    if root is not None and site.grafana != DEFAULT_GRAFANA:
        edits.replace(root, quoted(f"{site.grafana}/"))
    return edits.done()


_BUILD = "docker build -f compose/exporter/Dockerfile"


def filled_exporter(text: str, site: Site) -> str:
    """The exporter's configuration: where people find the console and Grafana."""
    edits = Edits(text)
    for name, url, usual in (("console", site.console, DEFAULT_CONSOLE), ("grafana", site.grafana, DEFAULT_GRAFANA)):
        node: yaml.Node | None = at(edits.root, "links", name)
        if node is not None and url != usual:
            edits.replace(node, quoted(url))
    return edits.done()
