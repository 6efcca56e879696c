#!/usr/bin/env bash
# Builds everything and runs all tests: the CPU build, the structure and format checks, the sanitizer builds,
# the fuzz targets for a bounded time, and the example program against an installed tree.
# usage: scripts/test.sh [quick]     quick: only the CPU build and its tests
# Ends with "N passed, N failed, N skipped (no device)" and, above it, what each part took.
set -uo pipefail
cd "$(dirname "$0")/.."
fuzz_seconds=${QUIRE_FUZZ_SECONDS:-20}
passed=0 failed=0 skipped=0 report=""

# part NAME COMMAND...: one test of its own, timed; its output is shown only when it fails.
part() {
  local name=$1 begin=$SECONDS log
  shift
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    passed=$((passed + 1)) report+=$(printf '%6d s  passed  %s' $((SECONDS - begin)) "$name")$'\n'
    echo "passed  $name ($((SECONDS - begin)) s)"
  else
    failed=$((failed + 1)) report+=$(printf '%6d s  FAILED  %s' $((SECONDS - begin)) "$name")$'\n'
    echo "FAILED  $name ($((SECONDS - begin)) s)"
    tail -n 60 "$log"
  fi
  rm -f "$log"
}

# suite PRESET CTEST-ARGUMENTS...: every CTest test counts. Skipped ones, which ctest has among those that passed,
# count apart where their label is `device`; any other has failed, as one has that is switched off.
suite() {
  local preset=$1 begin=$SECONDS log counts bad all device name without=0
  shift
  log=$(mktemp)
  ctest --test-dir "build/$preset" -j2 --output-on-failure "$@" 2>&1 | tee "$log"
  counts=$(grep -oE '[0-9]+ tests failed out of [0-9]+' "$log" | tail -n 1)
  bad=${counts%% *} all=${counts##* }
  if [ -z "$counts" ]; then
    bad=1 all=1
    echo "FAILED  ctest of $preset ran no test"
  fi
  device=$(ctest --test-dir "build/$preset" -N -L '^device$' | sed -nE 's/^ *Test +#[0-9]+: (.+)$/\1/p')
  while read -r name; do
    if grep -qxF -- "$name" <<<"$device"; then
      without=$((without + 1))
    else
      bad=$((bad + 1))
      echo "FAILED  $name was skipped"
    fi
  done < <(sed -nE 's/^[[:space:]]*[0-9]+ - (.+) \(Skipped\).*$/\1/p' "$log")
  while read -r name; do
    bad=$((bad + 1)) all=$((all + 1))
    echo "FAILED  $name is switched off"
  done < <(sed -nE 's/^[[:space:]]*[0-9]+ - (.+) \(Disabled\).*$/\1/p' "$log")
  passed=$((passed + all - bad - without)) failed=$((failed + bad)) skipped=$((skipped + without))
  report+=$(printf '%6d s  %d of %d passed, %d skipped  tests of %s' $((SECONDS - begin)) $((all - bad - without)) \
    "$all" "$without" "$preset")$'\n'
  rm -f "$log"
}

build() { cmake --preset "$1" "${@:3}" && ninja -C "build/$1" $2; }

format() {
  git ls-files 'src/*.cc' 'src/*.h' 'src/*.cu' 'src/*.cuh' 'include/*.h' 'tests/*.cc' 'tests/*.h' 'examples/*.cc' | xargs clang-format --dry-run -Werror
}

# The host modules; kernels and what calls the vendored code are left to the compiler's warnings.
lint() {
  git ls-files src/{base,tensor,platform,kv,checkpoint,tokenizer,scheduler,simulate,record,record/replay,engine,session,server/api,server/kv_view,server/metrics,server/page,server/bench}/*.cc | grep -v _test |
    xargs -P2 -n6 clang-tidy -p build/cpu --quiet
}

# The example builds against the installed tree, by CMake and by pkg-config, and answers.
installed() {
  local tree=$PWD/build/installed model=.deps/models/SmolLM2-135M-Instruct.Q4_1.gguf
  rm -rf "$tree" build/example && ninja -C build/cpu quire_library && cmake --install build/cpu --prefix "$tree" &&
    cmake -S examples/answer -B build/example -G Ninja -DCMAKE_PREFIX_PATH="$tree" && ninja -C build/example &&
    build/example/answer "$model" "What is the capital of France?" | grep Paris &&
    PKG_CONFIG_PATH=$(dirname "$(find "$tree" -name quire.pc)") \
      sh -c 'g++ -std=c++20 examples/answer/answer.cc -o build/example/answer_pc $(pkg-config --cflags --libs quire)' &&
    "$tree/bin/quire" --version
}

# The program alone is built in its own way (several files at a time), which only this shows to work.
quickstart() {
  local said
  said=$(scripts/quickstart.sh "What is the capital of France?")
  echo "$said"
  grep -q Paris <<<"$said"
}

# The disassembler is fetched where the toolkit lacks it: without one the check fails, it is not skipped.
machine_code() { scripts/deps/cuda_tools.sh && python3 tools/check_sass.py build/cuda/quire; }

have_nvcc() { command -v nvcc || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; }

scripts/deps/apt.sh apt.txt ci.txt && scripts/deps/fetch.sh && scripts/deps/test_venv.sh || exit 1
part "build cpu" build cpu all
suite cpu
if [ "${1:-}" != quick ]; then
  part "format" format
  part "lint" lint
  part "installed tree and example" installed
  part "quickstart" quickstart
  # The CUDA code compiles and its machine code is looked at; its tests say that they need a device. C++ files of this
  # preset come from the compiler cache of the first.
  if have_nvcc >/dev/null; then
    part "build cuda" build cuda "quire device_tests quire_platform_cuda_test"
    part "machine code" machine_code
    suite cuda -R 'device|platform_cuda'
  else
    echo "skipped  build cuda: no nvcc here (set CUDA_HOME)"
  fi
  part "build asan" build asan "host_tests fuzz_tests" -DQUIRE_FUZZ_SECONDS="$fuzz_seconds"
  suite asan -L 'host|fuzz'
  part "build tsan" build tsan threads_tests
  suite tsan -L threads
fi
echo
echo "$report"
echo "$passed passed, $failed failed, $skipped skipped (no device)"
[ "$failed" -eq 0 ]
