"""``verl-sentinel-train gradients FILE``: a gradient histogram as a table, the layer with the largest norm first."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exporter.protocol import number
from trainer_entry.gradients.files import GradientFileError, read
from trainer_entry.supervisor import exitcodes
from trainer_entry.supervisor.output import say

_BARS = " ▁▂▃▄▅▆▇█"
_GROUP = 4
"""Powers of two that one column of the drawing stands for."""


def show(arguments: argparse.Namespace) -> int:
    """Print the table, or with ``--json`` the file's lines as one array; 2 for a file that is none."""
    try:
        head, layers = read(arguments.file)
    except GradientFileError as error:
        say(str(error))
        return exitcodes.USAGE
    if arguments.json:
        print(json.dumps({**head, "layers": layers}))
        return 0
    for line in lines(head, layers, limit=arguments.limit):
        print(line)
    return 0


def lines(head: dict[str, Any], layers: Sequence[dict[str, Any]], *, limit: int) -> list[str]:
    """The table's lines; what a damaged file lacks is shown as a dash."""
    ranks = head.get("ranks")
    shards = len(ranks) if isinstance(ranks, list) else 0
    found = [
        f"Gradients of step {_plain(head.get('step'))} before clipping: {_plain(head.get('model'))}, "
        f"run {_plain(head.get('run_id'))}, attempt {_plain(head.get('attempt'))}, "
        f"{len(layers)} layers, shards of {shards} of {_plain(head.get('world_size'))} ranks.",
    ]
    if head.get("reason"):
        found.append(f"Asked for because: {_plain(head.get('reason'))}")
    ordered = sorted(layers, key=lambda layer: -_number(layer.get("norm"), -math.inf))[:limit]
    width = max([5, *(len(_plain(layer.get("layer"))) for layer in ordered)])
    lowest = int(_number(head.get("lowest_log2"), 0.0))
    found.append(
        f"{'layer':<{width}}  {'norm':>9}  {'mean':>10}  {'std':>9}  {'min':>10}  {'max':>10}  {'not finite':>10}  "
        f"{'zero':>6}  log2|g| from {lowest}"
    )
    for layer in ordered:
        count = _number(layer.get("count"), 0.0)
        zeros = _number(layer.get("zeros"), 0.0) / count if count else 0.0
        found.append(
            f"{_plain(layer.get('layer')):<{width}}  {_short(layer.get('norm')):>9}  {_short(layer.get('mean')):>10}  "
            f"{_short(layer.get('std')):>9}  {_short(layer.get('min')):>10}  {_short(layer.get('max')):>10}  "
            f"{_plain(layer.get('non_finite')):>10}  {zeros:>6.1%}  {_drawn(layer.get('histogram'))}"
        )
    if len(layers) > len(ordered):
        found.append(f"{len(layers) - len(ordered)} more layers; --limit shows them.")
    return found


def _drawn(bins: Any) -> str:
    """A row of bars, each for four powers of two, the height by the logarithm of the count."""
    if not isinstance(bins, list):
        return "–"
    counts = [_number(one, 0.0) for one in bins]
    grouped = [sum(counts[first : first + _GROUP]) for first in range(0, len(counts), _GROUP)]
    most = max([*grouped, 1.0])
    steps = len(_BARS) - 1
    heights = (math.ceil(steps * math.log1p(one) / math.log1p(most)) if one > 0 else 0 for one in grouped)
    return "|" + "".join(_BARS[min(steps, height)] for height in heights) + "|"


def _number(value: Any, otherwise: float) -> float:
    try:
        found = number(value)
    except (TypeError, ValueError):
        return otherwise
    return otherwise if math.isnan(found) else found


def _short(value: Any) -> str:
    return "–" if value is None or isinstance(value, (dict, list)) else f"{_number(value, math.nan):.3g}"


def _plain(value: Any) -> str:
    """A name for a terminal: printable, on one line, of bounded length."""
    text = "–" if value is None else str(value)[:300]
    return "".join(character if character.isprintable() else "?" for character in text)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of ``verl-sentinel-train``."""
    parser = commands.add_parser("gradients", help="show a gradient histogram by layer", description=__doc__)
    parser.add_argument("file", type=Path, help="a file in <state-dir>/gradients")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="layers that are shown (default: 50)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(act=show)
