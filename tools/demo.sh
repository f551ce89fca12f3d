#!/usr/bin/env bash
#
# `make demo`: from a bare machine to answered queries. Installs packages, builds, starts a throwaway server (never as
# root, never the system's cluster) in a temporary folder, loads the sample in test/data/sift20k, builds an index and
# compares it with the exact scan. The server stays up; `make demo-stop` stops it and removes the folder.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

# Not in build/: `make clean` must not make us forget a running server.
STATE=$ROOT/.demo-server
SAMPLE=$ROOT/test/data/sift20k

# Stops the server of an earlier call, if there is one.
stop_demo() {
    [ -f "$STATE" ] || return 1
    # shellcheck source=/dev/null
    . "$STATE"
    if [ -d "$WORK" ]; then
        choose_server_user
        stop_server data
        rm -rf "$WORK"
    fi
    rm -f "$STATE"
}

run_psql() { as_server_user "$PG_BINDIR/psql" -X -q -v ON_ERROR_STOP=1 -h "$WORK" -U "$SERVER_USER" -d demo "$@"; }

# load TABLE FILE
load() { perl "$ROOT/tools/load_u8bin.pl" "$2" | run_psql -c "COPY $1 FROM STDIN"; }

failed() {
    if [ -n "${WORK:-}" ] && [ -d "$WORK" ] && [ ! -f "$STATE" ]; then
        if [ -f "$WORK/data/server.log" ]; then tail -n 15 "$WORK/data/server.log"; fi
        stop_server data
        rm -rf "$WORK"
    fi
}

start_demo() {
    ensure_packages demo
    stop_demo || true
    build_and_install

    trap failed EXIT
    trap 'exit 130' INT TERM
    make_work_dir demo
    say "starting a throwaway server in $WORK as user $SERVER_USER"
    start_server data "max_wal_size = '2GB'" "maintenance_work_mem = '256MB'"
    as_server_user "$PG_BINDIR/createdb" -h "$WORK" -U "$SERVER_USER" demo

    say "loading 20,000 rows and 500 queries"
    run_psql -c "CREATE EXTENSION vecgpu" \
        -c "CREATE TABLE items (id int PRIMARY KEY, v real[] NOT NULL)" \
        -c "CREATE TABLE queries (id int PRIMARY KEY, v real[] NOT NULL)" \
        -c "CREATE TABLE truth (id int PRIMARY KEY, v float8[] NOT NULL)"
    load items "$SAMPLE/base.u8bin"
    load queries "$SAMPLE/query.u8bin"
    load truth "$SAMPLE/gt100.fbin"

    say "CREATE INDEX ON items USING vecgpu (v)"
    printf '%s\n' '\timing on' 'CREATE INDEX ON items USING vecgpu (v);' '\timing off' 'VACUUM ANALYZE items;' | run_psql -f -
    run_psql -v k=10 -v exact_queries=50 -f - <"$ROOT/tools/demo.sql"

    printf 'WORK=%q\nPG_BINDIR=%q\n' "$WORK" "$PG_BINDIR" >"$STATE"
    trap - EXIT
    echo
    echo "The server goes on running. To look around:"
    echo "    $PG_BINDIR/psql -h $WORK -U $SERVER_USER demo"
    echo "    SELECT id FROM items ORDER BY v <-> (SELECT v FROM queries WHERE id = 7) LIMIT 10;"
    echo "To stop it and remove its files:"
    echo "    make demo-stop"
}

case ${1:-start} in
start) start_demo ;;
stop) stop_demo && echo "stopped" || echo "no demo server is running" ;;
*) die "usage: $0 start|stop" ;;
esac
