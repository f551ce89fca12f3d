#!/usr/bin/env bash
#
# All tests, from a bare machine on: `make check` (full) and `make check-quick` (unit, engine and regress only); and what needs a
# GPU, on a machine that has one, nvcc and a server with its development files: `make check-gpu` (CUDA_ARCH=sm_90 for one chip only).
# Ends with one line "N passed, M failed"; exit status 0 only if nothing failed and every suite ran.
#
# Everything runs on throwaway servers in a temporary folder, as a user that is not root. Counted are: the rule checks
# (1 each), unit and engine test cases (plain and sanitized), regress and isolation files, TAP assertions.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

MODE=${1:-full}
case $MODE in full | quick | gpu) ;; *) die "usage: $0 full|quick|gpu" ;; esac

PASSED=0
FAILED=0
BROKEN=()
KEEP=

# add SUITE PASSED FAILED
add() {
    PASSED=$((PASSED + $2))
    FAILED=$((FAILED + $3))
    say "$1: $2 passed, $3 failed (${SECONDS}s since start)"
    if [ "$3" -gt 0 ]; then
        BROKEN+=("$1")
    fi
}

# Prints "passed failed" from the last "N passed, M failed" line of a file, or nothing.
counts_in() { sed -n 's/^\([0-9][0-9]*\) passed, \([0-9][0-9]*\) failed$/\1 \2/p' "$1" | tail -n 1; }

cleanup() {
    [ -n "${WORK:-}" ] || return 0
    for name in data device; do
        if [ -d "$WORK/$name" ]; then stop_server "$name"; fi
    done
    if [ -n "$KEEP" ]; then
        say "left for a look: $WORK"
    else
        rm -rf "$WORK"
    fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

rule_suite() {
    local log=$WORK/rule.log failed=0
    "$ROOT/tools/check_imports.sh" --self-test >"$log" 2>&1 || { failed=$((failed + 1)); cat "$log"; }
    "$ROOT/tools/check_imports.sh" >"$log" 2>&1 || { failed=$((failed + 1)); cat "$log"; }
    add "import rule" $((2 - failed)) "$failed"
}

# The linker accepts a module with holes, the server then does not; and a name exported by mistake can capture that of
# another extension, or be captured.
symbol_suite() {
    local failed=0 symbols
    symbols=$(nm -D --undefined-only "$ROOT/vecgpu.so" | grep -E 'vecgpu' || true)
    if [ -n "$symbols" ]; then
        failed=$((failed + 1))
        printf 'declared but nowhere defined:\n%s\n' "$symbols"
    fi
    symbols=$(nm -D --defined-only "$ROOT/vecgpu.so" | grep -vE ' (Pg_magic_func|_PG_init|pg_finfo_vecgpu_.*|vecgpu_.*)$' || true)
    if [ -n "$symbols" ]; then
        failed=$((failed + 1))
        printf 'exported, but src/vecgpu.map should hide it:\n%s\n' "$symbols"
    fi
    add "symbols" $((2 - failed)) "$failed"
}

# run_program NAME COMMAND...: a program of checks; adds to the caller's `passed` and `failed`. The limit is for what never ends: on a
# busy machine a sanitized program may take many times what it takes alone.
run_program() {
    local name=$1 log=$WORK/program.log status=0 counts
    shift
    # Tests of failing allocations expect null, as malloc gives it.
    ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
        timeout 1800 "$@" >"$log" 2>&1 || status=$?
    counts=$(counts_in "$log")
    [ -n "$counts" ] || counts="0 1"
    # A crash after the last test, or a leak, is a failure too.
    if [ "$status" -ne 0 ] && [ "${counts#* }" -eq 0 ]; then counts="${counts% *} 1"; fi
    passed=$((passed + ${counts% *}))
    failed=$((failed + ${counts#* }))
    if [ "${counts#* }" -gt 0 ]; then
        say "$name, exit status $status:"
        grep -v '^ok ' "$log" | tail -n 60
    fi
}

unit_suite() {
    local source name kind passed=0 failed=0
    say "building unit tests"
    make -C "$ROOT" --no-print-directory -s -k -j"$JOBS" unit || {
        say "a unit test does not compile"
        failed=1
    }
    for source in "$ROOT"/test/unit/*.cpp; do
        [ -e "$source" ] || continue
        name=$(basename "$source" .cpp)
        for kind in unit sanitized; do
            if [ ! -x "$ROOT/build/$kind/$name" ]; then continue; fi
            run_program "unit test $kind/$name" "$ROOT/build/$kind/$name"
        done
    done
    add unit "$passed" "$failed"
}

# Programs that need no server: of the engine, and of the devices. The thread sanitizer of some compilers cannot stand the
# address space as newer kernels shuffle it.
engine_suite() {
    local kind name passed=0 failed=0 unshuffled=()
    say "building engine tests"
    make -C "$ROOT" --no-print-directory -s -k -j"$JOBS" engine-tests || {
        say "an engine test does not compile"
        failed=1
    }
    if setarch "$(uname -m)" -R true 2>/dev/null; then unshuffled=(setarch "$(uname -m)" -R); fi
    cd "$ROOT"
    for kind in engine engine-sanitized engine-tsan; do
        for name in $(cd test/engine && ls ./*.cpp) parity; do
            name=$(basename "$name" .cpp)
            if [ ! -x "build/$kind/$name" ]; then continue; fi
            case $kind in
            engine-tsan) run_program "engine test $kind/$name" "${unshuffled[@]}" "build/$kind/$name" ;;
            *) run_program "engine test $kind/$name" "build/$kind/$name" ;;
            esac
        done
    done
    cd "$WORK"
    add engine "$passed" "$failed"
}

# The server's user need not be able to read the checkout (it may lie in /root), so the tests run from a copy.
copy_tests() {
    mkdir "$WORK/tree"
    cp -R -P "$ROOT/test" "$WORK/tree/"
    cp -R "$ROOT/expected" "$WORK/tree/" 2>/dev/null || mkdir "$WORK/tree/expected"
    rm -rf "$WORK/tree/test/unit" "$WORK/tree/test/engine" "$WORK/tree/test/device" "$WORK/tree/test/results" "$WORK/tree/test/tmp_check"
    if is_root; then chown -R "$SERVER_USER" "$WORK/tree"; fi
}

# regress_suite SUITE PROGRAM TEST...: pg_regress or pg_isolation_regress, on the server SERVER
regress_suite() {
    local suite=$1 program=$2 log=$WORK/$1.log out=$WORK/$1-out passed failed
    shift 2
    as_server_user mkdir "$out"
    as_server_user bash -c 'cd tree && exec "$@"' - "$program" --bindir="$PG_BINDIR" --inputdir=test --outputdir="$out" \
        --host="$WORK" --port=5432 --user="$SERVER_USER" --dbname="vecgpu_$suite" "$@" >"$log" 2>&1 || true
    # PostgreSQL 15 prints "test NAME ... ok", later versions print TAP.
    passed=$(grep -cE '^(test .*\.\.\. ok|ok [0-9]+)' "$log" || true)
    failed=$(($# - passed))
    if [ "$failed" -gt 0 ]; then
        grep -vE '^(test .*\.\.\. ok|ok [0-9]+)' "$log" || true
        if [ -s "$out/regression.diffs" ]; then head -n 300 "$out/regression.diffs"; fi
        as_server_user tail -n 30 "$WORK/$SERVER/server.log"
        KEEP=1
    fi
    add "$suite" "$passed" "$failed"
}

# names FOLDER SUFFIX: test names, sorted; `setup` (it creates the extension) first
names() {
    local file name
    if [ -e "$ROOT/$1/setup$2" ]; then echo setup; fi
    for file in "$ROOT/$1"/*"$2"; do
        [ -e "$file" ] || continue
        name=$(basename "$file" "$2")
        [ "$name" = setup ] || echo "$name"
    done
}

# tap_suite SUITE DEVICE FILE...: DEVICE as for VECGPU_TEST_DEVICE (test/perl/VecgpuTest.pm)
tap_suite() {
    local suite=$1 device=$2 log=$WORK/tap.log counts files regress_log tap=$WORK/tap$2
    shift 2
    files=("$@")
    [ -e "${files[0]}" ] || return 0
    as_server_user mkdir -p "$tap/tmp_check/log" "$tap/ports"
    as_server_user env VECGPU_TEST_DEVICE="$device" TESTDIR="$tap" TESTDATADIR="$tap/tmp_check" TESTLOGDIR="$tap/tmp_check/log" \
        PG_TEST_PORT_DIR="$tap/ports" PATH="$PG_BINDIR:$PATH" PGPORT=65432 \
        PG_REGRESS="$PGXS_SRC/test/regress/pg_regress" \
        bash -c 'cd tree && exec "$@"' - perl run_tap.pl 2 "$PGXS_SRC/test/perl:$WORK/tree/test/perl:$WORK/tree" \
        "${files[@]#"$WORK"/tree/}" 2>&1 | tee "$log" || true
    counts=$(counts_in "$log")
    [ -n "$counts" ] || counts="0 1"
    if [ "${counts#* }" -gt 0 ]; then
        KEEP=1
        for regress_log in "$tap"/tmp_check/log/regress_log_*; do
            if grep -qE 'not ok|died|error running|timed out' "$regress_log" 2>/dev/null; then
                say "end of ${regress_log##*/}"
                tail -n 40 "$regress_log"
            fi
        done
    fi
    # shellcheck disable=SC2086
    add "$suite" $counts
}

prepare_sql() {
    copy_tests
    cp "$ROOT/tools/run_tap.pl" "$WORK/tree/"
}
# A late answer of the engine is no error: machines are busy.
SETTINGS=("fsync = off" "autovacuum = off" "max_wal_size = '4GB'" "max_prepared_transactions = 10" "log_min_messages = warning"
    "vecgpu.engine_timeout = '60s'")

# sql_suites SUFFIX: regress and, in full, isolation tests on the server SERVER
sql_suites() {
    mapfile -t TESTS < <(names test/sql .sql)
    if [ "${#TESTS[@]}" -gt 0 ]; then
        say "regress$1"
        regress_suite "regress$1" "$PGXS_SRC/test/regress/pg_regress" "${TESTS[@]}"
    fi
    [ "$MODE" != quick ] || return 0
    mapfile -t TESTS < <(names test/specs .spec)
    if [ "${#TESTS[@]}" -gt 0 ]; then
        say "isolation$1"
        regress_suite "isolation$1" "$PGXS_SRC/test/isolation/pg_isolation_regress" "${TESTS[@]}"
    fi
}


# Kernels under compute-sanitizer, on small sizes: every form, storage and way. One check a run; runs share the GPU, as they are slow
# on the CPU's side.
sanitizer_suite() {
    local passed=0 failed=0 name folder=$WORK/sanitizer bench="build/device_bench cuda/build/vecgpu_cuda.so --k 10 --calls 1"
    local graph="$bench --graph --ef 32 --batches"
    command -v compute-sanitizer >/dev/null || die "No compute-sanitizer on the PATH (it comes with CUDA)."
    mkdir -p "$folder"
    # sanitized TOOL COMMAND...
    sanitized() {
        local name=$folder/$((++SANITIZED))
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n || true; done
        (
            cd "$ROOT"
            printf '%s\n' "$*" >"$name.command"
            timeout 300 compute-sanitizer --tool "$1" --error-exitcode 9 "${@:2}" >"$name.log" 2>&1 && touch "$name.good"
        ) &
    }
    local SANITIZED=0 tool
    # shellcheck disable=SC2086
    {
        for tool in memcheck initcheck; do
            sanitized $tool cuda/build/select_test --tiny
            sanitized $tool $graph 1,2,16,140 --queries 140 --rows 3000 --dimensions 96 --exact --storages f32,f16,bf16,i8
        done
        # It cannot follow the blocks of a cluster ("failed to handle a hardware exception"), so from 67 queries on: one block a query.
        for tool in memcheck racecheck; do
            sanitized $tool $graph 134 --queries 134 --rows 2200 --dimensions 160 --storages f32,i8
            sanitized $tool $graph 400 --queries 400 --rows 2200 --dimensions 32 --storages f32,i8
            sanitized $tool $graph 3000 --queries 3000 --rows 2200 --dimensions 32 --storages f32,i8
            sanitized $tool $graph 134 --queries 134 --rows 12000 --dimensions 160 --ef 300
            sanitized $tool $graph 400 --queries 400 --rows 8000 --dimensions 96 --ef 160
            sanitized $tool $bench --exact --queries 2 --rows 40000 --dimensions 64 --batches 1,2 --storages f16,i8
            sanitized $tool $bench --exact --k 100 --queries 1 --rows 40000 --dimensions 40 --batches 1
            sanitized $tool $bench --exact --queries 600 --rows 9000 --dimensions 64 --batches 600 --storages f32,i8
            sanitized $tool cuda/build/hash_test --small
        done
        sanitized racecheck cuda/build/select_test --tiny
        sanitized memcheck $graph 1700 --queries 1700 --rows 12000 --dimensions 40 --ef 300
        sanitized memcheck $graph 1,16,40 --queries 40 --rows 20000 --dimensions 200 --storages f32,i8 --ef 32,300
        sanitized memcheck env VECGPU_WALK_IMAGE=0 $graph 1,2,16,140 --queries 140 --rows 3000 --dimensions 70 --storages f32,f16,bf16
        sanitized memcheck cuda/build/dispatch_test --tests
    }
    wait
    for name in "$folder"/*.command; do
        name=${name%.command}
        if [ -e "$name.good" ]; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            say "$(cat "$name.command"):"
            grep -v '^=\+ *$' "$name.log" | tail -n 40
        fi
    done
    add sanitizer "$passed" "$failed"
}

# sm_90, say
this_chip() { nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sed -n '1s/\([0-9]*\)\.\([0-9]*\)/sm_\1\2/p'; }

# The same suites and answers on the GPU; and the device against the host device, the k-selection against a
# sort, and the hash tables against sets.
gpu_suites() {
    local passed=0 failed=0
    say "building"
    make -C "$ROOT" --no-print-directory -s -j"$JOBS" cuda cuda-test device-bench build/engine/parity
    # The way of chips that have no clusters, for this one.
    make -C "$ROOT/cuda" --no-print-directory -s -j"$JOBS" ARCH="$(this_chip)" FEATURES=compute_80 BUILD=build/older
    make -C "$ROOT" --no-print-directory -s -j"$JOBS" all install
    run_program parity "$ROOT/build/engine/parity" "$ROOT/cuda/build/vecgpu_cuda.so"
    run_program parity_rows env VECGPU_WALK_IMAGE=0 "$ROOT/build/engine/parity" "$ROOT/cuda/build/vecgpu_cuda.so"
    run_program parity_older "$ROOT/build/engine/parity" "$ROOT/cuda/build/older/vecgpu_cuda.so"
    run_program parity_large "$ROOT/build/engine/parity" --large "$ROOT/cuda/build/vecgpu_cuda.so"
    run_program select_test "$ROOT/cuda/build/select_test"
    run_program hash_test "$ROOT/cuda/build/hash_test"
    run_program dispatch_test "$ROOT/cuda/build/dispatch_test" --tests
    add device "$passed" "$failed"
    sanitizer_suite
    prepare_sql
    SERVER=device
    start_server device "${SETTINGS[@]}" "vecgpu.device = gpu" "vecgpu.fallback = off" "vecgpu.device_form = graph"
    sql_suites "_gpu"
    stop_server device
}

if [ "$MODE" = gpu ]; then
    find_pg_config
    pg_config_usable "$PG_CONFIG" || die "No PostgreSQL server development files found; give PG_CONFIG=/path/to/pg_config."
    PG_BINDIR=$("$PG_CONFIG" --bindir)
    PGXS_SRC=$("$PG_CONFIG" --pgxs)
    PGXS_SRC=${PGXS_SRC%/makefiles/pgxs.mk}
    make_work_dir check
    gpu_suites
else
    ensure_packages tests
    make_work_dir check
    rule_suite
    build_and_install
    symbol_suite
    unit_suite
    engine_suite
    prepare_sql

    SERVER=data
    start_server data "${SETTINGS[@]}"
    sql_suites ""
    stop_server data

    # Once more, with every search sent through the engine, on its CPU device, where no answer is an error.
    SERVER=device
    start_server device "${SETTINGS[@]}" "vecgpu.device = host" "vecgpu.fallback = off" "vecgpu.device_form = graph"
    sql_suites "_device"
    stop_server device

    if [ "$MODE" = full ]; then
        say "TAP"
        tap_suite TAP "" "$WORK"/tree/test/t/*.pl
        say "TAP, through the engine"
        mapfile -t TESTS < <(find "$WORK/tree/test/t" -name '*.pl' ! -name '*_engine*' | sort)
        tap_suite TAP_device host "${TESTS[@]}"
    fi
fi

if [ "${#BROKEN[@]}" -gt 0 ]; then say "failures in: ${BROKEN[*]}"; fi
cleanup
trap - EXIT
echo "$PASSED passed, $FAILED failed"
[ "$FAILED" -eq 0 ]
