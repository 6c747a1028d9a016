"""``python -m compose.local up`` and ``… down``, which ``make up`` and ``make down`` run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from compose.local.service import StackError
from compose.local.services import PORTS, Settings
from compose.local.stack import Up, down, up

MODES = ("observe", "approve", "auto")


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Returns the exit code: 0, 1 where something could not be started or ended, 2 for a wrong option."""
    options = _options(arguments, environment)
    folder = Path(options.stack).expanduser().resolve()
    # Tokens, data and logs are this user's alone.
    os.umask(0o077)
    try:
        if options.command == "up":
            given = {key: port for key in PORTS if (port := getattr(options, f"{key}_port")) is not None}
            print(_told(up(Settings(folder=folder, ports={}, recovery=options.recovery), given)))
        else:
            lines = down(folder)
            print("\n".join(lines) if lines else f"Nothing of a stack in {folder} runs.")
            if lines:
                print(f"Data, logs and tokens stay in {folder}.")
    except StackError as error:
        print(f"make {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"make {options.command}: interrupted. What was started goes on; make down ends it.", file=sys.stderr)
        return 130
    return 0


def _options(arguments: Sequence[str] | None, environment: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m compose.local", description=__doc__)
    parser.add_argument("command", choices=("up", "down"))
    parser.add_argument(
        "--stack",
        default=environment.get("STACK") or ".stack",
        help="folder for data, logs and tokens (STACK; default %(default)s)",
    )
    parser.add_argument(
        "--recovery",
        type=_mode,
        default=environment.get("RECOVERY") or "observe",
        help="recovery.mode of the exporter: observe, approve or auto (RECOVERY; default %(default)s)",
    )
    for key, usual in PORTS.items():
        variable = f"{key.upper()}_PORT"
        parser.add_argument(
            f"--{key}-port",
            type=_port,
            default=environment.get(variable) or None,
            help=f"port on 127.0.0.1 ({variable}; default {usual}, or as before)",
        )
    return parser.parse_args(arguments)


def _port(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: a number from 1 to 65535 is expected")
    return int(text)


def _mode(text: str) -> str:
    if text not in MODES:
        raise argparse.ArgumentTypeError(f"{text!r} is no mode of recovery: expected is one of {', '.join(MODES)}")
    return text


def _told(result: Up) -> str:
    settings = result.settings
    rows = [(service.name.removeprefix("the "), service.url + service.page, what) for service, what in result.done]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = ["The stack is up."]
    lines += [f"  {name:<{widths[0]}}  {url:<{widths[1]}}  {what}" for name, url, what in rows]
    tokens = {
        "push": "trainers and supervisors",
        "alert": "Alertmanager",
        "operate": "you: signing in to the console, approving a recovery",
    }
    keys = {service.key for service, _ in result.done}
    if "grafana" in keys:
        tokens["grafana"] = "Grafana's password of its user admin, from its first start"
    lines += ["Tokens, each in a file that only you can read:"]
    lines += [f"  {settings.token_file(name)}  {whose}" for name, whose in tokens.items()]
    exporter = next(service for service, _ in result.done if service.key == "exporter")
    lines += [
        "A trainer on this machine finds it by:",
        f"  export VERL_SENTINEL_URL={exporter.url} VERL_SENTINEL_TOKEN_FILE={settings.token_file('push')}",
        *result.notes,
        f"Logs are in {settings.folder / 'logs'}. `make down` ends it, and the data stay.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
