"""What the demo concludes from what it has observed."""

from __future__ import annotations

from typing import Any

import pytest

from demo.observation import Observation
from demo.scenarios import RATE, SCENARIOS
from demo.summary import conclude

FAULT = {"time": 1000.0, "step": 26, "fault": "nan"}


def page(**changes: Any) -> dict[str, Any]:
    return {
        "detector": "non_finite",
        "signal": "loss",
        "severity": "critical",
        "paged_at": 1002.0,
        "paged_step": 26,
        "attempt": 1,
        "summary": "loss is NaN",
        **changes,
    }


def recovery(**changes: Any) -> dict[str, Any]:
    times = {
        "alert_received": 1004.0,
        "planned": 1004.1,
        "stopping": 1005.0,
        "stopped": 1008.0,
        "started": 1009.0,
        "first_healthy_step": 1044.0,
        "succeeded": 1050.0,
        "finished": 1050.0,
    }
    return {
        "id": "r1",
        "action": "rollback",
        "rung": "checkpoint",
        "attempt": 1,
        "climbed_from": "",
        "stage": "succeeded",
        "target_step": 25,
        "new_attempt": 2,
        "planned_at_step": 27,
        "changes": [
            {"name": "attempt", "kind": "run", "old": 1, "new": 2, "known": True},
            {"name": "trainer.resume_mode", "kind": "setting", "old": "auto", "new": "resume_path", "known": True},
        ],
        "considered": [{"rung": "checkpoint", "taken": True, "reason": "back to the checkpoint of step 25"}],
        "proofs": [],
        "output": [],
        "healthy_steps": 5,
        "reason": "loss is NaN",
        "outcome": "",
        "times": times,
        **changes,
    }


def observed(**changes: Any) -> Observation:
    fields: dict[str, Any] = {
        "started": 900.0,
        "verl_version": "0.9.1",
        "fault": FAULT,
        "incidents": [page()],
        "recoveries": [recovery()],
        "alert_active": 1003.0,
        "first_steps": {1: (1, 940.0), 2: (26, 1044.0)},
        "last_steps": {1: 27, 2: 35},
        "last_step": 35,
        **changes,
    }
    return Observation(**fields)


def test_a_recovered_run_gives_the_figures_of_the_summary() -> None:
    result = conclude(SCENARIOS["nan"], observed())

    assert result.ok
    assert result.summary == {
        "scenario": "nan",
        "verl_version": "0.9.1",
        "fault_step": 26,
        "detected_step": 26,
        "detected_by": ["non_finite/loss"],
        "alert_seconds": 2.0,
        "action": "rollback",
        "target_step": 25,
        "resumed_step": 26,
        "steps_lost": 2,
        "recovery_seconds": 40.0,
        "trainer_start_seconds": 35.0,
        "rungs": [
            {
                "rung": "checkpoint",
                "action": "rollback",
                "attempt": 2,
                "verl_version": None,
                "target_step": 25,
                "changes": {},
                "proofs": [],
                "learning_rate": None,
                "passed_over": {},
                "refused_checkpoints": [],
                "held": True,
                "outcome": "",
            }
        ],
        "outcome": "recovered",
        "false_pages": 0,
        "steps": 35,
    }
    assert [moment.name for moment in result.timeline] == [
        "fault",
        "first verdict",
        "alert firing",
        "webhook received",
        "plan",
        "stop",
        "restart",
        "first healthy step",
        "recovered",
    ]
    assert [moment.seconds for moment in result.timeline[:4]] == [0.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fault": None}, "did not happen"),
        ({"incidents": []}, "not detected"),
        ({"incidents": [page(paged_at=None)]}, "not detected"),
        ({"incidents": [page(detector="silent_run")]}, "taken for something else"),
        ({"recoveries": []}, "no recovery was planned"),
        (
            {"recoveries": [recovery(stage="failed", outcome="no checkpoint")]},
            "did not succeed (failed): no checkpoint",
        ),
        ({"incidents": [page(), page(signal="kl", paged_at=990.0)]}, "1 false page"),
        ({"incidents": [page(), page(signal="kl", attempt=2)]}, "1 false page"),
        ({"problem": "Prometheus ended with code 1"}, "Prometheus ended with code 1"),
        ({"interrupted": True}, "interrupted"),
    ],
)
def test_a_recovery_that_did_not_happen_as_promised_is_no_success(changes: dict[str, Any], words: str) -> None:
    result = conclude(SCENARIOS["nan"], observed(**changes))

    assert not result.ok
    assert words in result.outcome


HEALTHY: dict[str, Any] = {
    "fault": None,
    "incidents": [],
    "recoveries": [],
    "trainer_exit_code": 0,
    "last_step": SCENARIOS["healthy"].steps,
}


def test_a_healthy_run_without_a_page_is_a_success() -> None:
    result = conclude(SCENARIOS["healthy"], observed(**HEALTHY))

    assert result.ok
    assert result.summary["outcome"] == "healthy"
    assert result.summary["false_pages"] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"incidents": [page()]}, "1 page(s)"),
        ({"recoveries": [recovery()]}, "a recovery was planned"),
        ({"trainer_exit_code": 1}, "exit code 1"),
        ({"last_step": 40}, "ended at step 40"),
    ],
)
def test_a_healthy_run_with_a_page_or_an_early_end_is_no_success(changes: dict[str, Any], words: str) -> None:
    result = conclude(SCENARIOS["healthy"], observed(**{**HEALTHY, **changes}))

    assert not result.ok
    assert words in result.outcome


def warning(**changes: Any) -> dict[str, Any]:
    return {
        "detector": "step_time",
        "signal": "step_time",
        "severity": "warning",
        "opened_at": 1020.0,
        "first_step": 34,
        "paged_at": None,
        "paged_step": None,
        "attempt": 1,
        "summary": "steps take 2.3 s, and took 1.4 s",
        **changes,
    }


ONLY_FOUND: dict[str, Any] = {"incidents": [warning()], "recoveries": [], "alert_active": None}


def test_a_fault_that_is_only_to_be_found_is_a_success_once_it_is() -> None:
    result = conclude(SCENARIOS["slow_reward"], observed(**ONLY_FOUND))

    assert result.ok
    assert result.summary["outcome"] == "found"
    assert (result.summary["detected_step"], result.summary["detected_by"]) == (34, ["step_time/step_time"])
    moments = [(moment.name, moment.seconds) for moment in result.timeline[:2]]
    assert moments == [("fault", 0.0), ("first verdict", 20.0)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fault": None}, "did not happen"),
        ({"incidents": []}, "not found"),
        ({"incidents": [warning(detector="surge")]}, "not found"),
        ({"incidents": [warning(opened_at=990.0)]}, "not found"),
        ({"incidents": [warning(), warning(detector="surge", paged_at=990.0)]}, "1 false page"),
    ],
)
def test_a_fault_that_was_not_found_or_paged_for_before_it_came_is_no_success(
    changes: dict[str, Any], words: str
) -> None:
    result = conclude(SCENARIOS["slow_reward"], observed(**{**ONLY_FOUND, **changes}))

    assert not result.ok
    assert words in result.outcome


LR = {"name": RATE, "kind": "setting", "old": 0.01, "new": 0.0001, "known": True}
PROOF = {"name": RATE, "wanted": 1e-4, "restored": 2.5e-3, "found": 1e-4, "ok": True, "reason": "", "at": 1120.0}


def second(**changes: Any) -> dict[str, Any]:
    """A recovery that climbs, from the attempt that the first one has started."""
    fields: dict[str, Any] = {
        "id": "r2",
        "rung": "config",
        "attempt": 2,
        "new_attempt": 3,
        "target_step": 10,
        "climbed_from": "r1",
        "considered": [
            {"rung": "checkpoint", "taken": False, "reason": "recovery r1 had succeeded, and the same failure is back"},
            {"rung": "config", "taken": True, "reason": "as on the branch prod-stable"},
        ],
        "changes": [LR],
        "proofs": [PROOF],
    }
    moved = {name: None if at is None else at + 100.0 for name, at in recovery()["times"].items()}
    return recovery(**{**fields, "times": moved, **changes})


def climbed(*recoveries: dict[str, Any], **changes: Any) -> Observation:
    fields: dict[str, Any] = {
        "incidents": [page(detector="surge", signal="ppo_kl"), page(detector="kl", signal="ppo_kl", attempt=2)],
        "fault": {"time": 940.0, "step": 1, "fault": "bad_config"},
        "recoveries": list(recoveries),
        "first_steps": {1: (1, 940.0), 2: (11, 1044.0), 3: (11, 1144.0)},
        "last_steps": {1: 30, 2: 29, 3: 36},
        "rates": {1: 0.0075, 2: 0.007, 3: 1e-4},
        **changes,
    }
    return observed(**fields)


def test_a_climb_tells_every_rung_with_its_change_its_proof_and_what_was_passed_over() -> None:
    result = conclude(SCENARIOS["bad_config"], climbed(recovery(), second()))

    assert result.outcome == "recovered"
    checkpoint, config = result.summary["rungs"]
    assert (checkpoint["rung"], checkpoint["held"]) == ("checkpoint", False)
    assert (config["rung"], config["held"]) == ("config", True)
    assert config["changes"] == {RATE: [0.01, 0.0001]}
    assert config["proofs"] == [{"name": RATE, "wanted": 1e-4, "restored": 2.5e-3, "found": 1e-4, "ok": True}]
    assert config["passed_over"] == {"checkpoint": "recovery r1 had succeeded, and the same failure is back"}
    names = [moment.name for moment in result.timeline]
    assert names[:4] == ["bad configuration", "first verdict", "alert firing", "webhook received"]
    assert names.index("checkpoint: held for now") < names.index("config: plan") < names.index("config: recovered")
    told = {moment.name: moment.note for moment in result.timeline}
    assert told["config: change"] == f"{RATE}: 0.01 -> 0.0001"
    assert told["config: proof"] == f"{RATE}: wanted 0.0001, the checkpoint brought 0.0025, in effect 0.0001"
    assert result.summary["recovery_seconds"] == 40.0


def test_a_rung_that_follows_a_failed_one_begins_when_that_one_did_not_hold() -> None:
    follows = second()
    follows["times"]["alert_received"] = None
    seen = climbed(recovery(stage="failed", outcome="Attempt 2 failed too", climbed_to="r2"), follows)

    result = conclude(SCENARIOS["bad_config"], seen)

    assert result.ok
    assert result.summary["recovery_seconds"] == 39.9
    assert {moment.name: moment.note for moment in result.timeline}[
        "checkpoint: did not hold"
    ] == "Attempt 2 failed too"


def test_pages_of_attempts_that_were_recovered_from_are_true_and_later_ones_are_not() -> None:
    incidents = [page(detector="surge"), page(detector="surge", attempt=2), page(detector="surge", attempt=3)]
    result = conclude(SCENARIOS["bad_config"], climbed(recovery(), second(), incidents=incidents))

    assert result.summary["false_pages"] == 1
    assert not result.ok


@pytest.mark.parametrize(
    ("recoveries", "rates", "words"),
    [
        ([recovery()], {2: 0.007}, "the rungs taken were checkpoint; promised were checkpoint, config"),
        ([recovery(), second(changes=[])], {3: 1e-4}, f"the configuration's {RATE} was not changed"),
        ([recovery(), second(proofs=[])], {3: 1e-4}, "was not proved to be in effect: there is no word of it"),
        (
            [recovery(), second(proofs=[PROOF, {**PROOF, "ok": False, "reason": "no optimizer"}])],
            {3: 1e-4},
            "was not proved to be in effect: no optimizer",
        ),
        ([recovery(), second()], {3: 0.0025}, "the trainer logs a rate of 0.0025, and 0.0001 was set"),
        ([recovery(), second(action="restart")], {3: 1e-4}, "a restart was done; promised was a rollback"),
    ],
)
def test_a_configuration_that_was_not_changed_with_effect_is_no_success(
    recoveries: list[dict[str, Any]], rates: dict[int, float], words: str
) -> None:
    result = conclude(SCENARIOS["bad_config"], climbed(*recoveries, rates=rates))

    assert words in result.outcome
    assert not result.ok


def versioned(**changes: Any) -> Observation:
    version = {"name": "verl_version", "kind": "run", "old": "0.9.2", "new": "0.9.1", "known": True}
    passed = {"rung": "config", "taken": False, "reason": "the configuration that ran healthy is the present one"}
    last = second(rung="version", attempt=3, new_attempt=4, changes=[version], considered=[passed], proofs=[])
    fields: dict[str, Any] = {
        "fault": {"time": 990.0, "step": 21, "fault": "bad_version"},
        "incidents": [page(detector="surge", attempt=2), page(detector="surge", attempt=3)],
        "recoveries": [recovery(attempt=2, new_attempt=3), last],
        "first_steps": {1: (1, 940.0), 2: (22, 991.0), 3: (16, 1044.0), 4: (16, 1144.0)},
        "versions": {1: "0.9.1", 2: "0.9.2", 3: "0.9.2", 4: "0.9.1"},
        **changes,
    }
    return observed(**fields)


def test_a_version_is_back_when_the_run_says_so_itself() -> None:
    result = conclude(SCENARIOS["bad_version"], versioned())

    assert result.outcome == "recovered"
    assert [rung["verl_version"] for rung in result.summary["rungs"]] == ["0.9.2", "0.9.1"]
    assert result.summary["rungs"][1]["changes"] == {"verl_version": ["0.9.2", "0.9.1"]}


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({1: "0.9.1", 2: "0.9.2", 4: "0.9.2"}, "the run is on verl 0.9.2; the last that ran healthy is 0.9.1"),
        ({1: "0.9.1", 2: "0.9.1", 4: "0.9.1"}, "the run was not moved to another version"),
    ],
)
def test_a_version_that_is_not_back_is_no_success(versions: dict[int, str], words: str) -> None:
    assert words in conclude(SCENARIOS["bad_version"], versioned(versions=versions)).outcome


DAMAGED = {**FAULT, "fault": "corrupt_checkpoint", "damaged": "global_step_25/actor/model_world_size_1_rank_0.pt"}


@pytest.mark.parametrize(
    ("target", "output", "words"),
    [
        (20, ["step 25 is refused: actor/model_world_size_1_rank_0.pt is not as it was saved."], "recovered"),
        (20, [], "the damaged checkpoint of step 25 was not named"),
        (25, ["step 25 is refused: damaged"], "the checkpoint of step 25 is damaged, and the run went back to 25"),
    ],
)
def test_a_damaged_checkpoint_has_to_be_named_and_not_taken(target: int, output: list[str], words: str) -> None:
    newer = "verl-sentinel: step 30 is refused: It was saved at step 30, after step 25, the newest allowed."
    told = [newer, *(f"verl-sentinel: {line}" for line in output), "rollback: the target is global_step_20"]
    seen = observed(fault=DAMAGED, recoveries=[recovery(target_step=target, output=told)])
    result = conclude(SCENARIOS["corrupt_checkpoint"], seen)

    assert words in result.outcome
    assert result.summary["rungs"][0]["refused_checkpoints"] == output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "recovered"),
        ({"most_memory": 6.5 * 1024**3}, "the run held 6.5 GiB before it was restarted, and it may hold 5"),
        ({"last_steps": {1: 40, 2: 50}}, "4 steps were lost in the restart"),
    ],
)
def test_a_restart_comes_before_the_limit_and_loses_no_step(changes: dict[str, Any], words: str) -> None:
    fields: dict[str, Any] = {
        "fault": {"time": 1000.0, "step": 16, "fault": "memory_leak"},
        "incidents": [page(detector="memory", signal="run_memory")],
        "recoveries": [recovery(action="restart", target_step=36)],
        "first_steps": {1: (1, 940.0), 2: (37, 1044.0)},
        "last_steps": {1: 36, 2: 50},
        "most_memory": 4.0 * 1024**3,
        **changes,
    }
    result = conclude(SCENARIOS["memory_leak"], observed(**fields))

    assert words in result.outcome
