# shellcheck shell=bash
#
# Shared by the scripts in this folder: finds or installs what a build needs, installs the extension, and runs throwaway
# servers as a user that is not root. Sourced, never run. The system's own clusters are never touched.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
JOBS=$(nproc 2>/dev/null || echo 2)

# The caller is a recipe of make; its job server and options are not for the makes that we start. The knobs travel in
# the environment.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
export LC_ALL=C

say() { printf '== %s\n' "$*"; }
die() {
    printf '%s\n' "$@" >&2
    exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

# Runs a command with root's rights, or fails.
as_root() {
    if is_root; then
        "$@"
    else
        sudo -- "$@"
    fi
}

can_be_root() {
    is_root && return 0
    command -v sudo >/dev/null || return 1
    # Without a terminal sudo cannot ask for a password.
    sudo -n true 2>/dev/null || [ -t 0 ]
}

# ---- what is needed -------------------------------------------------------------------------------------------------

pg_config_usable() { [ -n "$1" ] && command -v "$1" >/dev/null && [ -f "$("$1" --pgxs 2>/dev/null)" ]; }

pg_major() { "$1" --version | sed -n 's/^PostgreSQL \([0-9]*\).*/\1/p'; }

# The major version that `apt-get install postgresql` would bring. A bare machine may not have fetched apt's lists yet.
default_pg_major() {
    local major
    major=$(apt-cache show postgresql 2>/dev/null | sed -n 's/^Depends:.*postgresql-\([0-9][0-9]*\).*/\1/p' | head -n 1)
    if [ -z "$major" ]; then
        # shellcheck source=/dev/null
        case $(. /etc/os-release 2>/dev/null && echo "$ID $VERSION_ID") in
        "debian 12") major=15 ;;
        "debian 13") major=17 ;;
        "ubuntu 24.04") major=16 ;;
        esac
    fi
    echo "$major"
}

# Sets PG_MAJOR and PG_CONFIG if something usable exists; otherwise leaves PG_CONFIG empty.
find_pg_config() {
    local candidate
    PG_MAJOR=
    if [ -n "${PG_CONFIG:-}" ]; then
        command -v "$PG_CONFIG" >/dev/null || die "PG_CONFIG=$PG_CONFIG: no such program"
        PG_MAJOR=$(pg_major "$PG_CONFIG")
        return
    fi
    PG_CONFIG=
    for candidate in pg_config $(compgen -G '/usr/lib/postgresql/*/bin/pg_config' | sort -rV); do
        if pg_config_usable "$candidate"; then
            PG_CONFIG=$candidate
            PG_MAJOR=$(pg_major "$candidate")
            return
        fi
    done
}

# Prints the lacking packages (Debian names), one a line. $1: "tests" or "demo".
lacking_packages() {
    local purpose=$1 major=${PG_MAJOR:-N} bindir='' pgxs=''
    if [ -n "${PG_CONFIG:-}" ]; then
        bindir=$("$PG_CONFIG" --bindir)
        pgxs=$("$PG_CONFIG" --pgxs)
    fi
    command -v make >/dev/null || echo make
    if [ -n "${CXX:-}" ] && [ "$CXX" != g++ ]; then
        command -v "${CXX%% *}" >/dev/null || echo "${CXX%% *}"
    fi
    # clang uses the standard library of g++, so that is needed in any case.
    command -v g++ >/dev/null || echo g++
    perl -MTAP::Harness -MTest::More -e 1 2>/dev/null || echo perl
    [ -n "$pgxs" ] && [ -f "$pgxs" ] || echo "postgresql-server-dev-$major"
    [ -n "$bindir" ] && [ -x "$bindir/postgres" ] && [ -x "$bindir/initdb" ] || echo "postgresql-$major"
    if [ "$purpose" = tests ]; then
        local src=${pgxs%/makefiles/pgxs.mk}
        { [ -n "$src" ] && [ -x "$src/test/regress/pg_regress" ] && [ -x "$src/test/isolation/pg_isolation_regress" ] &&
            [ -f "$src/test/perl/PostgreSQL/Test/Cluster.pm" ]; } || echo "postgresql-client-$major"
        perl -MIPC::Run -e 1 2>/dev/null || echo libipc-run-perl
    fi
}

# explain_lacking REASON PACKAGES
explain_lacking() {
    local packages=$2 major
    major=$(default_pg_major)
    if [ -n "$major" ]; then packages=${packages//-N/-$major}; fi
    die "vecgpu cannot go on: $1." "" \
        "Please install, as root (Debian package names):" \
        "    apt-get update && apt-get install --no-install-recommends $packages" "" \
        "On another system that is: a PostgreSQL server (15 or newer) with its development files (pgxs.mk, headers)," \
        "and for the tests pg_regress, pg_isolation_regress and the perl modules PostgreSQL::Test and IPC::Run;" \
        "make, perl, and g++ 12 or newer (with libstdc++.a, libasan and libubsan). Then run this again, with" \
        "PG_CONFIG=/path/to/pg_config if pg_config is not in the PATH."
}

# Installs what lacks, or says what to install. Sets PG_CONFIG. $1: "tests" or "demo".
ensure_packages() {
    local purpose=$1 lacking
    find_pg_config
    mapfile -t lacking < <(lacking_packages "$purpose")
    if [ "${#lacking[@]}" -gt 0 ]; then
        command -v apt-get >/dev/null || explain_lacking "packages are missing and there is no apt-get here" "${lacking[*]}"
        can_be_root || explain_lacking "packages are missing and there are no rights to install them (no root, no sudo)" \
            "${lacking[*]}"

        say "installing packages"
        as_root apt-get -q update || say "apt-get update failed; trying with the lists at hand"
        if [ -z "$PG_MAJOR" ]; then
            PG_MAJOR=$(default_pg_major)
            [ -n "$PG_MAJOR" ] || explain_lacking "apt knows no package postgresql" "${lacking[*]}"
        fi
        mapfile -t lacking < <(lacking_packages "$purpose")
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 --no-install-recommends \
            install "${lacking[@]}" || explain_lacking "apt-get could not install the packages" "${lacking[*]}"
        if [ -z "$PG_CONFIG" ]; then
            PG_CONFIG=/usr/lib/postgresql/$PG_MAJOR/bin/pg_config
        fi
        mapfile -t lacking < <(lacking_packages "$purpose")
        [ "${#lacking[@]}" -eq 0 ] || explain_lacking "something is still missing after the installation" "${lacking[*]}"
    fi
    export PG_CONFIG
    PG_BINDIR=$("$PG_CONFIG" --bindir)
    PGXS_SRC=$("$PG_CONFIG" --pgxs)
    PGXS_SRC=${PGXS_SRC%/makefiles/pgxs.mk}
    say "$("$PG_CONFIG" --version), ${CXX:-g++}: $("${CXX:-g++}" --version | head -n 1)"
}

# ---- build and install ----------------------------------------------------------------------------------------------

# Is what was just built also what the server would load? Then no rights to install it are needed.
installed_is_current() {
    local file
    cmp -s "$ROOT/vecgpu.so" "$1/vecgpu.so" || return 1
    cmp -s "$ROOT/vecgpu-engine" "$1/vecgpu-engine" || return 1
    for file in "$ROOT"/vecgpu.control "$ROOT"/sql/vecgpu--*.sql; do
        cmp -s "$file" "$2/${file##*/}" || return 1
    done
}

build_and_install() {
    local libdir sharedir
    say "building"
    make -C "$ROOT" --no-print-directory -s -j"$JOBS" all
    libdir=$("$PG_CONFIG" --pkglibdir)
    sharedir=$("$PG_CONFIG" --sharedir)/extension
    if installed_is_current "$libdir" "$sharedir"; then
        say "already installed in $libdir"
        return
    fi
    say "installing into $libdir and $sharedir"
    if [ -w "$libdir" ] && [ -w "$sharedir" ]; then
        make -C "$ROOT" --no-print-directory -s install
    elif can_be_root; then
        as_root make -C "$ROOT" --no-print-directory -s install PG_CONFIG="$PG_CONFIG" CXX="${CXX:-g++}" COPT="${COPT:-}"
    else
        die "No right to write to $libdir and $sharedir." \
            "Please run, as a user who may:" "    make -C $ROOT install PG_CONFIG=$PG_CONFIG" \
            "and then this again; or run this as root or with sudo."
    fi
}

# ---- throwaway servers ----------------------------------------------------------------------------------------------

# PostgreSQL refuses to run as root. Its packages bring the user postgres.
choose_server_user() {
    if is_root; then
        SERVER_USER=
        for candidate in postgres nobody; do
            if id "$candidate" >/dev/null 2>&1; then
                SERVER_USER=$candidate
                break
            fi
        done
        [ -n "$SERVER_USER" ] || die "Running as root, and there is neither a user postgres nor nobody for the server."
    else
        SERVER_USER=$(id -un)
    fi
}

# Runs a command as the server's user, in the work folder.
as_server_user() {
    if is_root; then
        (cd "$WORK" && exec setpriv --reuid="$SERVER_USER" --regid="$(id -g "$SERVER_USER")" --init-groups \
            env HOME="$WORK" TMPDIR=/tmp "$@")
    else
        (cd "$WORK" && exec "$@")
    fi
}

# Sets WORK: a new folder that belongs to the server's user. Short, because socket paths may have 107 bytes at most.
make_work_dir() {
    choose_server_user
    WORK=$(mktemp -d "/tmp/vecgpu-$1.XXXXXX")
    if is_root; then
        chown "$SERVER_USER:$(id -g "$SERVER_USER")" "$WORK"
    fi
    chmod 700 "$WORK"
}

# start_server NAME [setting=value ...]: a server of its own in $WORK/NAME, reached by the unix socket in $WORK only.
start_server() {
    local data=$WORK/$1 setting
    shift
    as_server_user "$PG_BINDIR/initdb" -D "$data" -A trust -N --no-locale -E UTF8 -U "$SERVER_USER" >"$WORK/initdb.log" 2>&1 ||
        die "initdb failed:" "$(tail -n 5 "$WORK/initdb.log")"
    {
        echo "listen_addresses = ''"
        echo "unix_socket_directories = '$WORK'"
        echo "shared_buffers = '512MB'"
        # Small /dev/shm (containers) would make parallel index builds fail.
        if [ "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')" -lt 524288 ] 2>/dev/null; then
            echo "dynamic_shared_memory_type = mmap"
        fi
        for setting in "$@"; do echo "$setting"; done
    } | as_server_user tee -a "$data/postgresql.conf" >/dev/null
    as_server_user "$PG_BINDIR/pg_ctl" -D "$data" -l "$data/server.log" -w -s start ||
        die "The throwaway server did not start:" "$(as_server_user tail -n 20 "$data/server.log")"
}

stop_server() {
    as_server_user "$PG_BINDIR/pg_ctl" -D "$WORK/$1" -m immediate -w -s stop >/dev/null 2>&1 || true
}
