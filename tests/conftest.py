"""What holds for every test."""

from __future__ import annotations

import signal

# A shell starts background jobs with SIGINT ignored, and children inherit that. The programs under test honour it, as
# they should, so without this the tests of Ctrl-C would depend on how somebody started pytest.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
