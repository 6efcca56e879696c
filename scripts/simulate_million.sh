#!/usr/bin/env bash
# A million simulated requests with faults (tests/simulation_test.py with ten times as many): some minutes.
# usage: scripts/simulate_million.sh [QUIRE_PROGRAM]     its log stands in docs/SIMULATION.md
set -euo pipefail
cd "$(dirname "$0")/.."
quire=${1:-build/cpu/quire}
"$quire" --version
time python3 tests/simulation_test.py "$quire" 1000000
