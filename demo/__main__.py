"""``python -m demo``: the closed loop on the stock verl trainer, with a fault of your choice. For ``make demo``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from demo.processes import StartError
from demo.run import Options, run
from demo.scenarios import SCENARIOS


def main() -> int:
    known = "\n".join(f"  {name:15} {scenario.summary}" for name, scenario in SCENARIOS.items())
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Train on toy data with the stock verl trainer, break the run, and watch it being brought back.",
        epilog=f"scenarios:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--scenario", default="learning_rate", metavar="NAME", help="which fault (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo/out"), help="folder for everything (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of data and sampling (default: %(default)s)")
    parser.add_argument("--approve", action="store_true", help="the recovery waits for your approval in the console")
    parser.add_argument("--hold", action="store_true", help="when it is over, let everything run on until Ctrl-C")
    arguments = parser.parse_args()
    scenario = SCENARIOS.get(arguments.scenario)
    if scenario is None:
        parser.error(f"there is no scenario {arguments.scenario!r}; there are: {', '.join(SCENARIOS)}.")
    console = Console(highlight=False)
    try:
        return run(
            Options(
                scenario=scenario,
                out=arguments.out.resolve(),
                seed=arguments.seed,
                approve=arguments.approve,
                hold=arguments.hold,
            ),
            console,
        )
    except StartError as error:
        console.print(f"[bold red]{error}[/]", soft_wrap=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
