"""``verl-sentinel export``. Mounted by :mod:`exporter.cli.program`; the work is :mod:`exporter.bundle`'s."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exporter.cli.telling import stop, tell

if TYPE_CHECKING:
    from exporter.bundle.writing import Plan

_ADDRESSES = "Addresses"
_JUDGING = "Scraping and judging"
_WRITING = "Writing"


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; is made where it is missing.")],
    exporter_url: Annotated[
        str,
        typer.Option(
            "--exporter-url",
            help="The exporter, as Prometheus and Alertmanager reach it.",
            rich_help_panel=_ADDRESSES,
        ),
    ] = "http://127.0.0.1:9464",
    console_url: Annotated[
        str,
        typer.Option(
            "--console-url",
            help="The exporter, as a browser reaches it. Default: the same.",
            rich_help_panel=_ADDRESSES,
        ),
    ] = "",
    runbook_url: Annotated[
        str,
        typer.Option(
            "--runbook-url",
            help="Folder of the runbooks. Default: the console's, /runbooks.",
            rich_help_panel=_ADDRESSES,
        ),
    ] = "",
    grafana_url: Annotated[
        str, typer.Option("--grafana-url", help="Grafana, as a browser reaches it.", rich_help_panel=_ADDRESSES)
    ] = "http://127.0.0.1:3000",
    prometheus_url: Annotated[
        str,
        typer.Option(
            "--prometheus-url", help="Prometheus, as itself and Grafana reach it.", rich_help_panel=_ADDRESSES
        ),
    ] = "http://127.0.0.1:9090",
    alertmanager_url: Annotated[
        list[str] | None,
        typer.Option(
            "--alertmanager-url",
            help="Alertmanager, as Prometheus reaches it; once for each. Default: http://127.0.0.1:9093.",
            rich_help_panel=_ADDRESSES,
        ),
    ] = None,
    remote_write_url: Annotated[
        str,
        typer.Option(
            "--remote-write-url",
            help="A store for all clusters: writes remote_write.yml too.",
            rich_help_panel=_ADDRESSES,
        ),
    ] = "",
    scrape_interval: Annotated[
        str, typer.Option("--scrape-interval", help="500ms to 2m.", rich_help_panel=_JUDGING)
    ] = "5s",
    evaluation_interval: Annotated[
        str,
        typer.Option(
            "--evaluation-interval",
            help="Of these rules, whatever your global one is. Default: that of the scrapes, as the global one.",
            rich_help_panel=_JUDGING,
        ),
    ] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="NAME=VALUE",
            help="On every alert. May be repeated. cluster=… is an external label of Prometheus too.",
            rich_help_panel=_JUDGING,
        ),
    ] = None,
    job: Annotated[
        str, typer.Option("--job", help="Name of the exporter's scrape job.", rich_help_panel=_JUDGING)
    ] = "verl-sentinel",
    preset: Annotated[
        list[str] | None,
        typer.Option(
            "--preset",
            help="manual: the alerts of the operations manual, with its thresholds, as well.",
            rich_help_panel=_JUDGING,
        ),
    ] = None,
    alert_token_file: Annotated[
        str,
        typer.Option(
            "--alert-token-file",
            help="File with the token for the exporter's webhook, as Alertmanager sees it.",
            rich_help_panel=_JUDGING,
        ),
    ] = "/etc/verl-sentinel/alert-token",
    datasource: Annotated[
        str,
        typer.Option(
            "--datasource",
            metavar="UID",
            help="Data source with which the dashboards begin. Default: Grafana's default.",
            rich_help_panel=_JUDGING,
        ),
    ] = "",
    image: Annotated[
        str,
        typer.Option("--image", help="The exporter's image, in the compose file.", rich_help_panel=_JUDGING),
    ] = "",
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="PART",
            help="rules, alertmanager, dashboards or compose alone. May be repeated.",
            rich_help_panel=_WRITING,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Overwrite files that were changed by hand or are not the export's.",
            rich_help_panel=_WRITING,
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.", rich_help_panel=_WRITING)
    ] = False,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Print what would change as a diff, and do nothing.", rich_help_panel=_WRITING),
    ] = False,
) -> None:
    """Write rules, routes, dashboards and a compose file for a stack of your own, filled in.

    A directory may be exported to again: a file that you changed stays while there is nothing new for it.
    Where there is, nothing at all is written, and you are told which files these are.
    Look at what was written with: verl-sentinel check DIR

    Exit code: 0 done; 1 files are in the way, or cannot be written; 2 called wrongly.
    """
    from exporter.bundle.bundle import bundle
    from exporter.bundle.site import PARTS, SiteError, site
    from exporter.bundle.sources import NotInstalled
    from exporter.bundle.writing import CannotWrite, carry_out, differences, plan

    for part in only or ():
        if part not in PARTS:
            stop(f"--only {part} is no part of an export: {', '.join(PARTS)}.", 2)
    try:
        values = site(
            scrape_interval=scrape_interval,
            evaluation_interval=evaluation_interval,
            label=label or (),
            exporter_url=exporter_url,
            console_url=console_url,
            grafana_url=grafana_url,
            runbook_url=runbook_url,
            prometheus_url=prometheus_url,
            alertmanager_url=alertmanager_url or (),
            remote_write_url=remote_write_url,
            preset=preset or (),
            datasource=datasource,
            job=job,
            alert_token_file=alert_token_file,
            image=image,
        )
        made = plan(directory, bundle(values, only or ()), force)
        if diff:
            for line in differences(made):
                print(line)
        elif not dry_run and (not made.in_the_way or force):
            carry_out(made, _version(), shlex.join(["verl-sentinel", "export", *_arguments()]))
    except SiteError as error:
        stop(str(error), 2)
    except (CannotWrite, NotInstalled) as error:
        stop(str(error), 1)
    _say(made, done=not dry_run and not diff, force=force)
    if made.in_the_way and not force:
        raise typer.Exit(1)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("verl-sentinel")
    except PackageNotFoundError:
        return ""


def _arguments() -> list[str]:
    """The options, without those that are of one time only."""
    return [one for one in sys.argv[2:] if one not in ("--force", "--dry-run", "--diff")]


def _say(made: Plan, *, done: bool, force: bool) -> None:
    """What was done, or would be, by the files' names where it matters which."""
    from exporter.cli.showing import counted

    refused = bool(made.in_the_way) and not force
    for paths, what in (
        (made.kept, "Kept, you changed it and there is nothing new for it"),
        (made.left, "Left, it is no longer part of the export and you changed it"),
        (
            made.edited,
            "Overwritten, you had changed it" if force else "Changed by you, and there is something new for it",
        ),
        (made.foreign, "Overwritten, no export had written it" if force else "In the way, no export wrote it"),
    ):
        for path in paths:
            tell(f"{what}: {made.folder / path}")
    if refused:
        tell(
            "verl-sentinel: Nothing was written. --diff shows the differences, --force overwrites them, "
            "--only leaves parts out."
        )
        return
    to = "" if done else "to be "
    same = len(made.same) + len(made.kept)
    tell(
        f"{made.folder}: {counted(len(made.new), 'file')} {to}new, {len(made.write) - len(made.new)} {to}changed, "
        f"{len(made.remove)} {to}removed, {same} as they were."
    )
    if "compose" in made.parts:
        for folder in ("rules", "grafana"):
            if not (made.folder / folder).is_dir() and done:
                tell(f"compose/compose.yml mounts {folder}/ beside it, which is not there: export that part too.")
    if done:
        tell(f"Next: verl-sentinel check {shlex.quote(str(made.folder))}")
