#!/usr/bin/env bash
# Installs the Debian packages of the named lists (apt.txt, ci.txt beside this file) that are missing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
missing=()
for list in "$@"; do
  while read -r name _; do
    case "$name" in ''|'#'*) continue ;; esac
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done <"$here/$list"
done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" != 0 ]; then
  echo "These Debian packages are missing; install them as root: ${missing[*]}" >&2
  exit 2
fi
echo "installing ${#missing[@]} Debian packages: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
