#!/usr/bin/env bash
# Prepares this checkout for `make demo`, `make up`, `make test`, `make lint` and `make bench`: a virtual environment with
# the pinned packages, the programs (Prometheus, Alertmanager, VictoriaMetrics, Pushgateway, shellcheck), and what only
# tests need (Chromium; packages of npm). Does nothing that is done already. Called by the Makefile. Only the programs need
# root, and only where they are not there; no system service is started.
#
# usage: scripts/bootstrap.sh [venv|programs|browser|node|slurm|faketime|shellcheck|peers ...]
#   PYTHON=…        interpreter to use (3.10 to 3.12; default: the first suitable of python3.11, 3.12, 3.10, python3)
#   VENV=…          folder of the virtual environment (default: .venv in this checkout)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-$root/.venv}

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

suitable() {
  "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1
}

choose_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    suitable "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.10 to 3.12. Name one that is, or leave PYTHON unset."
    printf '%s' "$PYTHON"
    return
  fi
  for candidate in python3.11 python3.12 python3.10 python3; do
    if suitable "$candidate"; then
      printf '%s' "$candidate"
      return
    fi
  done
  die "no Python 3.10, 3.11 or 3.12 found. On Debian or Ubuntu: apt install python3 python3-venv."
}

fingerprint() { cat "$root/pyproject.toml" "$root/requirements/constraints.txt" | sha256sum | cut -d' ' -f1; }

make_venv() {
  local want python
  want=$(fingerprint)
  if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.verl-sentinel" 2>/dev/null)" = "$want $root" ]; then
    return
  fi
  if [ ! -x "$venv/bin/python" ]; then
    python=$(choose_python)
    say "making a virtual environment with $("$python" --version) in ${venv#"$root"/}"
    if ! "$python" -m venv "$venv" >"$root/.setup.log" 2>&1; then
      rm -rf "$venv"
      cat "$root/.setup.log" >&2
      die "the virtual environment could not be made. On Debian or Ubuntu: apt install python3-venv, then again."
    fi
  fi
  say "installing pinned packages (the first time a few minutes; log in .setup.log)"
  # torch goes first and by its pinned version alone: whatever build of it the local index offers for that version (a CPU
  # build where there is one) is then kept, because everything after it is satisfied by what is installed.
  if ! {
    "$venv/bin/python" -m pip install --disable-pip-version-check -c "$root/requirements/constraints.txt" torch==2.13.0 &&
      "$venv/bin/python" -m pip install --disable-pip-version-check -c "$root/requirements/constraints.txt" \
        -e "${root}[demo,dev]"
  } >"$root/.setup.log" 2>&1; then
    tail -n 15 "$root/.setup.log" >&2
    die "the packages could not be installed; the whole log is in .setup.log."
  fi
  printf '%s' "$want $root" >"$venv/.verl-sentinel"
}

# install PACKAGE: by apt, where we may. Only the program is wanted: a service that the package brings is neither started
# now (policy-rc.d says so to the package's scripts) nor at the next boot.
install() {
  local package=$1 policy=/usr/sbin/policy-rc.d made=no done=0
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 0755 "$policy"
    made=yes
  fi
  apt_install "$package" || { apt-get update && apt_install "$package"; } || done=1
  [ "$made" = no ] || rm -f "$policy"
  if [ "$done" = 0 ] && command -v systemctl >/dev/null 2>&1; then
    systemctl disable "$package" || true
  fi
  return "$done"
}

apt_install() { DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$1"; }

# get_program PROGRAM PACKAGE PURPOSE: a missing program is no error here; who needs it says so.
get_program() {
  command -v "$1" >/dev/null 2>&1 && return
  if install "$2" >>"$root/.setup.log" 2>&1 && command -v "$1" >/dev/null 2>&1; then
    say "installed $1 from the package $2; its service is not started"
  else
    say "$1 is missing and could not be installed here ($3). To have it: apt install $2"
  fi
}

# get_browser: for the tests of the console, with a font that has Chinese, so that screenshots show what users see.
get_browser() {
  get_program chromium chromium "without it the console is not tested in a browser"
  command -v chromium >/dev/null 2>&1 || return 0
  fc-list :lang=zh 2>/dev/null | grep -q . || install fonts-noto-cjk >>"$root/.setup.log" 2>&1 ||
    say "no font with Chinese characters is here and none could be installed: screenshots will show boxes"
}

# get_slurm: for the tests of the Slurm executor, which start a controller and a node of their own.
get_slurm() {
  local service
  command -v sbatch >/dev/null 2>&1 && return
  get_program sbatch slurm-wlm "without it the Slurm executor is tested with recorded output only"
  command -v systemctl >/dev/null 2>&1 || return 0
  for service in slurmctld slurmd munge; do
    systemctl disable "$service" >>"$root/.setup.log" 2>&1 || true
  done
}

# get_node: what the tests use of npm, at the versions of the lock file. Tests that need it are skipped without it.
get_node() {
  local folder=$root/tests/node want
  want=$(sha256sum "$folder/package.json" "$folder/package-lock.json" | sha256sum | cut -d' ' -f1)
  [ "$(cat "$folder/node_modules/.verl-sentinel" 2>/dev/null)" = "$want" ] && return
  get_program node nodejs "without it the dashboards' types and the grammar of PromQL 3 are not checked"
  get_program npm npm "without it the dashboards' types and the grammar of PromQL 3 are not checked"
  command -v npm >/dev/null 2>&1 || return 0
  say "installing the npm packages that tests use"
  if (cd "$folder" && npm ci) >>"$root/.setup.log" 2>&1; then
    printf '%s' "$want" >"$folder/node_modules/.verl-sentinel"
  else
    say "they could not be installed: the tests that need them are skipped; the log is in .setup.log"
  fi
}

# get_peers: the packages that detection is compared with. The benchmark says which are missing.
get_peers() {
  "$venv/bin/python" -c 'import rl_doctor, rlprobe, rlwatch, trainpulse' >/dev/null 2>&1 && return
  say "installing the packages that detection is compared with"
  "$venv/bin/python" -m pip install --disable-pip-version-check -c "$root/requirements/constraints.txt" \
    -e "${root}[peers]" >>"$root/.setup.log" 2>&1 || say "some could not be installed; the log is in .setup.log"
}

[ $# -gt 0 ] || set -- venv programs
for part in "$@"; do
  case $part in
    venv) make_venv ;;
    programs)
      get_program prometheus prometheus "without it the loop runs through the exporter's own fast path"
      get_program promtool prometheus "without it the rules are not checked"
      get_program prometheus-alertmanager prometheus-alertmanager "without it the loop runs through the exporter's own fast path"
      get_program amtool prometheus-alertmanager "without it the routes are not checked"
      get_program victoria-metrics victoria-metrics "without it the InfluxDB sink and remote_write are not tested, and ingest is measured without it"
      get_program prometheus-pushgateway prometheus-pushgateway "without it ingest is measured beside nothing"
      ;;
    shellcheck) get_program shellcheck shellcheck "without it the shell scripts are not checked" ;;
    browser) get_browser ;;
    slurm) get_slurm ;;
    faketime) get_program faketime faketime "without it no clock is set in the tests of chaos" ;;
    node) get_node ;;
    peers) get_peers ;;
    *) die "unknown part '$part'; known: venv, programs, browser, node, slurm, faketime, shellcheck, peers." ;;
  esac
done
