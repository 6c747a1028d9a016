"""What an operator, and the rollback script, ask of a run at the command line. Called by :mod:`trainer_entry.cli`.

Each goes through the supervisor's control socket; where none is alive, it is done from the records in the state
directory. Steps of a script that a supervisor runs itself never fall back: that supervisor is then dead, and its
successor goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import time

from trainer_entry.changes import words_of
from trainer_entry.supervisor import exitcodes, offline
from trainer_entry.supervisor.attempts import Attempt
from trainer_entry.supervisor.changing import asked_changes
from trainer_entry.supervisor.command import state_of
from trainer_entry.supervisor.control import ControlAnswer, ControlRequest, NoSupervisor, ask
from trainer_entry.supervisor.keeping import scripts_of
from trainer_entry.supervisor.output import say
from trainer_entry.supervisor.script import INSTANCE_VARIABLE, script_of, script_variables
from trainer_entry.supervisor.state import StateDir, StateError


def status(parsed: argparse.Namespace) -> int:
    """Print how the run is, at once, or when its latest attempt has proved a change."""
    state = state_of(parsed)
    if parsed.wait_for and not _proved(state, parsed.wait_for, parsed.wait_seconds):
        return exitcodes.NOT_STARTED
    found = _found(state)
    if parsed.json:
        print(json.dumps(found))
    else:
        width = max(len(name) for name in found)
        for name, value in found.items():
            print(f"{name:<{width}}  {'-' if value in (None, '') else value}")
    return exitcodes.OK


def _found(state: StateDir) -> dict[str, object]:
    try:
        return {**(_ask(state, ControlRequest(op="status")).status or {}), "supervisor": True}
    except NoSupervisor:
        return {**offline.status(state), "supervisor": False}


def _proved(state: StateDir, name: str, seconds: float) -> bool:
    """Wait until the latest attempt has proved that a change took effect; False, and said, where it has not."""
    deadline = time.monotonic() + seconds
    while True:
        run = offline.recorded_run(state)
        for proof in offline.applied(state, run.attempt):
            if proof.name == name:
                if not proof.ok:
                    say(f"{name} is {proof.found}, not {proof.wanted}: {proof.reason or 'it was not applied'}")
                return proof.ok
        attempt = Attempt.existing(state, run.attempt)
        if attempt is None or attempt.exit() is not None or time.monotonic() >= deadline:
            why = "has ended" if attempt is None or attempt.exit() is not None else f"did not within {seconds:g} s"
            say(f"attempt {run.attempt} has not shown that {name} took effect; it {why}")
            return False
        time.sleep(0.2)


def stop(parsed: argparse.Namespace) -> int:
    """Stop the trainer."""
    state = state_of(parsed)
    request = ControlRequest(
        op="stop",
        request_id=parsed.request_id,
        reason=parsed.reason,
        for_rollback=parsed.for_rollback or parsed.save_first,
        save_first=parsed.save_first,
        target=os.path.abspath(parsed.target) if parsed.target else "",
        instance=_instance(),
    )
    try:
        return _tell(_ask(state, request))
    except NoSupervisor as error:
        if request.instance:
            return _tell(ControlAnswer(detail=str(error), code=exitcodes.NOT_STOPPED))
    say("no supervisor is alive; stopping the trainer by its record")
    try:
        done, well = offline.stop_run(
            state, for_rollback=request.for_rollback, save_first=parsed.save_first, reason=parsed.reason, say=say
        )
    except StateError as error:
        say(str(error))
        return exitcodes.NOT_STOPPED
    print(done)
    return exitcodes.NOT_SAVED if parsed.save_first and not well else exitcodes.OK


def resume(parsed: argparse.Namespace) -> int:
    """Start a stopped run from a checkpoint."""
    state = state_of(parsed)
    target = os.path.abspath(parsed.target)
    changes = asked_changes(parsed, state, parsed.target)
    request = ControlRequest(
        op="resume",
        changes=changes,
        forget_changes=parsed.forget_changes,
        request_id=parsed.request_id,
        reason=parsed.reason,
        target=target,
        depth=parsed.depth,
        instance=_instance(),
    )
    try:
        return _tell(_ask(state, request))
    except NoSupervisor as error:
        if request.instance:
            return _tell(ControlAnswer(detail=str(error), code=exitcodes.NOT_STARTED))
    before = offline.recorded_run(state).attempt
    words = offline.record_resume(state, target, parsed.request_id, changes, forget=parsed.forget_changes)
    if parsed.start_supervisor:
        print(offline.start_supervisor(state, before, parsed.environments_dir))
        return exitcodes.OK
    print(f"No supervisor is alive. The target is recorded; start from it with: {words}")
    return exitcodes.NO_SUPERVISOR


def rollback(parsed: argparse.Namespace) -> int:
    """Have the supervisor roll back; without one, become the script."""
    state = state_of(parsed)
    changes = asked_changes(parsed, state, None)
    request = ControlRequest(
        op="rollback",
        rung=parsed.rung,
        changes=changes,
        save_first=parsed.save_first,
        request_id=parsed.request_id,
        reason=parsed.reason,
        target_step=parsed.target_step,
        not_after_step=parsed.not_after_step,
    )
    try:
        return _tell(_ask(state, request))
    except NoSupervisor:
        say("no supervisor is alive; running the rollback script")
    scripts = scripts_of(offline.recorded_run(state).kept, given=False, say=say)
    words = ["bash", str(script_of(parsed.rung, scripts)), "--state-dir", str(state.path)]
    for option in ("target_step", "not_after_step", "request_id", "reason"):
        if (value := getattr(parsed, option)) not in (None, ""):
            words += ["--" + option.replace("_", "-"), str(value)]
    words += [*(["--save-first"] if parsed.save_first else []), *words_of(changes)]
    os.environ.update(script_variables(""))
    os.execvp("bash", words)


def _instance() -> str:
    return os.environ.get(INSTANCE_VARIABLE, "")


def _ask(state: StateDir, request: ControlRequest) -> ControlAnswer:
    """The final answer; progress is shown meanwhile. Raises NoSupervisor, StateError."""
    if not state.path.is_dir():
        raise StateError(f"There is no run in {state.path}; give its --state-dir, or its --run-id.")
    for answer in ask(state, request):
        if answer.final:
            return answer
        say(f"{answer.state}: {answer.detail}" if answer.detail else answer.state)
    raise StateError("The supervisor ended before it answered.")


def _tell(answer: ControlAnswer) -> int:
    if answer.code:
        say(answer.detail)
    else:
        print(answer.detail)
    return answer.code
