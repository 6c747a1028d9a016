#!/usr/bin/env bash
# Runs the legacy trainer of verl 0.8.0 under our entry point, on a CPU, and checks that the same hooks fire as on 0.9.
# It makes a virtual environment of its own, so it is not part of `make test`. About two minutes once that is made.
#
# usage: tests/compat/verl_0_8_0.sh [FOLDER]
#   FOLDER       where model, checkpoints and the trainer's log go (default: a new one, removed when all went well)
#   VENV=…       the virtual environment (default: .venv/verl-0.8.0 in this checkout)
#   PYTHON=…     interpreter to make it with, 3.10 to 3.12 (default: python3.11, else python3)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${VENV:-$root/.venv/verl-0.8.0}
pins=$here/verl_0_8_0.txt

python=${PYTHON:-$(command -v python3.11 || command -v python3)}
want=$(cat "$pins" "$root/pyproject.toml" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$venv/.made-of" 2>/dev/null)" != "$want" ]; then
  echo "compat: making the environment of verl 0.8.0 in $venv (log: $venv/setup.log)" >&2
  "$python" -m venv "$venv"
  # torch goes first and alone, so that the CPU build is kept where the package index offers one for that version.
  if ! {
    "$venv/bin/python" -m pip install --disable-pip-version-check torch==2.13.0 &&
      "$venv/bin/python" -m pip install --disable-pip-version-check -r "$pins" &&
      "$venv/bin/python" -m pip install --disable-pip-version-check -c "$pins" -e "$root"
  } >"$venv/setup.log" 2>&1; then
    tail -n 15 "$venv/setup.log" >&2
    echo "compat: verl 0.8.0 could not be installed; the whole log is in $venv/setup.log." >&2
    exit 1
  fi
  printf '%s' "$want" >"$venv/.made-of"
fi

folder=${1:-}
if [ -z "$folder" ]; then
  folder=$(mktemp -d)
  scratch=$folder
fi
"$venv/bin/python" "$here/verl_0_8_0.py" "$folder"
rm -rf "${scratch:-}"
