#!/usr/bin/env python3
"""Reads the machine code of a CUDA program and checks what its hot kernels must be made of.

usage: check_sass.py PROGRAM_OR_OBJECT...     prints one line per rule and every violation; exit code 1 if there is one,
                                              77 where no cuobjdump is (PATH, the toolkit, then what
                                              scripts/deps/cuda_tools.sh fetched)

A rule names kernels by a part of their name. `needs`: instructions of which each must have at least one (tensor-core
products, 16-byte loads). Unless allowed, no load or store of local memory, which is where spilled registers and arrays
indexed at run time go. A rule that meets no kernel is a violation: it would check nothing.
"""
import collections
import os
import re
import shutil
import subprocess
import sys

MMA = r"\b(HMMA|HGMMA|QGMMA|IMMA)\b"
WIDE_LOAD = r"\bLDG\S*\.128\b"
MATRIX_LOAD = r"\bLDSM\b"
ASYNC_COPY = r"\bLDGSTS\S*\.128\b"
TO_E4M3 = r"\bF2FP\S*E4M3\S*PACK"
E4M3_TO_F16 = r"\bF2FP\S*E4M3"
RULES = [
    # name, part of the kernels' names, instructions needed, local memory allowed
    ("attention of few rows", r"attend_narrow", [MMA, MATRIX_LOAD, ASYNC_COPY], False),
    ("attention of few rows, e4m3", r"attend_narrow.*(Bf16|F16)ELb1E", [E4M3_TO_F16], False),
    ("attention of many rows", r"attend_wide", [MMA, MATRIX_LOAD, ASYNC_COPY], False),
    ("latent attention", r"attend_latent", [MMA, MATRIX_LOAD, ASYNC_COPY], False),
    ("joining of parts", r"join_(parts|cascade)", [], False),
    ("products of few rows", r"(ring|staged)_kernel", [MMA, WIDE_LOAD], False),
    ("products of few rows, e4m3", r"(ring|staged)_kernel.*GemvKindE2E", [E4M3_TO_F16], False),
    ("experts", r"experts_kernel", [MMA], False),
    ("rows of such products", r"round_rows_kernel", [WIDE_LOAD], False),
    ("rows rounded to e4m3", r"round_rows_kernel.*DTypeE3E", [TO_E4M3], False),
    ("norms", r"rms_norm_kernel", [], False),
    ("rope and KV write", r"rope_kernel", [], False),
]
DEPS = os.environ.get("QUIRE_DEPS_DIR") or os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".deps")
PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin", os.path.join(DEPS, "cuda_tools")])
CUOBJDUMP = shutil.which("cuobjdump", path=PLACES)
FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?);")
LOCAL = re.compile(r"\b(LDL|STL)\b")


def kernels_of(path):
    """{name: (instructions, local accesses, {needed pattern: seen})} of every kernel in the file."""
    found = {}
    process = subprocess.Popen([CUOBJDUMP, "--dump-sass", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               env={**os.environ, "PATH": PLACES})  # it calls nvdisasm
    patterns = {p: re.compile(p) for rule in RULES for p in rule[2]}
    current = None
    for line in process.stdout:
        if start := FUNCTION.match(line):
            current = found.setdefault(start.group(1), collections.Counter())
        elif current is not None and (text := INSTRUCTION.match(line)):
            current["instructions"] += 1
            if LOCAL.search(text.group(1)):
                current["local"] += 1
            for pattern, expression in patterns.items():
                if expression.search(text.group(1)):
                    current[pattern] += 1
    if process.wait() != 0:
        sys.exit(f"cuobjdump could not read {path}")
    return found


def check(kernels):
    violations = []
    for name, part, needs, local_allowed in RULES:
        expression = re.compile(part)
        mine = {kernel: counts for kernel, counts in kernels.items() if expression.search(kernel)}
        if not mine:
            violations.append(f"{name}: no kernel is named like /{part}/")
            continue
        for kernel, counts in sorted(mine.items()):
            for pattern in needs:
                if counts[pattern] == 0:
                    violations.append(f"{name}: {kernel} has no {pattern}")
            if counts["local"] > 0 and not local_allowed:
                violations.append(f"{name}: {kernel} touches local memory in {counts['local']} instructions")
        most = max(counts["instructions"] for counts in mine.values())
        print(f"{name}: {len(mine)} kernels, the longest of {most} instructions")
    return violations


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if CUOBJDUMP is None:
        print("skipped: no cuobjdump on PATH, in the toolkit or fetched by scripts/deps/cuda_tools.sh")
        return 77
    kernels = {}
    for path in sys.argv[1:]:
        kernels.update(kernels_of(path))
    violations = check(kernels)
    for violation in violations:
        print(violation)
    print(f"{len(kernels)} kernels, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
