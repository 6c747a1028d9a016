"""What holds for every test."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# A loaded machine is no reason for an example to fail.
settings.register_profile("verl-sentinel", deadline=None)
settings.load_profile("verl-sentinel")

# Tables are as wide as this says, and pytest's workers set it.
os.environ.pop("COLUMNS", None)

# A shell starts background jobs with SIGINT ignored, and children inherit that. The programs under test honour it, as
# they should, so without this the tests of Ctrl-C would depend on how somebody started pytest.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
