"""``verl-sentinel policy check|explain``. Mounted by :mod:`exporter.cli.program`.

The file may be a configuration of the exporter, or a policy by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from exporter.cli.asking import DEFAULT_URL, AsJson, Url, ask
from exporter.cli.policy_summary import print_policy, print_run, print_trigger
from exporter.cli.showing import clean, counted, show_json
from exporter.cli.telling import stop

if TYPE_CHECKING:
    from exporter.recovery.policy import RecoveryPolicy

policy_app = typer.Typer(no_args_is_help=True, help="The recovery policy: check a file, explain what it means.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A policy, or a configuration with a section recovery.")]


@policy_app.command("check")
def check(file: File) -> None:
    """Check a policy file as the exporter does at its start.

    Exit code: 0 it is sound, with a warning where a rule can never apply; 2 it is not, or cannot be read.
    """
    policy = _read(file)
    rules = counted(len(policy.rules), "rule")
    elsewhere = policy.policy_file and Path(policy.policy_file) != file
    source = f" (its policy is in {policy.policy_file})" if elsewhere else ""
    typer.echo(clean(f"{file}{source}: sound. Mode {policy.mode}, ladder {', '.join(policy.ladder)}, {rules}."))
    for_all = policy.rule_for_all
    later = 0 if for_all is None else len(policy.rules) - for_all - 1
    if later:
        named = f"{policy.rule_name(for_all)} (rules[{for_all}])"
        never = f"{counted(later, 'later rule')} can never apply: the first that matches counts. Put it last."
        typer.echo(clean(f"Warning: {named} matches every run, so {never}"), err=True)


@policy_app.command("explain")
def explain(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A policy or a configuration; without one, a running exporter is asked."),
    ] = None,
    run: Annotated[str, typer.Option("--run", help="Id of the run.")] = "",
    project: Annotated[str, typer.Option("--project", help="Its project.")] = "",
    cohort: Annotated[str, typer.Option("--cohort", help="Its cohort.")] = "",
    detector: Annotated[str, typer.Option("--detector", help="What a finding of this detector may trigger.")] = "",
    signal: Annotated[str, typer.Option("--signal", help="The signal of that finding.")] = "",
    severity: Annotated[str, typer.Option("--severity", help="Its severity: warning or critical.")] = "critical",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Say which rule applies to a run, what may trigger what, and on which rungs.

    With a file nothing has to run. Without one the exporter is asked, and also says what it would do about the run's
    open findings at this moment, stage by stage, and why.
    """
    if file is None:
        if not run:
            stop("Name the run with --run, or give a policy file.", 2)
        answer = ask(url, f"/api/v1/recovery/policy?{urlencode({'run': run})}", "findings")
        if as_json:
            show_json(answer)
        else:
            print_run(answer)
        return
    _explain_file(file, run, project, cohort, detector, signal, severity, as_json=as_json)


def _explain_file(
    file: Path, run: str, project: str, cohort: str, detector: str, signal: str, severity: str, *, as_json: bool
) -> None:
    import msgspec

    from exporter.detectors.base import Severity
    from exporter.detectors.options import unknown_name
    from exporter.detectors.registry import NAMES
    from exporter.protocol import Run
    from exporter.recovery.explaining import explain_policy, explain_trigger
    from exporter.recovery.policies import Policies

    if severity not in ("info", "warning", "critical"):
        stop(f"--severity {severity}: it is info, warning or critical.", 2)
    if detector and detector not in NAMES:
        stop(f"--detector: {unknown_name('detector', detector, NAMES)}.", 2)
    policies = Policies(_read(file))
    named = Run(run_id=run, project=project, cohort=cohort)
    explained: Mapping[str, Any] = msgspec.to_builtins(explain_policy(policies, named))
    trigger: Mapping[str, Any] | None = None
    if detector:
        found = explain_trigger(policies.of(named), detector, signal, Severity[severity.upper()])
        trigger = msgspec.to_builtins(found)
    if as_json:
        show_json({"policy": explained, "trigger": trigger})
        return
    print_policy(explained)
    if trigger is not None:
        print_trigger(trigger)


def _read(file: Path) -> RecoveryPolicy:
    """Of a policy or of a configuration; ends the program with a sentence where it is neither."""
    from exporter.config import Config, ConfigError, parse
    from exporter.policy_file import compose, read_bounded, read_policy

    try:
        policy_text = read_bounded(file, f"The file {file}")
        sections = _sections(compose(policy_text, str(file)))
        others = set(Config.__struct_fields__) - {"recovery"}
        if others & set(sections) or "policy_file" in sections.get("recovery", ()):
            return parse(policy_text, str(file)).recovery
        return read_policy(file)
    except ConfigError as error:
        stop(str(error), 2)


def _sections(node: Any) -> dict[Any, list[Any]]:
    """Names of the sections of a YAML text, and of what stands in each."""

    def pairs(one: Any) -> list[tuple[Any, Any]]:
        return one.value if one is not None and one.tag == "tag:yaml.org,2002:map" else []

    return {key.value: [inner.value for inner, _ in pairs(value)] for key, value in pairs(node)}
