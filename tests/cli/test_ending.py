"""A signal ends a command whenever it comes."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, sys, threading
from exporter.cli.ending import Ending

ending = Ending(signal.SIGTERM, signal.SIGINT)
number = int(sys.argv[1])

def trace(frame, event, arg):
    # In every line of the wait itself: the signal's handler runs before the next instruction of this thread.
    if event == "line" and not ending.is_set():
        os.kill(os.getpid(), number)
    return trace

sys.settrace(trace)
told = ending.wait(60.0)
sys.settrace(None)
print("told" if told and ending.is_set() else "not told")
"""


def test_a_signal_in_the_middle_of_the_wait_ends_it() -> None:
    for number in (2, 15):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(number)], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout.strip()) == (0, "told"), done.stderr


def test_a_wait_without_a_signal_ends_by_its_time() -> None:
    program = "from exporter.cli.ending import Ending; import signal; print(Ending(signal.SIGTERM).wait(0.01))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
