"""Faults with real causes in the real trainer, for the demo and the tests of the closed loop.

A verl plugin, loaded in every process of a run through `VERL_USE_EXTERNAL_MODULES=demo.faults`. It does nothing unless

- `VERL_SENTINEL_DEMO_FAULT` names a fault (see `demo.faults.plan.Fault`) and `VERL_SENTINEL_DEMO_FAULT_STEP` its step,
- and this is the first attempt of the run (`VERL_SENTINEL_ATTEMPT` is 1): a restart heals it, as it heals a bad node;

or `VERL_SENTINEL_DEMO_FAULTS` names several, of which each attempt gets one.

Only the V1 trainer is covered: the faults find the step there.
"""

import os

from demo.faults.plan import plan_from


def _activate() -> None:
    plan = plan_from(os.environ)
    if plan is not None:
        from demo.faults.causes import arm

        arm(plan)


_activate()
