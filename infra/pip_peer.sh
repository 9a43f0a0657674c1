#!/usr/bin/env bash
# Makes an environment with packages of the registry to measure beside, once. Where they cannot be had the benchmarks
# say "not run". PEER=none does without. Arguments: the environment's folder, then the packages with their versions.
set -euo pipefail
venv=$1
shift
[ "${PEER:-pip}" = none ] && exit 0
[ -e "$venv/ready" ] && exit 0
echo "Installing $* into $venv, to measure beside (PEER=none does without)" >&2
mkdir -p "$venv"
if ! { python3 -m venv "$venv" && "$venv/bin/python" -m pip install -q "$@" >"$venv/pip.log" 2>&1; }; then
  echo "$* cannot be installed here (see $venv/pip.log): it is not run" >&2
  exit 0
fi
touch "$venv/ready"
