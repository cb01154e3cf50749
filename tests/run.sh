#!/usr/bin/env bash
# run.sh [--long] [--allow-skips] [--no-sanitizers]: installs dependencies, builds, and runs every
# test. A skipped test that is not in expected_skips.txt fails the run, which prints the reason,
# unless --allow-skips is given (on a machine without a network, for example). --long adds the tests
# labelled long. All output also goes to build/tests.log. At the end: each failed test of every
# phase with its first failing line (failures.py), then ctest's own summary.
set -eu
cd "$(dirname "$0")/.."
long=no allow_skips=no sanitizers=yes status=0 gpu=unknown gpu_log= phases=()
for flag in "$@"; do
    case $flag in
    --long) long=yes ;;
    --allow-skips) allow_skips=yes ;;
    --no-sanitizers) sanitizers=no ;;
    *)
        echo "usage: tests/run.sh [--long] [--allow-skips] [--no-sanitizers]" >&2
        exit 2
        ;;
    esac
done
export CTEST_OUTPUT_ON_FAILURE=1
if [ -z "${TESTS_LOG:-}" ]; then # the same again, with a log
    mkdir -p build
    TESTS_LOG=build/tests.log "$PWD/tests/run.sh" "$@" 2>&1 | tee build/tests.log
    exit "${PIPESTATUS[0]}"
fi

step()
{
    printf '\n== [%d s] %s\n' "$SECONDS" "$*"
}

build()
{
    local preset=$1
    shift
    mkdir -p build
    cmake --preset "$preset" >"build/$preset.configure.log" 2>&1 ||
        { cat "build/$preset.configure.log"; exit 1; }
    cmake --build --preset "$preset" -- "$@"
}

# tests PRESET ARGUMENTS...: runs ctest in that build folder; prints its output, keeps it in a log
# there, notes a failure
tests()
{
    local folder=build/$1
    shift
    phases+=("$folder")
    ctest --test-dir "$folder" --no-tests=error "$@" 2>&1 | tee "$folder/tests.log"
    [ "${PIPESTATUS[0]}" = 0 ] || status=1
}

# skipped LOG...: the names of the tests that ctest's logs report as skipped, sorted
skipped()
{
    sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: +([^ ]+) .*\*\*\*(Skipped|Not Run).*/\1/p' "$@" | sort
}

# The tests that the file expects to be skipped on this machine. GPU tests are not even built
# without the toolkit.
expected_skips()
{
    local name feature
    sed -E 's/#.*//; /^[[:space:]]*$/d' tests/expected_skips.txt | while read -r name feature; do
        case $name in cuda.*) [ $gpu = absent ] || continue ;; esac
        [ -z "$feature" ] || ! python3 tests/e2e/cpu.py "$feature" || continue
        echo "$name"
    done | sort
}

# reason TEST: the message of a skipped test, from ctest's logs; ctest's summary leaves it out
reason()
{
    awk -v name="$1" '/ Testing: / { here = $NF == name } here && sub(/^skipped: */, "") { print; exit }' \
        build/{release,cuda}/Testing/Temporary/LastTest.log 2>/dev/null
}

# Prints how the skipped tests differ from the expected ones, and why; fails when they differ.
check_skips()
{
    local expected found name why
    expected=$(expected_skips) found=$(skipped "$log" $gpu_log)
    [ "$expected" != "$found" ] || return 0
    for name in $(comm -13 <(echo "$expected") <(echo "$found")); do
        why=$(reason "$name")
        echo "skipped, and not in tests/expected_skips.txt: $name: ${why:-it did not say why}"
    done
    for name in $(comm -23 <(echo "$expected") <(echo "$found")); do
        echo "in tests/expected_skips.txt, and not skipped: $name"
    done
    return 1
}

step "dependencies"
jobs/install_deps.sh --tests

if [ $sanitizers = yes ]; then
    step "unit and kernel tests, mutated inputs and two ranks under AddressSanitizer and UBSan"
    build asan-ubsan unit kernels fuzz shoal
    # a small quarantine: tests of bounded memory would count freed bytes that ASan still holds
    ASAN_OPTIONS=quarantine_size_mb=4 \
        LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0" \
        tests asan-ubsan -L '^(unit|kernels|fuzz|sanitized)$' -LE '^long$' -j3

    step "what has threads under ThreadSanitizer"
    build tsan threads
    tests tsan -L '^threads$'
fi

step "release build"
build release

if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    step "CUDA: everything compiles and links, for one architecture"
    PATH=$PATH:/usr/local/cuda/bin build cuda open_device kernels_gpu peaks attention_speed
    step "tests on a GPU: skipped where there is none"
    gpu=there gpu_log=build/cuda/tests.log
    build/cuda/tests/cuda/open_device || { [ $? = 77 ] && gpu=absent; } || status=1
    tests cuda -R '^cuda\.(gpu\.|open_device$)' >/dev/null
    sed -n '/tests passed,.* tests failed/,$p' $gpu_log
fi

if command -v smpicc >/dev/null; then
    step "the program for simulated clusters (SimGrid)"
    build simulate shoal
fi

step "tests"
log=build/release/tests.log
select=(-LE '^long$')
[ $long = yes ] && select=()
tests release -j6 "${select[@]}" # most wait most of the time (e2e/CMakeLists.txt)

if [ $long = yes ] && command -v clang >/dev/null; then
    step "libFuzzer, ten minutes a target"
    build libfuzzer fuzz_libfuzzer
    tests/fuzz/libfuzzer.sh build/libfuzzer/tests/fuzz_libfuzzer 600 build/libfuzzer/found || status=1
fi

step "skipped tests against tests/expected_skips.txt"
if ! check_skips; then
    if [ $allow_skips = yes ]; then
        echo "allowed by --allow-skips"
    else
        echo "this fails the run: mend the reason, or allow it with --allow-skips"
        status=1
    fi
fi
step "end; all of this stands in $TESTS_LOG, too"
tests/failures.py "${phases[@]}"
[ $status = 0 ] || echo "something above failed"
sed -n '/tests passed,.* tests failed/,$p' $log
exit "$status"
