#!/usr/bin/env bash
# Generates the Python code of proto/ into the folder given (default: proto/). Used by `make proto` and the drift check.
set -euo pipefail
cd "$(dirname "$0")/../proto"
out=${1:-.}
"${PYTHON:-../.venv/bin/python}" -m grpc_tools.protoc -I. --python_out="$out" --grpc_python_out="$out" \
  --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" $(find stemcache -name '*.proto' | sort)
