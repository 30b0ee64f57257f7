#!/usr/bin/env bash
# Everything that reads the code without running it; the first failure is printed and ends it.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/ruff check -q .
.venv/bin/ruff format -q --check .
.venv/bin/python tools/check_lengths.py
.venv/bin/lint-imports --no-logo | tail -n 12
.venv/bin/check-jsonschema -q --builtin-schema vendor.compose-spec docker-compose.yml
(cd web && npm run --silent lint)
