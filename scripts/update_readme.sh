#!/usr/bin/env bash
# Rewrites README.md's table of attention backends, between <!-- matrix --> and <!-- /matrix -->, from the
# program itself. tests/cli_test.py fails while the two differ.
# usage: scripts/update_readme.sh [QUIRE_PROGRAM]      the program is build/cpu/quire unless named
set -euo pipefail
quire=$(realpath "${1:-$(dirname "$0")/../build/cpu/quire}")
cd "$(dirname "$0")/.."
if [ "$(grep -cxF -e '<!-- matrix -->' -e '<!-- /matrix -->' README.md)" != 2 ]; then
  echo "README.md needs the lines '<!-- matrix -->' and '<!-- /matrix -->' once each: the table goes between them" >&2
  exit 1
fi
table=$(mktemp)
trap 'rm -f "$table"' EXIT
"$quire" backends --markdown >"$table"
sed -i -e '/^<!-- matrix -->$/,/^<!-- \/matrix -->$/{//!d}' -e "/^<!-- matrix -->\$/r $table" README.md
