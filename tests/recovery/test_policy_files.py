"""A policy as a file: rules, what is refused with its line, and what ``policy check`` and ``policy explain`` say."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from exporter.cli.program import app
from exporter.config import Config, ConfigError, load, parse
from exporter.detectors import registry
from exporter.policy_file import MOST_BYTES, OF_LIVE_DETECTORS, parse_policy, read_policy
from exporter.protocol import Rung
from exporter.recovery.policy import RecoveryPolicy
from exporter.recovery.rung_settings import ALLOWED, forbidden
from exporter.signals import SIGNALS

EXAMPLE = Path(__file__).parents[2] / "rules" / "recovery-policy.example.yml"


def said(text: str, file: str = "p.yml") -> str:
    with pytest.raises(ConfigError) as error:
        parse_policy(text, file)
    return str(error.value)


def test_the_example_is_sound_and_says_what_its_comments_say() -> None:
    policy = read_policy(EXAMPLE)
    assert policy.rule_name(policy.rule_for("a", "prod", "")) == "production"
    production = policy.of_rule(policy.rule_for("a", "prod", ""))
    assert (production.mode_of("checkpoint"), production.mode_of("config")) == ("auto", "approve")
    assert policy.of_rule(policy.rule_for("scratch-1", "prod", "")).acts is False, "it is only observed"
    assert policy.of_rule(policy.rule_for("a", "", "lr-sweep")).ladder == ("checkpoint",)
    assert policy.rule_for("a", "", "") is None


def test_an_empty_rule_list_leaves_the_defaults() -> None:
    assert parse_policy("mode: observe", "p.yml") == RecoveryPolicy()
    assert parse_policy("recovery: {mode: auto}", "p.yml").mode == "auto"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("mode: atuo", 1, "expected approve, auto, observe"),
        ("mode: auto\nmargin_steps: -1", 2, "a checkpoint after the onset is never a target"),
        ("mode: auto\nrules:\n  - run: a\n    budget_per_day: 0", 4, "budget_per_day is 0"),
        ("mode: auto\nrules:\n  - runs: a", 3, "did you mean run?"),
        ("mode: auto\ntriggers:\n  - detectors: [surgee]", 3, "did you mean 'surge'?"),
        ("mode: auto\ntriggers:\n  - detectors: [kl]\n    signals: [nosuch]", 4, "unknown signal 'nosuch'"),
        ("mode: auto\ntriggers:\n  - {detectors: [memory], signals: [run_memry]}", 3, "did you mean 'run_memory'?"),
        ("rules:\n  - triggers:\n      - {detectors: [kl], signals: ['x*']}", 3, "this trigger would never fire"),
        ("mode: auto\nmargins: {klx: 1}", 2, "unknown detector 'klx'"),
        ("mode: auto\nrules:\n  - triggers:\n      - detectors: [nan]", 4, "unknown detector 'nan'"),
        ("mode: auto\nladder: [checkpoint, checkpoint]", 2, "names checkpoint twice"),
        ("mode: auto\nladder: [person]", 2, "expected checkpoint, config, infra, version"),
        ("mode: auto\nconfig:\n  source: git", 3, "say repository, branch and file"),
        ("mode: auto\nconfig:\n  source: adjust\n  adjust:\n    data.seed: {set: 1}", 5, "never changed by a recovery"),
        ("mode: auto\nconfig:\n  allow: [trainer.nnodes]", 3, "never changed by a recovery"),
        ("config:\n  source: git\n  git: {repository: a, branch: b}", 3, "absolute path of a git repository"),
        ("config:\n  source: git\n  git: {repository: /a, branch: --upload-pack=x}", 3, "the name of a branch"),
        ("config:\n  source: git\n  git: {repository: /a, file: ../../etc/passwd}", 3, "a path inside the repository"),
        ("version: {source: pinned}", 1, "version is given with source: pinned"),
        ("approval:\n  config: {names: [ada], approvals: 2}", 2, "names has only 1"),
        ("mode: auto\napproval:\n  version: {names: [ada]}", 3, "in mode auto, so nobody would be asked"),
        ("rules:\n  - mode: auto\n    approval:\n      config: {approvals: 2}", 4, "so nobody would be asked"),
        ("mode: auto\nmode: observe", 2, "set twice"),
        ("policy_file: other.yml", 1, "names no other"),
        ("mode: [", 1, "not YAML"),
        ("", 0, "the file is empty"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, words: str) -> None:
    sentence = said(text)
    assert words in sentence
    assert sentence.startswith(f"p.yml, line {line}: " if line else "p.yml: ")


@pytest.mark.parametrize(
    "text",
    [
        "mode: auto\nmodes: {version: approve}",
        "mode: auto\nrules: [{project: prod, mode: approve}]",
        "mode: approve\nrules: [{run: 'a*', mode: auto}]",
        "mode: observe",
    ],
)
def test_approvals_that_are_asked_for_somewhere_are_sound_and_so_is_a_policy_that_is_tried_out(text: str) -> None:
    policy = parse_policy(f"{text}\napproval: {{version: {{names: [ada, grace], approvals: 2}}}}", "p.yml")
    assert policy.approval["version"].approvals == 2


def test_approvals_in_a_whole_configuration_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"line 3: recovery\.approval: .* nobody would be asked"):
        parse("recovery:\n  mode: auto\n  approval: {version: {names: [ada]}}", "c.yml")


@pytest.mark.parametrize(
    ("mode", "rungs"),
    [
        ("observe", {"checkpoint": "observe", "config": "observe", "version": "observe"}),
        ("approve", {"checkpoint": "observe", "config": "approve", "version": "approve"}),
        ("auto", {"checkpoint": "observe", "config": "auto", "version": "approve"}),
    ],
)
def test_what_a_rule_says_of_all_rungs_is_not_undone_by_modes_of_the_policy_and_stricter_ones_stay(
    mode: str, rungs: dict[Rung, str]
) -> None:
    modes = "modes: {checkpoint: observe, config: auto, version: approve}"
    policy = parse_policy(f"mode: auto\n{modes}\nrules: [{{run: a, mode: {mode}}}]", "p.yml")
    of_rule = policy.of_rule(policy.rule_for("a"))
    assert {rung: of_rule.mode_of(rung) for rung in rungs} == rungs
    assert policy.of_rule(None).mode_of("config") == "auto"


def test_the_configuration_may_name_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "recovery.yml").write_text("mode: auto\nrules: [{run: 'a*', mode: approve}]")
    (tmp_path / "exporter.yml").write_text("recovery: {policy_file: recovery.yml}")
    policy = load(tmp_path / "exporter.yml").recovery
    assert (policy.mode, policy.of_rule(policy.rule_for("abc")).mode) == ("auto", "approve")
    assert policy.policy_file == str(tmp_path / "recovery.yml")


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("recovery: {policy_file: gone.yml}", "cannot be read"),
        ("recovery:\n  policy_file: bad.yml", "bad.yml, line 1: mode"),
        ("recovery:\n  policy_file: recovery.yml\n  mode: auto", "line 3: recovery.mode stands beside"),
    ],
)
def test_a_policy_file_that_cannot_be_used_ends_the_start(tmp_path: Path, section: str, words: str) -> None:
    (tmp_path / "recovery.yml").write_text("mode: auto")
    (tmp_path / "bad.yml").write_text("mode: perhaps")
    (tmp_path / "exporter.yml").write_text(section)
    with pytest.raises(ConfigError, match=words):
        load(tmp_path / "exporter.yml")


def test_the_section_itself_still_holds_a_policy() -> None:
    assert parse("recovery: {mode: approve, margins: {kl: 4}}", "c.yml").recovery.margins == {"kl": 4}
    assert Config().recovery == RecoveryPolicy()


def test_no_pattern_that_is_allowed_by_default_reaches_a_path_a_seed_or_the_world() -> None:
    rung = RecoveryPolicy().config
    never = ["data.seed", "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.default_local_dir", "data.train_files"]
    never += [
        "actor_rollout_ref.model.path",
        "trainer.resume_from_path",
        "actor_rollout_ref.actor.fsdp_config.fsdp_size",
    ]
    assert [key for key in never if rung.allows(key)] == []
    assert all(forbidden(key) for key in never)
    assert rung.allows("actor_rollout_ref.actor.optim.lr")
    assert not [pattern for pattern in ALLOWED if pattern == "*"]


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["policy", *words])
    return done.exit_code, done.output


def test_check_says_what_it_found_and_ends_with_2_where_that_is_wrong(tmp_path: Path) -> None:
    code, out = run("check", str(EXAMPLE))
    assert (code, "sound" in out, "3 rules" in out) == (0, True, True)
    wrong = tmp_path / "p.yml"
    wrong.write_text("mode: auto\nladder: []")
    assert run("check", str(wrong))[0] == 2
    assert run("check", str(tmp_path / "gone.yml"))[0] == 2


SIGNAL = re.compile(r"""\bsignal="([a-z_]+)"|_Gauge\(\s*"([a-z_]+)\"""")


def test_every_signal_that_a_detector_names_may_be_in_a_trigger() -> None:
    """A closed list: a new signal of a live detector has to be added to it."""
    sources = "".join(path.read_text() for path in Path(registry.__file__).parent.glob("*.py"))
    named = {one or other for one, other in SIGNAL.findall(sources)}
    assert {"heartbeat", "gpu_power", "kl"} <= named
    assert named - {*SIGNALS, *OF_LIVE_DETECTORS} == set()
    assert set(OF_LIVE_DETECTORS) <= named
    for signal in (*SIGNALS, *OF_LIVE_DETECTORS, "gpu_*", "*"):
        parse_policy(f"triggers: [{{detectors: [surge], signals: ['{signal}']}}]", "p.yml")
    parse_policy("triggers: [{detectors: [stalled_phase], signals: [a_phase_of_their_own]}]", "p.yml")


def test_check_warns_of_rules_that_can_never_apply(tmp_path: Path) -> None:
    policy = tmp_path / "p.yml"
    policy.write_text("rules: [{run: 'a*', mode: auto}, {name: all, run: '**'}, {run: b}, {project: prod}]")
    code, out = run("check", str(policy))
    assert (code, "Warning: all (rules[1]) matches every run, so 2 later rules can never apply" in out) == (0, True)
    policy.write_text("rules: [{run: 'a*', mode: auto}, {project: '*'}]")
    assert "Warning" not in run("check", str(policy))[1], "as the last it is the rest of them"


@pytest.mark.parametrize("what", ["policy", "configuration"])
def test_a_pipe_or_a_file_without_an_end_is_refused_and_not_waited_for(tmp_path: Path, what: str) -> None:
    pipe, huge = tmp_path / "pipe", tmp_path / "huge"
    os.mkfifo(pipe)
    huge.write_text("# " + "x" * MOST_BYTES)
    read = read_policy if what == "policy" else load
    for path, words in ((pipe, "a pipe or a device"), (Path("/dev/zero"), "a pipe or a device"), (huge, "is larger")):
        with pytest.raises(ConfigError, match=words):
            read(path)
        assert run("check", str(path))[0] == 2


def test_check_and_explain_read_a_whole_configuration_too(tmp_path: Path) -> None:
    (tmp_path / "recovery.yml").write_text("mode: auto")
    whole = tmp_path / "exporter.yml"
    whole.write_text("listen: 127.0.0.1:0\nrecovery: {policy_file: recovery.yml}")
    assert run("check", str(whole))[0] == 0
    code, out = run("explain", str(whole), "--run", "a", "--json")
    assert (code, json.loads(out)["policy"]["policy"]["mode"]) == (0, "auto")


def test_explain_names_the_rule_the_rungs_and_what_a_finding_may_trigger() -> None:
    code, out = run("explain", str(EXAMPLE), "--run", "a", "--project", "prod", "--detector", "kl", "--signal", "kl")
    assert code == 0
    for words in ("production", "experiments of one afternoon", "2 of ada, grace, linus", "2 signals that agree"):
        assert words in out
    assert "10 steps before the onset" in out
    assert "triggers nothing" in run("explain", str(EXAMPLE), "--run", "a", "--detector", "step_time")[1]


def test_explain_without_a_file_and_a_run_says_what_to_give() -> None:
    assert run("explain")[0] == 2
    assert run("explain", str(EXAMPLE), "--detector", "nope")[0] == 2


def test_the_defaults_in_the_documentation_are_those_of_the_policy() -> None:
    text = (EXAMPLE.parents[1] / "docs" / "policy.md").read_text()
    table = text.partition("## Settings")[2].partition("\nA trigger:")[0]
    lines = [line.strip("|") for line in table.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    said = {name.strip("`"): default.strip("`") for name, default, _ in rows if "," not in name}
    policy = RecoveryPolicy()
    numbers = {name: default for name, default in said.items() if default.replace(".", "").isdigit()}
    assert len(numbers) >= 10
    for name, default in numbers.items():
        assert float(default) == getattr(policy, name), name
    assert said["ladder"] == ", ".join(policy.ladder)
    assert (said["mode"], said["trigger"], said["at_end"]) == (policy.mode, policy.trigger, policy.at_end)
    every = {name for row in rows for name in row[0].replace("`", "").replace(" ", "").split(",")}
    assert every == set(RecoveryPolicy.__struct_fields__) - {"policy_file"}
    for name in policy.deadlines.__struct_fields__:
        assert f"`{name}` {getattr(policy.deadlines, name):g}" in table
