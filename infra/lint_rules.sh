#!/usr/bin/env bash
# Prometheus' rules, their tests and its configurations, by promtool. Without one: a failure in CI, a sentence elsewhere.
#   infra/lint_rules.sh
set -euo pipefail
cd "$(dirname "$0")/monitoring"
if ! command -v promtool >/dev/null; then
  echo "lint-infra: no promtool on the PATH, so rules, alerts and configurations of Prometheus are NOT checked;" \
    "it comes with Prometheus (Debian: apt-get install prometheus)" >&2
  if [ -n "${CI:-}" ]; then exit 1; else exit 0; fi
fi
promtool check config prometheus.yml
promtool check config --syntax-only compose.yml # its token is another machine's file
promtool check rules rules.yml
promtool test rules rules_test.yml
