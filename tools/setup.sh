#!/usr/bin/env bash
# Prepares everything below the checkout and in the package clients' own caches. Each part is done
# again only when what it depends on has changed; a second call takes about a second.
set -euo pipefail
cd "$(dirname "$0")/.."
stamps=.paceline/stamps
mkdir -p "$stamps"
python=${PYTHON:-python3}
torch=${PACELINE_TORCH:-torch==2.13.0}
packages="contracts kernels agents/trainer agents/node services/runtime services/analysis services/platform"

say() { printf '\033[2m%s\033[0m\n' "$*"; }

# done_already NAME FILE... : 0 where the stamp holds the same checksum of the files
done_already() {
  local name=$1; shift
  local now; now=$(cat "$@" 2>/dev/null | sha256sum)
  [ -f "$stamps/$name" ] && [ "$(cat "$stamps/$name")" = "$now" ] && return 0
  pending="$stamps/$name"; pending_sum=$now
  return 1
}
finish() { printf '%s' "$pending_sum" > "$pending"; }

need() {
  command -v "$1" > /dev/null || { echo "paceline setup: $1 is missing; $2" >&2; exit 1; }
}
need "$python" "install Python 3.11 or newer (apt install python3 python3-venv)"
need g++ "install a C++ compiler (apt install g++)"
need npm "install Node.js 20 with npm"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { echo "paceline setup: $python is older than 3.11; set PYTHON=/path/to/python3.11" >&2; exit 1; }

if [ ! -x .venv/bin/uv ]; then
  say "virtual environment"
  "$python" -m venv .venv
  .venv/bin/pip install -q --disable-pip-version-check uv
  rm -f "$stamps"/{lock,native,torch,jars}
fi
uv() { .venv/bin/uv "$@" --python .venv/bin/python; }

if ! done_already lock requirements.lock $(printf '%s/pyproject.toml ' $packages); then
  say "Python packages"
  uv pip install -q --require-hashes -r requirements.lock
  finish
  rm -f "$stamps/native"
fi
if ! done_already native kernels/setup.py kernels/native/* kernels/nccl/* kernels/nccl_shim/* kernels/src/paceline/probe/nccl.py kernels/include/paceline/* $(printf '%s/pyproject.toml ' $packages); then
  say "native probe and the packages of this checkout"
  # shellcheck disable=SC2046
  uv pip install -q --no-deps $(printf -- '-e ./%s ' $packages)
  finish
fi
if [ ! -f "$stamps/torch" ] || [ "$(cat "$stamps/torch")" != "$torch" ]; then
  say "$torch (several GB once; uv keeps it in its cache)"
  # Compiled once here; otherwise every rank of every job compiles torch again at import.
  uv pip install -q --compile-bytecode "$torch"
  printf '%s' "$torch" > "$stamps/torch"
fi
if ! done_already console web/package-lock.json $(git ls-files web/src web/index.html web/*.ts web/*.json 2>/dev/null); then
  say "console"
  (cd web && npm ci --silent --no-audit --no-fund && npm run --silent build)
  finish
fi
if ! done_already jars services/platform/src/paceline/lab/kafka-jars.lock; then
  say "Java runtime and Apache Kafka"
  .venv/bin/python -m paceline.lab.kafka --prepare
  finish
fi
