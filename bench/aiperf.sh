#!/usr/bin/env bash
# NVIDIA's aiperf (Apache-2.0) on a running server: streaming chats, eight at a time. Fails when a request does, or when
# an answer has not the tokens that were asked for.
#
#   bench/aiperf.sh http://127.0.0.1:8080 MODEL_NAME [more of `aiperf profile`]
#
# Makes .deps/aiperf-venv on its first run (139 packages, 1.2 GB). Only aiperf itself is pinned, since it is a tool that
# neither builds nor tests need. Prompts are made with a small tokenizer of the tests; counts are the server's own.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 URL MODEL_NAME [more of aiperf profile]" >&2; exit 2; }
url=$1 model=$2
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${QUIRE_DEPS_DIR:-$root/.deps}/aiperf-venv
if [ ! -x "$venv/bin/aiperf" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check aiperf==0.13.0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tokenizer"
cp "$root/tests/data/golden/tokenizers/smollm/tokenizer.json" "$work/tokenizer/"
echo '{"tokenizer_class": "PreTrainedTokenizerFast"}' >"$work/tokenizer/tokenizer_config.json"
tokens=48
cd "$work"
"$venv/bin/aiperf" profile --url "$url" --model "$model" --endpoint-type chat --streaming --concurrency 8 \
  --request-count 48 --synthetic-input-tokens-mean 200 --output-tokens-mean $tokens --extra-inputs ignore_eos:true \
  --extra-inputs temperature:0 --tokenizer "$work/tokenizer" --use-server-token-count --ui none \
  --output-artifact-dir "$work/out" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
python3 - "$work/out/profile_export_aiperf.json" $tokens <<'END'
import json
import sys

report, tokens = json.load(open(sys.argv[1])), float(sys.argv[2])
for name in ("request_count", "request_throughput", "output_token_throughput", "time_to_first_token", "inter_token_latency",
             "request_latency", "output_sequence_length"):
    figure = report[name]
    print(f"{name:24}", *(f"{key} {figure[key]:.2f}" for key in ("avg", "p50", "p99") if figure.get(key) is not None), figure["unit"])
wrong = report.get("error_summary") or report["output_sequence_length"]["avg"] != tokens
sys.exit(f"errors, or answers not of {tokens:.0f} tokens: {report.get('error_summary')}" if wrong else 0)
END
