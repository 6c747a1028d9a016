"""Slurm on this machine for the tests: munged, slurmctld and two slurmds in a folder and on ports of their own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

SECONDS = 60.0
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sacct")
PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

CONFIGURATION = """\
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
KillWait=3
MessageTimeout=10
MinJobAge=3600
NodeName=left NodeHostname={host} NodeAddr=127.0.0.1 Port={left} CPUs=4
NodeName=right NodeHostname={host} NodeAddr=127.0.0.1 Port={right} CPUs=4
PartitionName=all Nodes=left,right Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """Programs of Slurm that are not installed here."""
    return [name for name in PROGRAMS if shutil.which(name, path=PLACES) is None]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class PrivateSlurm:
    """Call :meth:`start`; ``environ`` is for whoever is to talk to it."""

    def __init__(self) -> None:
        # Not below the test's own folder: the path of a socket has a limit of about a hundred characters.
        self.folder = Path(tempfile.mkdtemp(prefix="vs-slurm-"))
        self.folder.chmod(0o755)
        self.configuration = self.folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def environ(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.configuration), "PATH": PLACES}

    def start(self) -> None:
        """Start all four, and wait until both nodes are idle."""
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        (self.folder / "state").mkdir()
        key = munge / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        controller, left, right = free_ports(3)
        self.configuration.write_text(
            CONFIGURATION.format(
                host=socket.gethostname().split(".")[0],
                user=getpass.getuser(),
                folder=self.folder,
                controller=controller,
                left=left,
                right=right,
            )
        )
        self._daemon(
            *("munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={key}"),
            *(f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"),
        )
        self._until((munge / "socket").exists, "munged")
        self._daemon("slurmctld", "-D", "-c")
        self._daemon("slurmd", "-D", "-N", "left")
        self._daemon("slurmd", "-D", "-N", "right")
        self._until(lambda: self.ask("sinfo", "--noheader", "-N", "-o", "%T").split() == ["idle", "idle"], "the nodes")

    def ask(self, *words: str) -> str:
        """Run one of Slurm's programs; what it printed, also where it failed."""
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            env={**os.environ, **self.environ},
            timeout=SECONDS,
            check=False,
        )
        return done.stdout + done.stderr

    def jobs(self, state: str = "all") -> list[str]:
        """Ids of the jobs in that state."""
        return self.ask("squeue", "--noheader", f"--states={state}", "--format=%A").split()

    def shown(self, job: str, key: str) -> str:
        """One value of `scontrol show job`."""
        for word in self.ask("scontrol", "show", "job", "--oneliner", job).split():
            if word.startswith(f"{key}="):
                return word.partition("=")[2]
        return ""

    def alive(self) -> list[str]:
        """Jobs of which something may run."""
        return self.ask("squeue", "--noheader", "--format=%A").split()

    def cancel_all(self) -> None:
        """End every job, and wait for that."""
        for job in self.alive():
            self.ask("scancel", job)
        self._until(lambda: not self.alive(), "the end of all jobs")

    def close(self) -> None:
        """End the daemons that were started here."""
        with contextlib.suppress(Exception):
            self.cancel_all()
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _daemon(self, name: str, *options: str) -> None:
        program = shutil.which(name, path=PLACES)
        assert program is not None
        with open(self.folder / f"{name}-{len(self._daemons)}.out", "wb") as out:
            self._daemons.append(
                subprocess.Popen(
                    [program, *options],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env={**os.environ, **self.environ},
                    start_new_session=True,
                )
            )

    def _until(self, condition: object, what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if condition():  # type: ignore[operator]
                return
            time.sleep(0.1)
        logs = [path.read_text("utf-8", "replace")[-1500:] for path in sorted(self.folder.glob("*.[lo]*"))]
        raise AssertionError(f"waited in vain for {what}; " + "\n".join(logs))
