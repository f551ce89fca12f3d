#!/usr/bin/env bash
#
# The import rule: which room of src/ may include which, and who may include the server's headers.
# Prints each violation as file:line: reason and exits 1 if there is one.
#
#   check_imports.sh               checks this repository
#   check_imports.sh --self-test   checks that planted violations are found and clean code is not accused
set -euo pipefail

# Rooms that a room may include, besides itself.
allowed_rooms() {
    case $1 in
    pg) echo "" ;;
    core) echo "" ;;
    protocol) echo "" ;;
    page) echo "core pg" ;;
    am) echo "page core client planner pg" ;;
    planner) echo "page core client pg" ;;
    client) echo "protocol pg" ;;
    # Workers do by themselves what sessions do through the access method, so they stand above it.
    worker) echo "am page core client protocol pg" ;;
    engine) echo "protocol core" ;;
    *) return 1 ;;
    esac
}

# Single headers that a place may include beyond its rooms.
allowed_headers() {
    case $1 in
    cuda) echo "engine/device.h page/layout.h protocol/message.h core/types.h" ;;
    protocol) echo "core/types.h" ;;
    engine | test/unit | test/engine | test/device) echo "page/layout.h" ;;
    *) echo "" ;;
    esac
}

# Is this include, as written between the quotes or brackets, a header of PostgreSQL?
is_server_header() {
    case $1 in
    postgres.h | postgres_fe.h | postgres_ext.h | c.h | fmgr.h | funcapi.h | miscadmin.h | pgstat.h | pgtime.h | port.h | \
        varatt.h | windowapi.h | libpq-fe.h | pg_config*.h | pg_getopt.h | pg_trace.h | access/* | archive/* | backup/* | \
        bootstrap/* | catalog/* | commands/* | common/* | datatype/* | executor/* | fe_utils/* | foreign/* | jit/* | lib/* | \
        libpq/* | mb/* | nodes/* | optimizer/* | parser/* | partitioning/* | port/* | portability/* | postmaster/* | regex/* | \
        replication/* | rewrite/* | server/* | snowball/* | statistics/* | storage/* | tcop/* | tsearch/* | utils/*)
        return 0
        ;;
    esac
    return 1
}

VIOLATIONS=0
violation() {
    echo "$1: $2"
    VIOLATIONS=$((VIOLATIONS + 1))
}

contains() { case " $1 " in *" $2 "*) return 0 ;; esac; return 1; }

# Rooms that programs outside src/ may include.
program_rooms() {
    case $1 in
    test/unit) echo "core protocol" ;;
    test/engine | test/device) echo "engine core protocol" ;;
    *) echo "" ;;
    esac
}

# check_include PLACE FILE LINE TARGET: PLACE is the room, or cuda, or a folder of programs
check_include() {
    local place=$1 file=$2 at="$2:$3" target=$4 room

    # A header of ours wins over an equal name of the server's ("port/..." would not, but there is no such room).
    room=${target%%/*}
    if [ "$room" != "$target" ] && allowed_rooms "$room" >/dev/null; then
        if [ "$file" = src/page/layout.h ] && [ "$room" != core ]; then
            violation "$at" "layout.h is read by programs outside the server and may include core only, not $target"
        elif [ "$room" = "$place" ] || contains "$(allowed_headers "$place")" "$target"; then
            :
        elif contains "$(program_rooms "$place")" "$room"; then
            :
        elif ! allowed_rooms "$place" >/dev/null || ! contains "$(allowed_rooms "$place")" "$room"; then
            violation "$at" "$place may not include $target"
        fi
    elif is_server_header "$target"; then
        case $file in
        src/pg/*.h) ;;
        *) violation "$at" "only src/pg/*.h may include headers of PostgreSQL, not $place ($target)" ;;
        esac
    else
        case $target in
        ../* | */../*) violation "$at" "write the path from src/ on, not $target" ;;
        esac
    fi
}

# check_tree FOLDER
check_tree() {
    local file line text target place
    cd "$1"
    while IFS=: read -r file line text; do
        target=$(sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]\([^>"]*\)[>"].*/\1/p' <<<"$text")
        [ -n "$target" ] || continue
        case $file in
        src/*/*)
            place=${file#src/}
            place=${place%%/*}
            allowed_rooms "$place" >/dev/null || {
                violation "$file:$line" "unknown room $place: add it to the rule in tools/check_imports.sh"
                continue
            }
            ;;
        cuda/*) place=cuda ;;
        test/unit/* | test/engine/* | test/device/*)
            place=${file%/*}
            ;;
        *)
            violation "$file:$line" "sources live in the rooms of src/"
            continue
            ;;
        esac
        check_include "$place" "$file" "$line" "$target"
    done < <(find src cuda test/unit test/engine test/device -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.c' -o -name '*.cu' -o -name '*.cuh' \) \
        -exec grep -HnE '^[[:space:]]*#[[:space:]]*include' {} + 2>/dev/null | sort -t: -k1,1 -k2,2n)
    if [ "$VIOLATIONS" -gt 0 ]; then
        echo "$VIOLATIONS violation(s) of the import rule"
        return 1
    fi
}

# plant FILE INCLUDE EXPECTED(0 clean, 1 violation)
self_test() {
    local folder bad=0
    folder=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$folder'" EXIT
    plant() {
        local got=0
        rm -rf "$folder/tree"
        mkdir -p "$folder/tree/$(dirname "$1")"
        printf '#pragma once\n#include %s\n' "$2" >"$folder/tree/$1"
        (VIOLATIONS=0; check_tree "$folder/tree") >"$folder/out" 2>&1 || got=1
        if [ "$got" -ne "$3" ]; then
            echo "self-test: $1 with #include $2: expected $3, got $got"
            bad=1
        fi
    }
    plant src/core/distance.cpp '"core/distance.h"' 0
    plant src/core/distance.cpp '<vector>' 0
    plant src/core/distance.cpp '"postgres.h"' 1
    plant src/core/distance.cpp '<postgres.h>' 1
    plant src/core/distance.h '"page/layout.h"' 1
    plant src/core/distance.h '"pg/pg.h"' 1
    plant src/core/distance.h '"../page/layout.h"' 1
    plant src/page/layout.h '<cstdint>' 0
    plant src/page/layout.h '"core/types.h"' 0
    plant src/page/layout.h '"pg/pg.h"' 1
    plant src/page/layout.h '"storage/bufpage.h"' 1
    plant src/page/wal.cpp '"pg/pg.h"' 0
    plant src/page/wal.cpp '"access/generic_xlog.h"' 1
    plant src/page/wal.cpp '"am/am.h"' 1
    plant src/am/scan.cpp '"page/wal.h"' 0
    plant src/am/scan.cpp '  "client/wait.h"' 0
    plant src/am/scan.cpp '"engine/mirror.h"' 1
    plant src/am/scan.cpp '<utils/rel.h>' 1
    plant src/pg/pg.h '<utils/rel.h>' 0
    plant src/pg/module.cpp '<utils/rel.h>' 1
    plant src/pg/pg.h '"page/layout.h"' 1
    plant src/client/wait.cpp '"protocol/slot.h"' 0
    plant src/client/wait.cpp '"core/topk.h"' 1
    plant src/worker/maintenance.cpp '"am/am.h"' 0
    plant src/am/am.h '"worker/maintenance.h"' 1
    plant src/protocol/slot.h '"core/topk.h"' 1
    plant src/protocol/message.h '"core/types.h"' 0
    plant src/protocol/message.h '"page/layout.h"' 1
    plant src/engine/mirror.cpp '"protocol/slot.h"' 0
    plant src/engine/mirror.cpp '"client/wait.h"' 1
    plant src/engine/device.h '"page/layout.h"' 0
    plant src/engine/mirror.cpp '"page/graph.h"' 1
    plant src/engine/mirror.cpp '<utils/rel.h>' 1
    plant cuda/graph.cu '"core/types.h"' 0
    plant cuda/graph.cu '"protocol/message.h"' 0
    plant cuda/graph.cu '"page/layout.h"' 0
    plant cuda/graph.cu '"core/hnsw.h"' 1
    plant test/unit/distance_test.cpp '"core/distance.h"' 0
    plant test/unit/distance_test.cpp '"pg/pg.h"' 1
    plant test/unit/slot_test.cpp '"protocol/slot.h"' 0
    plant test/unit/distance_test.cpp '"engine/mirrors.h"' 1
    plant test/engine/stress.cpp '"engine/server.h"' 0
    plant test/engine/stress.cpp '"page/layout.h"' 0
    plant test/engine/stress.cpp '"page/graph.h"' 1
    plant test/device/parity.cpp '"engine/device.h"' 0
    plant test/device/parity.cpp '"client/call.h"' 1
    plant src/strange/x.cpp '<vector>' 1
    [ "$bad" -eq 0 ] || return 1
    echo "self-test of the import rule passed"
}

case ${1:-} in
--self-test) self_test ;;
"") check_tree "$(dirname "$0")/.." && echo "the import rule holds" ;;
*)
    echo "usage: $0 [--self-test]" >&2
    exit 2
    ;;
esac
