#!/usr/bin/env bash
# Builds the CUDA preset and packs what a machine with a GPU needs to run scripts/device.sh: the program, the tests
# with the label `device`, and the shared libraries that such a machine may lack. Nothing is built there.
# usage: scripts/device_pack.sh [FOLDER]      writes FOLDER/quire-device.tar.xz (build/device unless named)
# The stripped program must stay under 48 MiB: it says its size, and fails above.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-build/device}
most=$((48 << 20))

cmake --preset cuda >/dev/null
ninja -C build/cuda quire device_tests
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging/quire-device/lib" "$target"
for program in build/cuda/quire $(find build/cuda -type f -name 'quire_*_device_test' -o -type f -name 'quire_*_bench' -perm -u+x); do
  strip -o "$staging/quire-device/$(basename "$program")" "$program"
done
# What every Linux has (the C and C++ libraries of a system no older than this one) is left out.
for program in "$staging"/quire-device/quire*; do
  ldd "$program" | awk '$3 ~ /^\// { print $3 }'
done | sort -u | grep -Ev '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so' |
  xargs -r -I{} cp -L {} "$staging/quire-device/lib/"
size=$(stat -c %s "$staging/quire-device/quire")
echo "quire, stripped: $((size >> 10)) KiB"
if [ "$size" -ge "$most" ]; then
  echo "the program is over $((most >> 20)) MiB: fewer targets (QUIRE_CUDA_ARCHS) or fewer instances" >&2
  exit 1
fi
# The programs share most of their code: a dictionary that spans several of them halves the pack.
tar -C "$staging" -cf - quire-device | xz --lzma2=preset=6,dict=128MiB >"$target/quire-device.tar.xz"
echo "packed: $target/quire-device.tar.xz, $(($(stat -c %s "$target/quire-device.tar.xz") >> 10)) KiB"
