#!/usr/bin/env bash
# Every static check of the project; all of them run, then the exit status says whether any failed. Called by `make lint`.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
bin=${VENV:-.venv}/bin
failed=()

check() {
  local name=$1
  shift
  printf '== %s\n' "$name"
  "$@" || failed+=("$name")
}

# A check whose program is missing is a failed check: silence would look like success.
programs() {
  local name=$1
  shift
  if ! command -v "$1" >/dev/null 2>&1; then
    printf '== %s\n%s is not installed (scripts/bootstrap.sh says how)\n' "$name" "$1"
    failed+=("$name")
    return
  fi
  check "$name" "$@"
}

mapfile -t scripts < <(git ls-files -co --exclude-standard -- '*.sh' .ci/run)
check ruff "$bin/ruff" check .
check "ruff format" "$bin/ruff" format --check .
check mypy "$bin/mypy"
check import-linter "$bin/lint-imports"
# With promtool and amtool, which it asks for by itself.
check "rules and dashboards" "$bin/verl-sentinel" check .
programs shellcheck shellcheck "${scripts[@]}"

if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[*]}"
  exit 1
fi
echo "all checks passed"
