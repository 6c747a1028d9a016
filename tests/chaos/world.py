"""One scenario's world: exporter, Prometheus, Alertmanager, supervisors and trainers, and what can be done to them.

All of it in one folder, on ports of its own, with wires that can be cut, and ended by process id afterwards. Used by
:mod:`tests.chaos.play`. A world is used by one thread; its timers (a wire that is mended, a program that goes on) run
on theirs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from demo.client import answers, watches
from tests.chaos import programs
from tests.chaos.asking import post, post_at_once
from tests.chaos.network import Condition, Link
from tests.chaos.pager import Pager
from tests.chaos.programs import Init, Program
from tests.chaos.subject import Run
from tests.chaos.witness import alive

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
LINKS = (
    "trainer-exporter",
    "supervisor-exporter",
    "prometheus-exporter",
    "alertmanager-exporter",
    "prometheus-alertmanager",
)
DISKS = ("exporter", "state", "checkpoints")
DISK_BYTES = 24 * 1024 * 1024
Victim = Literal[
    "supervisor", "exporter", "trainer", "worker", "prometheus", "alertmanager", "attempt", "script", "tool"
]
"""``attempt``: the attempt process between supervisor and trainer. ``script``: the rollback script, while it runs.
``tool``: what the script has build and check another environment."""
ALWAYS: tuple[Victim, ...] = tuple(victim for victim in get_args(Victim) if victim != "tool")
"""Those of every recovery."""
OF_A_RUN = ("trainer", "worker", "attempt", "script", "tool")
RECOVERY: Mapping[str, Any] = {
    "mode": "auto",
    "trigger": "alertmanager",
    "cooldown_seconds": 3.0,
    "budget_per_day": 4,
    "success_steps": 4,
    "deadlines": {
        "command_seconds": 30.0,
        "prepare_seconds": 45.0,
        "stop_seconds": 45.0,
        "start_seconds": 45.0,
        "step_seconds": 40.0,
    },
}
"""A policy as fast as the trainer, on a machine that has other things to do; otherwise the defaults."""


class Interrupted(Exception):
    """The whole suite is being ended."""


class World:
    """Everything that one scenario needs; :meth:`close` ends all of it, whatever happened."""

    def __init__(
        self,
        out: Path,
        *,
        runs: int = 1,
        recovery: Mapping[str, Any] | None = None,
        words: Mapping[str, str] | None = None,
        small_disks: frozenset[str] = frozenset(),
        own_clock: bool = False,
        interrupted: threading.Event | None = None,
    ) -> None:
        self.out = out
        self.small_disks = small_disks
        self.mark = uuid.uuid4().hex
        self.environment = {**programs.environment(self.mark), "PYTHONPATH": str(REPOSITORY)}
        self.interrupted = interrupted or threading.Event()
        self.story: list[str] = []
        """What was done and seen, with seconds since the start."""
        self.began = time.monotonic()
        self._timers: list[threading.Timer] = []
        self._mounts: list[Path] = []
        self._closed = False
        self.tokens = programs.write_tokens(out / "tokens")
        ports = programs.free_ports(3)
        self.exporter_at, self.prometheus_at, self.alertmanager_at = (f"127.0.0.1:{port}" for port in ports)
        targets = {"exporter": ("127.0.0.1", ports[0]), "alertmanager": ("127.0.0.1", ports[2])}
        self.links = {name: Link(name, targets[name.rpartition("-")[2]]) for name in LINKS}
        self.pager = Pager()
        self.init = Init()
        if "exporter" in small_disks:
            self.mount(out / "exporter")
        self.clock_file = out / "clock"
        clock = programs.clock_of(self.clock_file) if own_clock else {}
        self.exporter = programs.exporter(
            out, self.exporter_at, self.tokens, {**RECOVERY, **(recovery or {})}, {**self.environment, **clock}
        )
        self.prometheus = programs.prometheus(
            out,
            ports[1],
            self.links["prometheus-exporter"].address,
            self.links["prometheus-alertmanager"].address,
            self.environment,
        )
        self.alertmanager = programs.alertmanager(
            out,
            ports[2],
            self.links["alertmanager-exporter"].address,
            self.tokens["alert"],
            self.pager.url,
            self.environment,
        )
        self.runs = [self._run(f"chaos-{number + 1}", words or {}) for number in range(runs)]

    def _run(self, name: str, words: Mapping[str, str]) -> Run:
        urls = {who: f"http://{self.links[f'{who}-exporter'].address}" for who in ("trainer", "supervisor")}
        run = Run(self.out, name, urls=urls, token=self.tokens["push"], words=words, environment=self.environment)
        for disk in self.small_disks & {"state", "checkpoints"}:
            self.mount(run.state if disk == "state" else run.checkpoints)
        return run

    @property
    def run(self) -> Run:
        """The first, and mostly only, run."""
        return self.runs[0]

    def say(self, sentence: str) -> None:
        self.story.append(f"{time.monotonic() - self.began:6.1f} s  {sentence}")

    def start(self) -> None:
        """Start everything, and wait until it watches and every run has trained past two good checkpoints."""
        for program in (self.exporter, self.alertmanager, self.prometheus):
            self.init.look_after(program)
        self.wait(lambda: answers(f"http://{self.exporter_at}/readyz"), START_SECONDS, "the exporter to be ready")
        for run in self.runs:
            self.init.look_after(run.supervisor)
            run.witness.start()
        target = self.links["prometheus-exporter"].address
        self.wait(lambda: watches(f"http://{self.prometheus_at}", target), START_SECONDS, "Prometheus to watch")
        for run in self.runs:
            self.wait(lambda run=run: len(run.steps(1)) >= 12, START_SECONDS, "the first steps")  # type: ignore[misc]
        self.say("all run, and are watched")

    def close(self) -> None:
        """End all that this world started, by process id. The witnesses judge first. Again is no harm."""
        if self._closed:
            return
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        for run in self.runs:
            run.witness.close()
        self.init.end()
        programs.end_marked(self.mark)
        for link in self.links.values():
            link.close()
        self.pager.close()
        for path in reversed(self._mounts):
            subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)

    def wait(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """The first true value. Raises ``TimeoutError`` with a sentence, ``Interrupted`` at the end of the suite."""
        deadline = time.monotonic() + seconds
        while True:
            if value := condition():
                return value
            if self.interrupted.is_set():
                raise Interrupted
            self._complain_of_the_dead()
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}")
            time.sleep(0.02)

    def pause(self, seconds: float) -> None:
        """Let time pass. Raises ``Interrupted``."""
        if self.interrupted.wait(seconds):
            raise Interrupted

    def _complain_of_the_dead(self) -> None:
        for program in self.init.programs:
            if program in self._services and (program.exit_code() or 0) > 0:
                raise AssertionError(f"the {program.name} ended with {program.exit_code()}: {program.last_output()}")

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do that after so many seconds; the scenario is not settled before."""
        timer = threading.Timer(seconds, what)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    @property
    def pending(self) -> bool:
        """Whether something is still to be mended, or to be started again."""
        down = any(program.killed for program in self.init.programs)
        return down or any(timer.is_alive() for timer in self._timers)

    # What can be done to it.

    def kill(self, victim: Victim, *, stays_down: bool = False, run: Run | None = None) -> None:
        """SIGKILL. An init starts the four services again after a second, but not with ``stays_down``."""
        run = run or self.run
        if victim in OF_A_RUN:
            pids = run.pids_of(victim)
            for pid in pids:
                _send(pid, signal.SIGKILL)
            self.say(f"killed the {victim} of {run.name}: {pids or 'there was none'}")
            return
        program = run.supervisor if victim == "supervisor" else self._service(victim)
        program.kill(stays_down=stays_down)
        self.say(f"killed the {program.name}{', for ever' if stays_down else ''}")

    def freeze(self, victim: Victim, seconds: float, run: Run | None = None) -> None:
        """SIGSTOP, and SIGCONT after so many seconds."""
        run = run or self.run
        if victim in OF_A_RUN:
            pids = run.pids_of(victim)
            for pid in pids:
                _send(pid, signal.SIGSTOP)
            self.later(seconds, lambda: _thaw(pids))
            self.say(f"froze the {victim} for {seconds:g} s: {pids}")
            return
        program = run.supervisor if victim == "supervisor" else self._service(victim)
        program.freeze()
        self.later(seconds, program.thaw)
        self.say(f"froze the {program.name} for {seconds:g} s")

    def revive(self, victim: Victim, run: Run | None = None) -> None:
        """A person starts again what was to stay down."""
        program = (run or self.run).supervisor if victim == "supervisor" else self._service(victim)
        program.kept = True
        program.start()
        self.say(f"started the {program.name} again")

    def start_a_second_supervisor(self) -> int | None:
        """Somebody starts a second supervisor of the run; the exit code with which it goes, None if it stays."""
        second = Program("second supervisor", self.run.supervisor.argv, self.out / "logs" / "second.log", self.run.env)
        second.start()
        with contextlib.suppress(TimeoutError):
            self.wait(lambda: not second.running(), 15.0, "the second supervisor to go")
        code = second.exit_code()
        second.end()
        self.say(f"started a second supervisor of the run: it went with {code}")
        return code

    def disturb(self, link: str, condition: Condition, seconds: float | None) -> None:
        """Cut, silence or slow a wire, for so many seconds or for ever."""
        self.links[link].become(condition)
        if seconds is not None:
            self.later(seconds, lambda: self.links[link].become("open"))
        self.say(f"made the wire {link} {condition}, {'for ever' if seconds is None else f'for {seconds:g} s'}")

    def set_clock(self, seconds: float) -> None:
        """The exporter's clock goes wrong by so many seconds, forwards or backwards; durations stay true."""
        self.clock_file.write_text(f"{seconds:+.0f}\n")
        self.say(f"set the exporter's clock by {seconds:+.0f} s")

    def mount(self, path: Path) -> None:
        """A small disk of its own there. Raises ``PermissionError`` where this user may not mount."""
        path.mkdir(parents=True, exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(path)]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise PermissionError(f"a small disk cannot be mounted here: {done.stderr.strip()}")
        self._mounts.append(path)

    def fill(self, disk: str, seconds: float | None) -> None:
        """Fill a small disk to the last byte, for so many seconds or for ever."""
        folders = [self.out / "exporter"] if disk == "exporter" else [getattr(run, disk) for run in self.runs]
        for folder in folders:
            ballast = folder / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(b"\0" * 4096):
                    pass
            if seconds is not None:
                self.later(seconds, lambda ballast=ballast: ballast.unlink(missing_ok=True))  # type: ignore[misc]
        self.say(f"filled the disk of {disk}, {'for ever' if seconds is None else f'for {seconds:g} s'}")

    def damage_checkpoints(self) -> None:
        """One byte of every checkpoint of every run is another."""
        for run in self.runs:
            run.witness.damaged_on_purpose = True
            for shard in run.checkpoints.glob("global_step_*/actor/optim_*.pt"):
                with shard.open("r+b") as file:
                    file.seek(100)
                    file.write(b"\xff")
        self.say("damaged every checkpoint")

    def replay(self, body: Mapping[str, Any], times: int = 1) -> list[int]:
        """Send a recorded webhook to the exporter, so many times at once; the status of each answer."""
        token = self.tokens["alert"].read_text().strip()
        url = f"http://{self.exporter_at}/api/v1/alerts"
        statuses = post_at_once(times, url, token, {**body, "receiver": "recovery"})
        self.say(f"sent a recorded webhook again, {times} times: {sorted(set(statuses))}")
        return statuses

    def approve(self) -> None:
        """A person approves the plan that waits, as soon as the exporter answers."""

        def approved() -> bool:
            waiting = [one for one in self.run.witness.recoveries() if one["stage"] == "awaiting_approval"]
            if not waiting:
                return False
            url = f"http://{self.exporter_at}/api/v1/recoveries/{waiting[-1]['id']}/approve"
            return post(url, self.tokens["operate"].read_text().strip(), {"who": "chaos"}) == 200

        self.wait(approved, 40.0, "a plan to approve")
        self.say("approved the plan")

    @property
    def _services(self) -> tuple[Program, ...]:
        return (self.exporter, self.prometheus, self.alertmanager)

    def _service(self, name: str) -> Program:
        return next(program for program in self._services if program.name == name)


def _thaw(pids: list[int]) -> None:
    for pid in pids:
        if alive(pid, b""):
            _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
