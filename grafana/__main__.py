"""``python -m grafana`` writes the dashboards' JSON, compares it, tries it on a Prometheus, or draws it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / "dashboards"


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the options say; the exit code is 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m grafana", description=str(__doc__))
    parser.add_argument(
        "--check", action="store_true", help="write nothing; say which files are not what the code gives"
    )
    parser.add_argument("--against", metavar="URL", help="run every query on this Prometheus and say what is empty")
    parser.add_argument("--run", default="", help="with --against: the run to choose; the first one without it")
    parser.add_argument(
        "--without",
        default="",
        metavar="WHAT,…",
        help="with --against: what the runs there do not have, of the words in empty_without.yml (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="with --against: print one JSON object")
    parser.add_argument("--draw", metavar="FILE", type=Path, help="draw where the panels are, as PNG or SVG")
    options = parser.parse_args(argv)
    if options.against:
        from grafana.against import report

        return report(options.against, run=options.run, without=options.without, as_json=options.json)
    if options.draw:
        from grafana.drawing import draw

        draw(FOLDER, options.draw)
        return 0
    from grafana.catalogue import written

    return _compare(written()) if options.check else _write(written())


def _write(dashboards: Mapping[str, str]) -> int:
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        if path.stem not in dashboards:
            path.unlink()
    for uid, text in dashboards.items():
        (FOLDER / f"{uid}.json").write_text(text, encoding="utf-8")
    return 0


def _compare(dashboards: Mapping[str, str]) -> int:
    there = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    different = sorted(uid for uid in there.keys() | dashboards.keys() if there.get(uid) != dashboards.get(uid))
    for uid in different:
        print(f"grafana/dashboards/{uid}.json is not what the code gives: run python -m grafana.", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
