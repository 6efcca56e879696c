#!/usr/bin/env bash
# Makes .deps/test-venv (QUIRE_DEPS_DIR): the clients that tests use (openai, schemathesis) and what they need, from
# block 3 of pypi.lock, checked by hash. Idempotent: a stamp keyed by the lock ends it at once.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
deps=${QUIRE_DEPS_DIR:-$(cd "$here/../.." && pwd)/.deps}
venv=$deps/test-venv
# Of the block, what other work uses: a browser's driver, oracles for tokenizers and model files.
others="playwright greenlet numpy tokenizers gguf safetensors huggingface-hub hf-xet fsspec filelock"
key=$(cat "$here/pypi.lock" "$0" | sha256sum | cut -c1-16)
[ "$(cat "$venv/stamp" 2>/dev/null)" = "$key" ] && exit 0

mkdir -p "$deps"
work=$(mktemp -d "$deps/test-venv.XXXXXX")
trap 'rm -rf "$work"' EXIT
awk -v others="$others" '
  BEGIN { count = split(others, names, " "); for (i = 1; i <= count; i++) skip[names[i]] = 1 }
  /^# block 3/ { block = 1 }
  !block || /^#/ { next }
  /^[a-z]/ { split($0, parts, "=="); keep = !(parts[1] in skip) }
  keep' "$here/pypi.lock" >"$work/test.lock"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check --no-deps --require-hashes -r "$work/test.lock"
echo "$key" >"$venv/stamp"
