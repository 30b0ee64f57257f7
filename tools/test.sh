#!/usr/bin/env bash
# All tests. The last line is pytest's own summary.
set -euo pipefail
cd "$(dirname "$0")/.."
(cd web && npm test --silent)
.venv/bin/python -m pytest -q "$@"
