"""A recovery that went well, as its post-mortem is made of it; tests change what they are about."""

from __future__ import annotations

import math
from typing import Any

from exporter.postmortem.material import About, Finding, Material, Step
from exporter.recovery.changes import Difference
from exporter.recovery.facts import Candidate
from exporter.recovery.record import AuditEntry, ConsideredRung, Recovery, StageResult, Timeline

START = 1_700_000_000.0
HOSTILE = "a/b <script>alert(1)</script> [x](javascript:alert(2)) | ` **b**\n# head ![i](http://evil/x.png) 跑"

TIMES = Timeline(
    alert_received=START + 100.0,
    planned=START + 100.5,
    commanded=START + 130.0,
    approved=START + 130.0,
    command_delivered=START + 131.0,
    accepted=START + 131.5,
    stopping=START + 131.5,
    stopped=START + 136.0,
    starting=START + 136.0,
    started=START + 137.0,
    first_healthy_step=START + 180.0,
    succeeded=START + 184.0,
    finished=START + 184.0,
)


def recovery(**changed: Any) -> Recovery:
    values: dict[str, Any] = {
        "id": "r1",
        "run_id": "run-1",
        "attempt": 1,
        "mode": "approve",
        "action": "rollback",
        "stage": "succeeded",
        "stage_since": START + 184.0,
        "reason": "loss is NaN.",
        "outcome": "Attempt 2 has pushed 3 healthy steps in a row past step 20.",
        "incidents": (
            {"id": "run-1:non_finite:loss:1", "detector": "non_finite", "signal": "loss", "severity": "critical",
             "onset": 31, "score": 5.0, "threshold": 0.0, "confidence": 1.0, "summary": "loss is NaN for 5 steps"},
        ),
        "onset": 31,
        "not_after_step": 29,
        "planned_target_step": 20,
        "planned_target_path": "/ckpt/global_step_20",
        "planned_at_step": 36,
        "target_step": 20,
        "new_attempt": 2,
        "first_healthy_step": 21,
        "resolved_by": "night shift",
        "candidates": (
            Candidate(30, "/ckpt/global_step_30", 1, False, "newer than step 29"),
            Candidate(20, "/ckpt/global_step_20", 1, True, "verified"),
        ),
        "changes": (Difference(name="attempt", kind="run", old=1, new=2),),
        "considered": (ConsideredRung(rung="checkpoint", taken=True, reason="back to step 20"),),
        "stages": (StageResult(stage="policy", result="It allows it.", refused=("a warning may trigger nothing",)),),
        "times": TIMES,
    }  # fmt: skip
    return Recovery(**{**values, **changed})


def steps() -> list[Step]:
    """36 steps of attempt 1, two seconds each, broken from 32 on; three of attempt 2."""
    failed = [
        Step(
            number,
            1,
            START + 2.0 * number,
            {"loss": math.nan if number >= 32 else 0.2, "kl": 0.01 if number < 32 else 5.0, "lr": 1e-6},
        )
        for number in range(1, 37)
    ]
    again = [Step(20 + n, 2, START + 178.0 + 2.0 * n, {"loss": 0.2, "kl": 0.01, "lr": 1e-6}) for n in (1, 2, 3)]
    return [*failed, *again]


def material(it: Recovery | None = None, **changed: Any) -> Material:
    found = it or recovery()
    values: dict[str, Any] = {
        "gathered_at": START + 200.0,
        "recovery": found,
        "chain": [found],
        "audit": [
            AuditEntry(
                id=1, at=START + 100.5, run_id=found.run_id, recovery_id=found.id, kind="planned", summary="x", data={}
            )
        ],
        "about": About(project="p", experiment="e", trainer="ppo_v1", verl_version="0.9.1", attempt=2, step=23),
        "findings": [
            Finding(
                id="run-1:non_finite:loss:1", detector="non_finite", signal="loss", severity="critical", attempt=1,
                onset=31, first_step=32, summary="loss is NaN for 5 steps", meaning="m",
                advice=("actor.optim.lr: lower it",), opened_at=START + 70.0,
            )
        ],
        "steps": steps(),
    }  # fmt: skip
    return Material(**{**values, **changed})
