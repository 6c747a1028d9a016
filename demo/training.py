"""The supervised trainer of the demo: the stock verl trainer on the toy, with the fault that a scenario asks for.

Called by :mod:`demo.run`, which brings the run back, and by :mod:`demo.record`, which lets the fault take its course.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from demo.processes import Child
from demo.scenarios import Scenario
from demo.stack import Stack, environment_of_trainer
from demo.toy import Toy, environment, overrides


def state_directory(out: Path) -> Path:
    """Where the supervisor keeps its state, and where a fault writes that it has happened."""
    return out / "state"


def supervised(
    scenario: Scenario,
    toy: Toy,
    stack: Stack,
    out: Path,
    run_id: str,
    seed: int,
    *,
    python: str = sys.executable,
    more: Mapping[str, str] | None = None,
) -> Child:
    """The supervisor with its trainer, not started yet.

    Args:
        python: the interpreter of both.
        more: environment variables that they get beside those of the scenario.
    """
    return Child(
        "the supervisor",
        [
            *(python, "-m", "trainer_entry.cli", "run"),
            *("--state-dir", str(state_directory(out)), "--run-id", run_id, "--url", stack.exporter_url),
            *("--clean-stop-seconds", "60"),
            "--",
            *(python, "-m", "trainer_entry.main_ppo"),
            *overrides(toy, out / "checkpoints", steps=scenario.steps, seed=seed),
            # Of two words for one setting, Hydra takes the later.
            *scenario.settings,
        ],
        out / "logs" / "trainer.log",
        env={**_trainer_environment(stack, scenario, out), **(more or {})},
    )


def _trainer_environment(stack: Stack, scenario: Scenario, out: Path) -> dict[str, str]:
    env = environment_of_trainer(stack, environment(os.environ))
    env["VERL_FILE_LOGGER_PATH"] = str(out / "metrics.jsonl")
    if scenario.memory_limit_gib is not None:
        env["VERL_SENTINEL_MEMORY_LIMIT"] = f"{scenario.memory_limit_gib}GiB"
    if scenario.fault_step is not None:
        env.update(
            {
                "VERL_USE_EXTERNAL_MODULES": "demo.faults",
                "VERL_SENTINEL_DEMO_FAULT": scenario.name,
                "VERL_SENTINEL_DEMO_FAULT_STEP": str(scenario.fault_step),
                "VERL_SENTINEL_DEMO_CHECKPOINTS": str(out / "checkpoints"),
            }
        )
    return env
