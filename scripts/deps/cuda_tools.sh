#!/usr/bin/env bash
# Fetches the programs of cuda_tools.lock into .deps/cuda_tools (QUIRE_DEPS_DIR), checked by hash. Idempotent: a
# stamp keyed by the lock ends it at once.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=${QUIRE_DEPS_DIR:-$(cd "$here/../.." && pwd)/.deps}/cuda_tools
key=$(cat "$here/cuda_tools.lock" "$0" | sha256sum | cut -c1-16)
[ "$(cat "$target/stamp" 2>/dev/null)" = "$key" ] && exit 0

mkdir -p "$target"
work=$(mktemp -d "$target/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" download -q --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
  -d "$work/dl" -r "$here/cuda_tools.lock"
for wheel in "$work"/dl/*.whl; do
  unzip -o -q -j "$wheel" 'nvidia/cu13/bin/*' -d "$target"
done
chmod +x "$target/cuobjdump" "$target/nvdisasm"
echo "$key" >"$target/stamp"
