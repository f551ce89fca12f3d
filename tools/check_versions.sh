#!/usr/bin/env bash
#
# Builds and runs the unit and regress tests with newer PostgreSQL and compilers, in throwaway Debian roots:
#     trixie (Debian 13): PostgreSQL 17, pgvector beside it
#     sid:                PostgreSQL 18
# Needs root and mmdebstrap, and fetches about 300 MB per root. Not part of `make check`.
#
# usage: check_versions.sh [SUITE...]        MODE=full also runs isolation and TAP tests
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

MODE=${MODE:-quick}
if [ $# -eq 0 ]; then set -- trixie sid; fi

is_root || die "check_versions.sh makes chroots: please run it as root."
if ! command -v mmdebstrap >/dev/null; then
    apt-get -q update
    DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install mmdebstrap
fi

# The mirror that this machine uses; mmdebstrap has a default of its own.
# shellcheck disable=SC2016
MIRROR=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 2>/dev/null | head -n 1)

BASE=$(mktemp -d /tmp/vecgpu-versions.XXXXXX)
trap 'rm -rf --one-file-system "$BASE"' EXIT
trap 'exit 130' INT TERM

# check_suite SUITE: leaves the closing line in $BASE/SUITE.result
check_suite() {
    local suite=$1 root=$BASE/$1 include=make,g++,perl,libipc-run-perl,postgresql,postgresql-server-dev-all
    case $suite in
    # server-dev-all of sid would bring every version that it carries; the default one is meant.
    trixie) include=${include/-dev-all/-dev-17},postgresql-17-pgvector ;;
    sid) include=${include/-dev-all/-dev-18} ;;
    esac

    say "$suite: making a root"
    # A mirror that lags behind is good enough here, so old lists are accepted.
    mmdebstrap --quiet --variant=apt --mode=root --include="$include" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"' \
        "$suite" "$root" ${MIRROR:+"$MIRROR"} >"$BASE/$suite.log" 2>&1 || {
        tail -n 20 "$BASE/$suite.log"
        echo "no root" >"$BASE/$suite.result"
        return
    }
    mkdir "$root/vecgpu"
    tar -C "$ROOT" --exclude=./.git --exclude=./build --exclude='*.o' --exclude='*.d' --exclude='*.so' --exclude=./vecgpu-engine --exclude=./cuda/build --exclude=./.device -cf - . |
        tar -C "$root/vecgpu" -xf -

    say "$suite: testing"
    # Own mount and process spaces: nothing that the tests start or mount outlives them.
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -c '
        set -e
        mount -t proc proc "$1/proc"
        mkdir -p "$1/dev/shm"
        mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
        exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root WERROR="$3" COPT="$4" \
            bash -c "cd /vecgpu && tools/check.sh $2"
        ' - "$root" "$MODE" "${WERROR:-}" "${COPT:-}" 2>&1 | tee "$BASE/$suite.log" || true
    grep -E '^[0-9]+ passed, [0-9]+ failed$' "$BASE/$suite.log" | tail -n 1 >"$BASE/$suite.result" ||
        echo "did not get to the end" >"$BASE/$suite.result"
    rm -rf --one-file-system "$root"
}

for suite; do check_suite "$suite"; done

bad=0
for suite; do
    printf '%-8s %s\n' "$suite" "$(cat "$BASE/$suite.result")"
    grep -qE '^[0-9]+ passed, 0 failed$' "$BASE/$suite.result" || bad=1
done
exit "$bad"
