"""``verl-sentinel-train run``: from the command line to a supervisor. Called by :mod:`trainer_entry.cli`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from exporter.protocol import Asked, Changes, Run
from trainer_entry import settings
from trainer_entry.checkpoints.tiers.copying import refuse_inside
from trainer_entry.checkpoints.tiers.jobs import RunNote, Workplace
from trainer_entry.checkpoints.tiers.policy_file import read_policy
from trainer_entry.supervisor import overrides
from trainer_entry.supervisor.hand import check as check_hand
from trainer_entry.supervisor.keeping import environments_of, kept, limits_of, scripts_of
from trainer_entry.supervisor.lifecycle import usable_cwd
from trainer_entry.supervisor.options import Options
from trainer_entry.supervisor.output import say
from trainer_entry.supervisor.overrides import OverrideError, TrainerCommand
from trainer_entry.supervisor.reporting import NoReporter, PushReporter, Reporter, configure
from trainer_entry.supervisor.state import Kept, RunRecord, StateDir, StateError
from trainer_entry.supervisor.supervise import Supervisor

WAIT_FOR_COMMAND_SECONDS = 900.0
"""Longer than the exporter's cooldown: a run that dies while that lasts is rolled back when it is over."""

COPIES_SECONDS = 3600.0
"""How long the end of a run waits for its last copies, unless it is said."""

WORD_SECONDS = 5.0
"""A few heartbeats: a supervisor that takes over half a command asks first whether it was called off meanwhile."""


def run(parsed: argparse.Namespace) -> int:
    """Supervise until the run ends. Raises what keeps it from starting, each with a sentence."""
    words = parsed.trainer[1:] if parsed.trainer[:1] == ["--"] else parsed.trainer
    state, given = _identify(parsed, words)
    state.create()
    with state.locked():
        record = _merge(state, state.read_run(), given, parsed)
        if parsed.forget_changes:
            record = replace(record, changes=Changes(), skip_from=None)
        _take_up(record.kept, started_anew=given is not None)
        trainer = overrides.parse(record.argv, usable_cwd(record.cwd))
        configured = configure(record.url, record.run_id, state.path)
        scripts = scripts_of(record.kept, given=parsed.rollback_scripts is not None, say=say)
        hand = check_hand(record.executor, Path(record.executor_settings) if record.executor_settings else None)
        policy = _checked_policy(parsed.checkpoint_policy, state, record)
        state.write_run(record)

        def connect(attempt: int, on_command: Callable[[Asked], None]) -> Reporter:
            if configured is None:
                say("there is no exporter (--url off): commands come through control.sock only")
                return NoReporter()
            identity = Run(
                run_id=record.run_id,
                attempt=attempt,
                project=record.project,
                experiment=record.experiment,
                cohort=configured.cohort,
            )
            return PushReporter(configured, identity, on_command=on_command, say=say)

        options = Options(
            limits=limits_of(record.kept),
            scripts=scripts.absolute(),
            environments=environments_of(parsed, record.kept),
            wait_for_command_seconds=_wait(record.kept.wait_for_command_seconds, configured is not None),
            word_seconds=WORD_SECONDS if configured is not None else 0.0,
            copies_seconds=COPIES_SECONDS if record.kept.copies_seconds is None else record.kept.copies_seconds,
            follow=not parsed.quiet,
            hand=hand,
        )
        supervisor = Supervisor(
            state, record, command=trainer, options=options, connect=connect, environ={**os.environ, **policy}, say=say
        )
        return supervisor.run()


def state_of(parsed: argparse.Namespace) -> StateDir:
    """The state directory that the options or the environment name. Raises OverrideError."""
    given = parsed.state_dir or os.environ.get(settings.STATE_DIR)
    if given:
        return StateDir(given)
    run_id = parsed.run_id or os.environ.get(settings.RUN_ID)
    if not run_id:
        raise OverrideError("It is not said which run is meant; give --state-dir or --run-id.")
    return StateDir(settings.default_state_dir(_checked(run_id)))


def _identify(parsed: argparse.Namespace, words: list[str]) -> tuple[StateDir, RunRecord | None]:
    """The state directory, and the run that the command line describes; None where it gives no trainer."""
    if not words:
        return state_of(parsed), None
    trainer = overrides.parse(words, os.getcwd())
    root = _checkpoint_dir(parsed.checkpoint_dir, trainer)
    project, experiment = trainer.names
    run_id = parsed.run_id or os.environ.get(settings.RUN_ID) or settings.derive_run_id(project, experiment, root)
    given = parsed.state_dir or os.environ.get(settings.STATE_DIR) or settings.default_state_dir(_checked(run_id))
    url = parsed.url if parsed.url is not None else os.environ.get(settings.URL, settings.DEFAULT_URL)
    executor, file = _executor(parsed, None)
    record = RunRecord(
        run_id=_checked(run_id),
        argv=list(trainer.argv),
        cwd=trainer.cwd,
        checkpoint_dir=root,
        project=project,
        experiment=experiment,
        url=url,
        executor=executor,
        executor_settings=file,
        kept=kept(parsed, Kept(), os.environ),
    )
    return StateDir(given), record


def _merge(state: StateDir, stored: RunRecord | None, given: RunRecord | None, parsed: argparse.Namespace) -> RunRecord:
    """What was stored, with the command line that was given. Raises StateError where they are of two runs."""
    if given is None:
        if stored is None:
            raise StateError(f"There is no run in {state.path} yet; give the trainer's command after '--'.")
        url = parsed.url if parsed.url is not None else os.environ.get(settings.URL, "") or stored.url
        root = stored.checkpoint_dir if parsed.checkpoint_dir is None else os.path.abspath(parsed.checkpoint_dir)
        executor, file = _executor(parsed, stored)
        given = replace(
            stored,
            url=url,
            checkpoint_dir=root,
            run_id=parsed.run_id or stored.run_id,
            executor=executor,
            executor_settings=file,
            kept=kept(parsed, stored.kept, os.environ),
        )
    if stored is None:
        return given
    if stored.checkpoint_dir != given.checkpoint_dir or (parsed.run_id and parsed.run_id != stored.run_id):
        raise StateError(
            f"The state directory {state.path} is of run {stored.run_id} with checkpoints in {stored.checkpoint_dir}, "
            f"not of run {given.run_id} with {given.checkpoint_dir}; give this run a --state-dir of its own."
        )
    if stored.argv != given.argv and stored.attempt:
        say("the trainer's command differs from the recorded one; the new one is used from the next start on")
    return replace(
        stored,
        argv=given.argv,
        cwd=given.cwd,
        url=given.url,
        project=given.project,
        experiment=given.experiment,
        executor=given.executor,
        executor_settings=given.executor_settings,
        kept=given.kept,
    )


def _executor(parsed: argparse.Namespace, stored: RunRecord | None) -> tuple[str, str]:
    """The executor's name and the absolute path of its settings, as given, else as stored."""
    if parsed.executor is None and parsed.executor_settings is None and stored is not None:
        return stored.executor, stored.executor_settings
    name: str = parsed.executor or (stored.executor if stored is not None else "local")
    return name, os.path.abspath(parsed.executor_settings) if parsed.executor_settings is not None else ""


def _checked_policy(given: Path | None, state: StateDir, record: RunRecord) -> dict[str, str]:
    """The variable that tells the trainer of the tiers' policy, once that was checked and noted; empty without one.

    Raises PolicyError for a mistake in it, rather than that a night passes without copies, and StateError.
    """
    path = os.path.abspath(given) if given is not None else os.environ.get(settings.CHECKPOINTS, "").strip()
    note = Workplace(state.path).run_note()
    path = path or (note.policy if note is not None else "")
    if not path:
        return {}
    path = os.path.abspath(path)
    policy = read_policy(path)
    for tier in policy.tiers:
        for place in tier.places:
            refuse_inside(place, record.checkpoint_dir)
    try:
        Workplace(state.path).note_run(RunNote(run_id=record.run_id, checkpoint_dir=record.checkpoint_dir, policy=path))
    except OSError as error:
        raise StateError(f"The state directory {state.path} cannot be written: {error.strerror}.") from error
    return {settings.CHECKPOINTS: path}


def _take_up(run: Kept, *, started_anew: bool) -> None:
    """Have what this shell does not say of our own variables as the run keeps it, for all that is started from here."""
    for name, value in run.environ.items():
        if name != settings.TOKEN_FILE or not os.environ.get(settings.TOKEN):
            os.environ.setdefault(name, value)
    if (
        run.token_given
        and not started_anew
        and not any(os.environ.get(n) for n in (settings.TOKEN, settings.TOKEN_FILE))
    ):
        say(
            f"the run was started with a token in {settings.TOKEN}, which is kept nowhere; without one the exporter "
            f"may refuse what it is told. Start it with {settings.TOKEN_FILE}, whose path is kept."
        )


def _wait(given: float | None, exporter: bool) -> float:
    """Without an exporter nobody will command anything by itself, so a crash then ends the supervisor at once."""
    if given is not None:
        return given
    return WAIT_FOR_COMMAND_SECONDS if exporter else 0.0


def _checkpoint_dir(given: Path | None, trainer: TrainerCommand) -> str:
    return os.path.abspath(given) if given is not None else trainer.checkpoint_dir(os.environ)


def _checked(run_id: str) -> str:
    """Raises settings.SettingsError for a run id that could not be a label or a folder."""
    settings.read_settings({settings.URL: settings.DEFAULT_URL, settings.RUN_ID: run_id})
    return run_id
