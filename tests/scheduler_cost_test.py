#!/usr/bin/env python3
"""Instructions that the host side of one step takes, against the figures in data/scheduler_cost.json.

usage: scheduler_cost_test.py QUIRE_PROGRAM [--update]
Counted by callgrind, so the machine's load does not matter; another compiler may: the file says which made its figures.
The count of one step is the difference of two runs with different numbers of steps. Fewer instructions are fine (and
worth an --update); more than the tolerance fails. Needs valgrind (scripts/deps/ci.txt).
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FIGURES = pathlib.Path(__file__).resolve().parent / "data/scheduler_cost.json"
# 256 sequences decode; with the queue, every measured step is followed by one that ends a sequence and admits another.
CASES = {"steady_256": ("--running", "256", "--waiting", "0"),
         "steady_and_turnover_256_of_10000": ("--running", "256", "--waiting", "10000")}
STEPS = (40, 140)


def instructions(quire, case, steps):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--collect-atstart=no",
             "--toggle-collect=quire::simulate::timed_step*", quire, "bench", "scheduler", *CASES[case], "--context", "500",
             "--steps", str(steps)], capture_output=True, text=True, timeout=600)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"callgrind failed:\n{done.stdout}\n{done.stderr}")
    return int(found.group(1))


def compiler():
    return subprocess.run(["c++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def main():
    quire = sys.argv[1]
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed: scripts/deps/apt.sh ci.txt")
    counted = {case: round((instructions(quire, case, STEPS[1]) - instructions(quire, case, STEPS[0])) / (STEPS[1] - STEPS[0]))
               for case in CASES}
    if "--update" in sys.argv[2:]:
        FIGURES.write_text(json.dumps({"compiler": compiler(), "tolerance": 0.25, "instructions": counted}, indent=2) + "\n")
        print(f"written: {counted}")
        return 0
    figures = json.loads(FIGURES.read_text())
    failed = 0
    for case, count in counted.items():
        limit = figures["instructions"][case] * (1 + figures["tolerance"])
        print(f"{case}: {count} instructions a step, {figures['instructions'][case]} recorded, at most {limit:.0f}"
              f"{'' if count <= limit else '  TOO MANY'}")
        failed += count > limit
    if failed:
        print(f"recorded with {figures['compiler']}, here {compiler()}; if more is meant to be done, --update the file")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
