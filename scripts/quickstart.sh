#!/usr/bin/env bash
# From a fresh Debian 12 to an answer: installs what is missing, fetches the pinned sources and the test
# model, builds the program and lets SmolLM2-135M-Instruct answer. A second run only answers.
# usage: scripts/quickstart.sh [PROMPT]
set -euo pipefail
cd "$(dirname "$0")/.."
prompt=${1:-What is the capital of France, and what is it known for?}
started=$SECONDS

scripts/deps/apt.sh apt.txt
scripts/deps/fetch.sh
if [ ! -f build/run/build.ninja ]; then
  cmake --preset run >/dev/null
fi
ninja -C build/run quire >build/run/build.log || { tail -n 40 build/run/build.log; exit 1; }
echo "ready after $((SECONDS - started)) s"

echo "> $prompt"
build/run/quire run .deps/models/SmolLM2-135M-Instruct.Q4_1.gguf --chat -p "$prompt" --max-tokens 200
