#!/usr/bin/env bash
# All tests, each kind in a process of its own so that none inherits servers, loops or settings of
# another. The last line is pytest's own summary.
set -euo pipefail
cd "$(dirname "$0")/.."
(cd web && npm test --silent)
for kind in unit incidents integration chaos e2e; do
  printf '\n%s tests\n' "$kind"
  .venv/bin/python -m pytest -q "tests/$kind" "$@"
done
