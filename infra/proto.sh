#!/usr/bin/env bash
# Generates the Python code of proto/. With --check: generates into a temporary folder and fails on any difference.
set -euo pipefail
cd "$(dirname "$0")/../proto"
bin=$(cd "../${VENV:-.venv}/bin" && pwd)
export PATH="$bin:$PATH"
out=.
if [ "${1:-}" = --check ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
mapfile -t files < <(find stemcache -name '*.proto' | sort)
python -m grpc_tools.protoc -I. --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" "${files[@]}"
if [ "$out" != . ] && ! diff -r -q --exclude='*.proto' --exclude='__pycache__' "$out/stemcache" stemcache; then
  echo "The generated code of proto/ is out of date: run 'make proto' and commit the result." >&2
  exit 1
fi
