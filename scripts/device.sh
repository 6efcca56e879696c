#!/usr/bin/env bash
# On a machine with a GPU, in a checkout: verifies and times what scripts/device_pack.sh packed, in one go.
# usage: scripts/device.sh PACK.tar.xz [PART...]
#   parts: tests (module tests on the device) golden verify ceilings attention pages start step prefill offline
#          sanitize (compute-sanitizer over a smoke set) sanitize_attention (the same over 14 of verify's SHARES, 32 unless
#          set) fp8 (step and prefill with fp8 weights) peers (with PEERS: a folder or .tar.xz of one with bench.py,
#          table.py and libraries in lib/ that times other projects' kernels) model (with MODEL: the file of SmolLM2 that
#          scripts/quickstart.sh fetches); these only when named
# Every part has its own time limit and log in $OUT (build/device/out unless set); the table of parts and the
# figures come last. Whole: under 8 minutes on an H200. Exit code 1 when a part failed.
set -uo pipefail
cd "$(dirname "$0")/.."
pack=$1
shift
parts=${*:-ceilings tests golden verify attention pages start step prefill offline}
out=${OUT:-build/device/out}
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
mkdir -p "$out"
tar -C "$run" -xJf "$pack" || exit 1
bin=$run/quire-device
export LD_LIBRARY_PATH=$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export QUIRE_GOLDEN_DIR=${QUIRE_GOLDEN_DIR:-$PWD/tests/data/golden}
llama=bench/models/llama31_8b
dummy="$llama --device cuda --load-format dummy"
failed=0 table=""

# part NAME SECONDS COMMAND...: its output goes to a log and, by its last lines, to the screen.
part() {
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  tell "$name" $? $((SECONDS - begin))
}

# begin NAME SECONDS COMMAND...: a part beside those begun before; finish waits for all of them and tells.
begun=()
begin() {
  local name=$1 limit=$2
  shift 2
  begun+=("$name")
  (
    SECONDS=0
    timeout "$limit" "$@" >"$out/$name.log" 2>&1
    echo "$? $SECONDS" >"$run/$name.code"
  ) &
}

finish() {
  local name code took
  wait
  for name in "${begun[@]}"; do
    read -r code took <"$run/$name.code" || code=1 took=0
    tell "$name" "$code" "$took"
  done
  begun=()
}

# tell NAME CODE SECONDS
tell() {
  local name=$1 code=$2
  if [ $code -ne 0 ]; then
    failed=$((failed + 1))
    grep -E 'FAILED|Failure|rror|check failed' "$out/$name.log" | head -n 12
    tail -n 8 "$out/$name.log"
  fi
  table+=$(printf '%-34s %4d s  %s' "$name" "$3" "$([ $code -eq 0 ] && echo passed || echo "FAILED ($code)")")$'\n'
}

figures() { for log in "$@"; do [ -f "$out/$log.log" ] && tail -n 14 "$out/$log.log" | cut -c1-220; done; }

"$bin/quire" --version | tail -n 1
for name in $parts; do
  case $name in
    tests)
      for program in "$bin"/quire_*_device_test; do
        [ "$(basename "$program")" = quire_golden_device_test ] && continue
        part "$(basename "$program" _device_test)" 90 "$program" --gtest_brief=1
      done ;;
    golden) part golden 90 "$bin/quire_golden_device_test" --gtest_brief=1 ;;
    verify) part verify 90 "$bin/quire" verify --device cuda ;;
    ceilings) part ceilings 30 "$bin/quire" bench device --device cuda ;;
    attention)
      part attention 60 "$bin/quire" bench attention --device cuda --backend cuda --plot "$out/attention.svg" \
        --shape heads=32/8,dim=128,batch=16,ctx=8192 --shape heads=32/8,dim=128,batch=64,ctx=8192 \
        --shape heads=32/8,dim=128,batch=1,ctx=131072 --shape heads=64/8,dim=128,batch=1,ctx=8192,q=8192 \
        --shape heads=128/1,dim=576/512,batch=64,ctx=8192 \
        --shape heads=32/8,dim=128,batch=64,ctx=8448,shared=8192 --shape heads=32/8,dim=128,batch=64,ctx=8448,prefix=8192
      part attention_fp8 30 "$bin/quire" bench attention --device cuda --backend cuda --kv-dtype fp8_e4m3 \
        --shape heads=32/8,dim=128,batch=16,ctx=8192 ;;
    pages)
      part pages 40 "$bin/quire" bench pages --device cuda --backend cuda --plot "$out/pages.svg" ;;
    start)
      part start 40 env TIMEFORMAT='start to end: %R s' bash -c 'time "$@"' - "$bin/quire" run $dummy --ids 1,2,3,4,5 \
        --max-tokens 4 --max-context 4096 --json ;;
    step)
      part step 60 "$bin/quire" bench step $dummy --batch 1,8,16,64 --context 1024 --max-context 4096 --steps 64 \
        --plot "$out/step.svg" ;;
    prefill)
      part prefill 60 "$bin/quire" bench offline $dummy --requests 4 --prompt 8192 --output 1 --max-running 1 \
        --chunk-tokens 8192 --max-context 8448 ;;
    offline)
      part offline 120 "$bin/quire" bench offline $dummy --requests 256 --prompt 1024 --output 1024 ;;
    fp8)
      part step_fp8 60 "$bin/quire" bench step ${dummy/llama31_8b/llama31_8b_fp8} --batch 1,8,16,64 --context 1024 \
        --max-context 4096 --steps 64
      part prefill_fp8 60 "$bin/quire" bench offline ${dummy/llama31_8b/llama31_8b_fp8} --requests 4 --prompt 8192 \
        --output 1 --max-running 1 --chunk-tokens 8192 --max-context 8448 ;;
    sanitize)
      # Small cases of every kind of kernel. The tools work on one core each, so all run at once. racecheck takes 50 s
      # and more for a model, so it sees seven, each alone; it itself fails (an internal error of 2025.3) on the kernel
      # of few-row products, whose weights come by bulk copies, and with a list of kernels to look at. synccheck looks
      # at the barriers of all.
      small='RopeDevice.Halves*:Kv*:MoeDevice.Equal*:RouteDevice*:HeadLinear*:RmsNorm*:Activation*:Copy*:Embed*'
      small+=':Softcap*:SampleDevice.Rows*:ScoreDevice*:LinearDevice.Several*:LinearDevice.FewRowsOf*:RoundRowsDevice.F16*'
      for tool in memcheck racecheck initcheck synccheck; do
        check=(compute-sanitizer --tool $tool --error-exitcode 9)
        models=('*')
        if [ $tool = racecheck ]; then
          check+=(--kernel-name-exclude kns=ring_kernel)
          models=(llama_bf16 llama_fp8_e4m3 mistral_swa_bf16 qwen3_fp8_e4m3 gpt_oss_bf16 gemma3_bf16 deepseek_v3_bf16)
        fi
        begin "${tool}_ops" 300 "${check[@]}" "$bin/quire_ops_cuda_device_test" --gtest_filter="$small"
        for model in "${models[@]}"; do
          begin "${tool}_engine_${model//\*/all}" 300 "${check[@]}" "$bin/quire_engine_device_test" \
            --gtest_filter="*DeviceSmoke*/$model"
        done
      done
      finish ;;
    sanitize_attention)
      # Shares of verify's cases: each has some of all kinds of kernels, and no case that another process has.
      share=0
      for tool in racecheck memcheck initcheck synccheck; do
        for ((i = 0; i < $([ $tool = racecheck ] && echo 8 || echo 2); i++)); do
          begin "${tool}_attention_$((++share))" 300 compute-sanitizer --tool $tool --error-exitcode 9 "$bin/quire" \
            verify --device cuda --backend cuda --share "$share/${SHARES:-32}"
        done
      done
      finish ;;
    peers)
      kit=${PEERS:?peers need PEERS}
      [ -d "$kit" ] || { tar -C "$run" -xJf "$kit" && kit=$run/$(basename "$kit" .tar.xz); }
      part peers 90 env PYTHONPATH="$kit/site" python3 "$kit/bench.py" --lib "$kit/lib" --out "$out/peers.jsonl" \
        --peers torch,fa3,cudnn,flashmla --only decode,prefill,mla,cascade
      python3 "$kit/table.py" "$out/peers.jsonl" >"$out/peers_table.log" ;;
    model)
      part model 60 python3 bench/score_golden.py "$bin/quire" "${MODEL:?model needs MODEL}" "$QUIRE_GOLDEN_DIR/smollm2" \
        --device cuda
      part answer 30 "$bin/quire" run "$MODEL" --device cuda --chat -p "What is the capital of France?" --max-tokens 60 ;;
    *) echo "no part is called $name" >&2; exit 2 ;;
  esac
done
echo
figures ceilings attention attention_fp8 pages start step step_fp8 prefill prefill_fp8 offline model answer
[ -f "$out/golden.log" ] && grep 'mean error' "$out/golden.log" | head -n 12
[ -f "$out/verify.log" ] && tail -n 4 "$out/verify.log"
echo
echo "$table"
[ "$failed" -eq 0 ]
