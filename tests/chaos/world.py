"""One scenario's world: exporter, Prometheus, Alertmanager, supervisors and trainers, and what can be done to them.

All of it in one folder, on ports of its own, with wires that can be cut, and ended by process id afterwards. Used by
:mod:`tests.chaos.play`. A world is used by one thread; its timers (a wire that is mended, a program that goes on) run
on theirs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from demo.client import answers, get_json, watches
from tests.chaos import programs
from tests.chaos.network import Condition, Link
from tests.chaos.pager import Pager
from tests.chaos.programs import Init, Program
from tests.chaos.witness import Witness, alive

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
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
Victim = Literal["supervisor", "exporter", "trainer", "worker", "prometheus", "alertmanager"]
RECOVERY: Mapping[str, Any] = {
    "mode": "auto",
    "trigger": "alertmanager",
    "cooldown_seconds": 3.0,
    "budget_per_day": 4,
    "success_steps": 4,
    "deadlines": {"command_seconds": 15.0, "stop_seconds": 25.0, "start_seconds": 25.0, "step_seconds": 20.0},
}
"""A policy that is as fast as the trainer is; otherwise the defaults."""


class Interrupted(Exception):
    """The whole suite is being ended."""


class Run:
    """One run of a world."""

    def __init__(self, world: World, name: str, words: Mapping[str, str]) -> None:
        self.name = name
        self.folder = world.out / name
        self.evidence = self.folder / "evidence"
        self.evidence.mkdir(parents=True)
        self.state = self.folder / "state"
        self.checkpoints = self.folder / "checkpoints"
        for disk, path in (("state", self.state), ("checkpoints", self.checkpoints)):
            if disk in world.small_disks:
                world.mount(path)
        self.witness = Witness(
            name, self.evidence, self.checkpoints, self.state, world.out / "exporter" / "recovery.sqlite3"
        )
        self.faults: list[dict[str, Any]] = []
        all_words = {
            "trainer.default_local_dir": str(self.checkpoints),
            "trainer.project_name": "chaos",
            "trainer.experiment_name": name,
            "+chaos.evidence": str(self.evidence),
            "+chaos.url": f"http://{world.links['trainer-exporter'].address}",
            **words,
        }
        env = {
            **world.environment,
            "VERL_SENTINEL_TOKEN_FILE": str(world.tokens["push"]),
            "VERL_SENTINEL_PYTHON": sys.executable,
            "XDG_CACHE_HOME": str(world.out / "cache"),
        }
        self.supervisor = Program(
            f"supervisor of {name}",
            [
                *(sys.executable, "-m", "trainer_entry.cli", "run", "--state-dir", str(self.state)),
                *("--run-id", name, "--url", f"http://{world.links['supervisor-exporter'].address}"),
                *("--wait-for-command-seconds", "60", "--clean-stop-seconds", "5", "--rollback-clean-seconds", "3"),
                *("--term-seconds", "2", "--kill-seconds", "5", "--"),
                *(sys.executable, str(HERE / "fast_trainer.py")),
                *(f"{key}={value}" for key, value in all_words.items()),
            ],
            world.out / "logs" / f"supervisor-{name}.log",
            env,
        )

    def inject(self, kind: str, *attempts: int) -> None:
        """From now on, the trainer has this fault in these attempts."""
        self.faults.append({"kind": kind, "attempts": list(attempts or (1,))})
        self._write_faults()

    def heal(self) -> None:
        """The cause of the faults is gone; weights that are spoilt stay so."""
        self.faults.clear()
        self._write_faults()

    def _write_faults(self) -> None:
        temporary = self.evidence / "faults.tmp"
        temporary.write_text(json.dumps(self.faults))
        temporary.replace(self.evidence / "faults.json")

    def steps(self, attempt: int) -> list[dict[str, Any]]:
        return [step for step in self.witness.lines("steps.jsonl") if step["attempt"] == attempt]


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
        self.runs = [Run(self, f"chaos-{number + 1}", words or {}) for number in range(runs)]

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
        """End all that this world started, by process id. The witnesses judge first."""
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
        if victim in ("trainer", "worker"):
            pids = [one["pid"] for one in run.witness.trainers()] if victim == "trainer" else run.witness.workers()
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
        if victim in ("trainer", "worker"):
            pids = [one["pid"] for one in run.witness.trainers()] if victim == "trainer" else run.witness.workers()
            for pid in pids:
                _send(pid, signal.SIGSTOP)
            self.later(seconds, lambda: _thaw(pids))
            self.say(f"froze the {victim} for {seconds:g} s: {pids}")
            return
        program = run.supervisor if victim == "supervisor" else self._service(victim)
        program.freeze()
        self.later(seconds, program.thaw)
        self.say(f"froze the {program.name} for {seconds:g} s")

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
        payload = json.dumps({**body, "receiver": "recovery"}).encode()
        token = self.tokens["alert"].read_text().strip()
        statuses: list[int] = []

        def send() -> None:
            request = urllib.request.Request(
                f"http://{self.exporter_at}/api/v1/alerts",
                data=payload,
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    statuses.append(answer.status)
            except urllib.error.HTTPError as error:
                statuses.append(error.code)
            except OSError:
                statuses.append(0)

        threads = [threading.Thread(target=send) for _ in range(times)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.say(f"sent a recorded webhook again, {times} times: {sorted(set(statuses))}")
        return statuses

    def approve(self) -> None:
        """A person approves the plan that waits, as soon as the exporter answers."""

        def approved() -> bool:
            waiting = [one for one in self.run.witness.recoveries() if one["stage"] == "awaiting_approval"]
            return bool(waiting) and self.operate(f"recoveries/{waiting[-1]['id']}/approve", {"who": "chaos"}) == 200

        self.wait(approved, 40.0, "a plan to approve")
        self.say("approved the plan")

    def operate(self, path: str, body: Mapping[str, Any]) -> int:
        """POST to the operator's API; the status, or 0 where nobody answers."""
        token = self.tokens["operate"].read_text().strip()
        request = urllib.request.Request(
            f"http://{self.exporter_at}/api/v1/{path}",
            data=json.dumps(dict(body)).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def ask(self, path: str) -> Any:
        """GET from the exporter's API; None where nobody answers. For waiting only: nothing is judged by it."""
        return get_json(f"http://{self.exporter_at}/api/v1/{path}", self.tokens["operate"].read_text().strip(), 1.0)

    def firing(self) -> list[dict[str, Any]] | None:
        """Labels of the critical alerts that Alertmanager holds as firing; None where it does not answer."""
        found = get_json(f"http://{self.alertmanager_at}/api/v2/alerts?active=true&silenced=false", seconds=2.0)
        if not isinstance(found, list):
            return None
        return [alert["labels"] for alert in found if alert["labels"].get("severity") == "critical"]

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
