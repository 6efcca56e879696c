#!/usr/bin/env bash
# Rewrites README.md's tables of attention backends, between <!-- matrix --> and <!-- /matrix --> and between the same
# with "matrix sm90", from the program itself: a build without CUDA gives the same. tests/cli_test.py fails while they
# differ.
# usage: scripts/update_readme.sh [QUIRE_PROGRAM]      the program is build/cpu/quire unless named
set -euo pipefail
quire=$(realpath "${1:-$(dirname "$0")/../build/cpu/quire}")
cd "$(dirname "$0")/.."
table=$(mktemp)
trap 'rm -f "$table"' EXIT
for name in matrix "matrix sm90"; do
  if [ "$(grep -cxF -e "<!-- $name -->" -e "<!-- /$name -->" README.md)" != 2 ]; then
    echo "README.md needs the lines '<!-- $name -->' and '<!-- /$name -->' once each: a table goes between them" >&2
    exit 1
  fi
  device=cpu
  [ "$name" = matrix ] || device=sm90
  "$quire" backends --device "$device" --markdown >"$table"
  sed -i -e "/^<!-- $name -->\$/,/^<!-- \/$name -->\$/{//!d}" -e "/^<!-- $name -->\$/r $table" README.md
done
