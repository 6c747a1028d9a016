"""What an operator, and the rollback script, ask of a run at the command line. Called by :mod:`trainer_entry.cli`.

Each goes through the supervisor's control socket; where none is alive, it is done from the records in the state
directory. Steps of a script that a supervisor runs itself never fall back: that supervisor is then dead, and its
successor goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from trainer_entry import checkpoints
from trainer_entry.supervisor import exitcodes, offline
from trainer_entry.supervisor.command import state_of
from trainer_entry.supervisor.control import ControlAnswer, ControlRequest, NoSupervisor, ask
from trainer_entry.supervisor.output import say
from trainer_entry.supervisor.script import INSTANCE_VARIABLE, PYTHON_VARIABLE, default_script
from trainer_entry.supervisor.state import StateDir, StateError


def status(parsed: argparse.Namespace) -> int:
    """Print how the run is."""
    state = state_of(parsed)
    try:
        found = _ask(state, ControlRequest(op="status")).status or {}
        found["supervisor"] = True
    except NoSupervisor:
        found = {**offline.status(state), "supervisor": False}
    if parsed.json:
        print(json.dumps(found))
    else:
        width = max(len(name) for name in found)
        for name, value in found.items():
            print(f"{name:<{width}}  {'-' if value in (None, '') else value}")
    return exitcodes.OK


def stop(parsed: argparse.Namespace) -> int:
    """Stop the trainer."""
    state = state_of(parsed)
    request = ControlRequest(
        op="stop",
        request_id=parsed.request_id,
        reason=parsed.reason,
        for_rollback=parsed.for_rollback,
        instance=_instance(),
    )
    try:
        return _tell(_ask(state, request))
    except NoSupervisor as error:
        if request.instance:
            return _tell(ControlAnswer(detail=str(error), code=exitcodes.NOT_STOPPED))
    say("no supervisor is alive; stopping the trainer by its record")
    try:
        print(offline.stop_run(state, for_rollback=parsed.for_rollback, reason=parsed.reason, say=say))
    except StateError as error:
        say(str(error))
        return exitcodes.NOT_STOPPED
    return exitcodes.OK


def resume(parsed: argparse.Namespace) -> int:
    """Start a stopped run from a checkpoint."""
    state = state_of(parsed)
    target = os.path.abspath(parsed.target)
    request = ControlRequest(
        op="resume",
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
    words = offline.record_resume(state, target, parsed.request_id)
    if parsed.start_supervisor:
        print(offline.start_supervisor(state, before))
        return exitcodes.OK
    print(f"No supervisor is alive. The target is recorded; start from it with: {words}")
    return exitcodes.NO_SUPERVISOR


def rollback(parsed: argparse.Namespace) -> int:
    """Have the supervisor roll back; without one, become the script."""
    state = state_of(parsed)
    request = ControlRequest(
        op="rollback",
        request_id=parsed.request_id,
        reason=parsed.reason,
        target_step=parsed.target_step,
        not_after_step=parsed.not_after_step,
    )
    try:
        return _tell(_ask(state, request))
    except NoSupervisor:
        say("no supervisor is alive; running the rollback script")
    words = ["bash", str(default_script()), "--state-dir", str(state.path)]
    for option in ("target_step", "not_after_step", "request_id", "reason"):
        if (value := getattr(parsed, option)) not in (None, ""):
            words += ["--" + option.replace("_", "-"), str(value)]
    os.environ[PYTHON_VARIABLE] = sys.executable
    os.execvp("bash", words)


def list_checkpoints(parsed: argparse.Namespace) -> int:
    """Print all checkpoints, newest first."""
    root = _root(parsed)
    found = checkpoints.list_checkpoints(root, parsed.depth)
    for result in found:
        print(f"{result.step}\t{'verified (' + result.depth + ')' if result.ok else 'refused'}\t{result.reason or '-'}")
    if not found:
        print(f"There are no checkpoints in {root}.")
    return exitcodes.OK


def verify_checkpoint(parsed: argparse.Namespace) -> int:
    """Print whether one checkpoint may be restored."""
    result = checkpoints.verify(parsed.directory)
    if not result.ok:
        say(f"{result.path} may not be restored. {result.reason}")
        return exitcodes.NO_CHECKPOINT
    size = result.manifest.bytes if result.manifest else 0
    print(f"{result.path} is verified: {size} bytes, {result.seconds:.1f} s.")
    return exitcodes.OK


def choose_checkpoint(parsed: argparse.Namespace) -> int:
    """Print the path of the chosen checkpoint on standard output, and what was refused on standard error."""
    root = _root(parsed)
    limits = [step for step in (parsed.target_step, parsed.not_after_step) if step is not None]
    choice = checkpoints.newest_verified(root, min(limits) if limits else None, depth=parsed.depth)
    for refused in choice.refused:
        say(f"step {refused.step} is refused: {refused.reason}")
    if choice.chosen is None:
        say(f"no checkpoint in {root} may be restored")
        return exitcodes.NO_CHECKPOINT
    print(choice.chosen.path)
    return exitcodes.OK


def _root(parsed: argparse.Namespace) -> Path:
    given: Path | None = parsed.checkpoint_dir
    return given if given is not None else offline.checkpoint_root(state_of(parsed))


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
