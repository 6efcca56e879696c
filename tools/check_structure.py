#!/usr/bin/env python3
"""Checks the shape of the tree: layers, vendor code, sizes, banned words, paths in the docs.

usage: check_structure.py [ROOT]      prints every violation, exit code 1 if there is one
tests/structure_test.py plants one violation of each kind and expects it to be found.
"""
import pathlib
import re
import sys

# What each folder may include, besides itself (docs/ARCHITECTURE.md, Layers).
BELOW = {
    "base": [],
    "tensor": ["base"],
    "platform": ["base", "tensor"],
    "kv": ["base"],
    "checkpoint": ["base", "tensor"],
    "ops": ["base", "tensor", "platform"],
    "attention": ["base", "tensor", "platform"],
    "tokenizer": ["base", "checkpoint"],
    "model": ["base", "tensor", "platform", "checkpoint", "ops", "attention"],
    "scheduler": ["base", "kv"],
    "simulate": ["base", "kv", "scheduler"],
    "record": ["base", "tensor", "platform", "checkpoint", "attention"],
    "engine": ["base", "tensor", "platform", "kv", "checkpoint", "ops", "attention", "model", "scheduler", "record"],
    "grammar": ["base", "tokenizer"],
    "session": ["base", "checkpoint", "tokenizer", "grammar", "engine"],
    "server": ["base", "tokenizer", "engine", "session"],
    "cli": ["base", "tensor", "platform", "kv", "checkpoint", "ops", "attention", "tokenizer", "model", "scheduler",
            "simulate", "record", "engine", "grammar", "session", "server"],
}
# Public headers: result.h is for everyone; engine and session are mirrored by their folders.
PUBLIC = {"result.h": list(BELOW), "options.h": ["engine", "session", "server", "cli"],
          "engine.h": ["engine", "session", "server", "cli"], "guide.h": ["engine", "grammar", "session", "cli"],
          "page_map.h": ["engine", "session", "server", "cli"],
          "tools.h": ["session", "server", "cli"], "session.h": ["session", "server", "cli"]}
# Files that may cross: the one table that names every backend, the dispatch to a platform's implementation.
PLATFORM_FOLDERS = ("platform/", "ops/cpu/", "ops/cuda/", "attention/backends/")
VENDOR = re.compile(r"^\s*#\s*(include\s*[<\"](cuda|cublas|nccl|cudnn|hip/|immintrin|x86intrin|arm_neon|CL/)|"
                    r"(if|ifdef|ifndef|elif)\b.*(__CUDA|__HIP|__NVCC__|USE_CUDA|__AVX|__SSE|__ARM_NEON))")
INCLUDE = re.compile(r"^\s*#\s*include\s*\"([^\"]+)\"", re.M)
LINES = {".cc": 500, ".h": 500, ".cu": 900, ".cuh": 900, ".inl": 900}
BANNED = [
    (re.compile(r"^using namespace\b", re.M), "using namespace at file scope"),
    (re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"), "an unfinished mark"),
    (re.compile(r"\bcatch\s*\(\s*\.\.\.\s*\)"), "catch (...)"),
    (re.compile(r"(?<!asm )(?<!asm__ )\bvolatile\b(?! std::sig_atomic_t)"), "volatile"),
    (re.compile(r"\bgetenv\b"), "getenv"),
]
GETENV_ALLOWED = {"platform/cpu/isa.cc", "cli/settings.cc", "base/golden_dir.h", "platform/cuda/library.cc"}
# A test that does not run says nothing. Only a missing device is a reason: the device tests, the main() that they share,
# and what makes their CTest entries.
SKIP = re.compile(r"\bGTEST_SKIP\b|\bDISABLED_|\b(skipTest|skipIf|skipUnless|SkipTest)\b|\bunittest\.skip\b|"
                  r"\bSKIP_(RETURN_CODE|REGULAR_EXPRESSION)\b")
SKIP_IN_CMAKE = re.compile(SKIP.pattern + r"|\bDISABLED\b")
MAY_SKIP = re.compile(r"_device_test\.(cc|cu)$|^src/platform/device_main/")
DEVICE_ENTRY = re.compile(r"^function\(quire_device_test_entry .*?^endfunction\(\)", re.M | re.S)
MACHINE_PATH = re.compile(r"(^|[\s\"'=(:])/(work|home|tmp/b-|root)/")


def sources(root):
    for path in sorted((root / "src").rglob("*")):
        if path.suffix in LINES:
            yield path, path.relative_to(root / "src").as_posix()


def check_layers(root):
    for path, name in sources(root):
        folder = name.split("/")[0]
        for target in INCLUDE.findall(path.read_text()):
            top = target.split("/")[0]
            if top == "quire":
                if folder not in PUBLIC.get(target.split("/")[1], []):
                    yield f"{name} includes {target}: that public header is not for {folder}"
            elif top in BELOW and top != folder and top not in BELOW.get(folder, []):
                yield f"{name} includes {target}: {folder} may include only {', '.join(BELOW.get(folder, [])) or 'nothing'}"
            if target.endswith((".cuh", "_test.h")) and path.suffix == ".h":
                yield f"{name} includes {target}: no kernel or test header in a host header"


def check_backends_apart(root):
    for path, name in sources(root):
        if not name.startswith("attention/backends/"):
            continue
        own = "/".join(name.split("/")[:3])
        for target in INCLUDE.findall(path.read_text()):
            if target.startswith("attention/backends/") and not target.startswith(own) and "_test" not in name:
                yield f"{name} includes {target}: a backend shares no code with another"


def check_vendor(root):
    for path, name in sources(root):
        if name.startswith(PLATFORM_FOLDERS):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if VENDOR.search(line):
                yield f"{name}:{number}: a vendor header or macro outside {', '.join(PLATFORM_FOLDERS)}: {line.strip()}"


def check_sizes(root):
    for path, name in sources(root):
        limit = 900 if "kernel" in path.name else LINES[path.suffix]
        count = path.read_text().count("\n")
        if count > limit:
            yield f"{name}: {count} lines are over the limit of {limit}: split it by idea"


def check_banned(root):
    for path, name in sources(root):
        text = path.read_text()
        for pattern, what in BANNED:
            if what == "getenv" and (name in GETENV_ALLOWED or "_test" in name):
                continue
            if what == "volatile" and name.startswith("platform/"):  # touching pages, cpuid
                continue
            if pattern.search(text):
                yield f"{name}: {what}"
        if path.suffix == ".h" and "#pragma once" not in text:
            yield f"{name}: no #pragma once"


def check_skips(root):
    files = [root / "CMakeLists.txt"]
    for folder in ("src", "tests", "cmake", "examples"):
        files += sorted((root / folder).rglob("*"))
    for path in files:
        name = path.relative_to(root).as_posix()
        is_cmake = path.name == "CMakeLists.txt" or path.suffix == ".cmake"
        if not (is_cmake or path.suffix in {*LINES, ".py", ".sh"}) or MAY_SKIP.search(name):
            continue
        if not path.is_file() or name == "tests/structure_test.py":
            continue
        text = path.read_text()
        if name == "cmake/module.cmake":
            text = DEVICE_ENTRY.sub("", text)
        for match in (SKIP_IN_CMAKE if is_cmake else SKIP).finditer(text):
            yield f"{name}: {match.group()}: only tests of a device may be skipped, where there is none"


def check_machine_paths(root):
    for folder in ("src", "include", "scripts", "docs", "tests", "tools", "cmake", "examples"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".cc", ".h", ".md", ".sh", ".py", ".txt", ".cmake", ".inl"} or "data" in path.parts:
                continue
            if path.name in {"check_structure.py", "structure_test.py"}:
                continue
            if MACHINE_PATH.search(path.read_text()):
                yield f"{path.relative_to(root)}: a path of one machine"


def check_doc_paths(root):
    """Paths in backticks in the docs exist: `src/...`, `docs/...`, `scripts/...`, `tools/...`, `tests/...`."""
    pattern = re.compile(r"`((?:src|docs|scripts|tools|tests|include|examples|cmake)/[\w./-]+)`")
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        if not path.exists():
            continue
        for target in pattern.findall(path.read_text()):
            if not (root / target.rstrip("/")).exists() and "toy" not in target:
                yield f"{path.relative_to(root)}: `{target}` does not exist"


def check_empty_folders(root):
    for folder in sorted((root / "src").rglob("*")):
        if folder.is_dir() and not any(child.is_file() for child in folder.rglob("*")):
            yield f"{folder.relative_to(root)}: an empty folder"


CHECKS = [check_layers, check_backends_apart, check_vendor, check_sizes, check_banned, check_skips, check_machine_paths,
          check_doc_paths, check_empty_folders]


def violations(root):
    root = pathlib.Path(root)
    return [f"{check.__name__}: {message}" for check in CHECKS for message in check(root)]


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    found = violations(root)
    for line in found:
        print(line)
    print(f"{len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
