"""False alarms, recall and speed of detection: ``python -m bench.detection [--json] [--quick]``.

Healthy steps come from real runs of verl where they are there (``VERL_SENTINEL_DATA``), and from generated ones. Exit
code 1 where a bar is missed; the bars count on the real runs that no threshold was chosen on, and on the generated ones
where there are no real ones.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.detection import report
from bench.detection.cases import CONTROL, KIND
from bench.detection.measuring import CONTENDERS, Size, measure

PROCESSES = min(2, os.cpu_count() or 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is its result."""
    options = _options(argv)
    size = Size.quick() if options.quick else Size(places=options.places)
    began = time.monotonic()
    result = measure(
        contenders=options.only or list(CONTENDERS),
        kinds=options.kinds or list(KIND),
        controls=[] if options.no_controls else options.controls or list(CONTROL),
        size=size,
        jobs=options.jobs,
        seed=options.seed,
    )
    result["seconds"] = round(time.monotonic() - began, 1)
    if options.json:
        print(json.dumps(_plain(result)))
    else:
        report.show(result)
    return 0 if result["targets_met"] else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.detection", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer runs and tries, under a minute")
    parser.add_argument("--only", type=_names(CONTENDERS), metavar="WHO", help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument("--kinds", type=_names(KIND), metavar="KINDS", help=f"of {', '.join(KIND)}")
    parser.add_argument("--controls", type=_names(CONTROL), metavar="CONTROLS", help=f"of {', '.join(CONTROL)}")
    parser.add_argument("--no-controls", action="store_true", help="leave the negative controls out")
    parser.add_argument(
        "--places", type=int, default=4, metavar="N", help="injections of each kind into each run (default: 4)"
    )
    parser.add_argument("--jobs", type=int, default=PROCESSES, metavar="N", help=f"processes (default: {PROCESSES})")
    parser.add_argument("--seed", type=int, default=0, help="of everything that chance decides (default: 0)")
    return parser.parse_args(argv)


def _names(known: Any) -> Any:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of: {', '.join(known)}")
        return names

    return parse


def _plain(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


if __name__ == "__main__":
    sys.exit(main())
