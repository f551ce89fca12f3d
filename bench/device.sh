#!/usr/bin/env bash
# The bench on a host that has no PostgreSQL packages (the GPU host: 16 cores, one H200). From the repository root, as root:
#   bench/device.sh [options of run.py]          for example: bench/device.sh --keep --sections load,build,recall
# Environment:
#   PARTS=DIR    folder of pg-host.tar.xz (server archive), sift-pack.tar, make_sift.py, gt.py     [.device]
#   SIFT=DIR     the built data set, made when missing                                             [/tmp/sift1m]
#   WORK=DIR     cluster, figures, logs                                                            [/tmp/vecgpu-bench]
#   OUT=DIR      where section.md (for RESULTS.md), state.json and the end of the logs are put     [$WORK]
#   CUDA=sm_90   build and install the GPU device too, for this chip
#   BUILD=0      do not build or install vecgpu;   MAKEFLAGS as for make
# Called again on the same machine it reuses the server, the data set and, with --keep, the loaded cluster.
set -euo pipefail
parts=${PARTS:-.device} sift=${SIFT:-/tmp/sift1m} work=${WORK:-/tmp/vecgpu-bench}
out=${OUT:-$work}
export PYTHONUNBUFFERED=1
say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }

[ -f /opt/pg-host/env.sh ] || { tar -C / -xJf "$parts/pg-host.tar.xz"; say "server unpacked"; }

# Built in a copy: only files whose content has changed get a new time stamp, so make builds what it must and no more.
build() (
  . /opt/pg-host/env.sh
  copy=/tmp/vecgpu-build && mkdir -p "$copy"
  sources() { find . \( -name .git -o -name "$(basename "$parts")" -o -name build -o -name '*.[od]' -o -name '*.so' \) -prune -o -type f -print; }
  sources | while read -r f; do cmp -s "$f" "$copy/$f" || install -D -m "$(stat -c %a "$f")" "$f" "$copy/$f"; done
  (cd "$copy" && sources) | while read -r f; do [ -e "$f" ] || rm -f "$copy/$f"; done
  { [ "${CUDA:-0}" = 0 ] || make -C "$copy" -j"$(nproc)" cuda CUDA_ARCH="$CUDA"; } && make -C "$copy" -j"$(nproc)" && make -C "$copy" install && say "vecgpu built and installed" >&3
)
builder=
[ "${BUILD:-1}" = 1 ] && { build 3>&1 >/tmp/vecgpu-make.log 2>&1 & builder=$!; }

if [ ! -s "$sift/base.u8bin" ]; then
  rm -rf "$sift.new" && mkdir -p "$sift.new"
  python3 bench/data.py sift --pack "$parts/sift-pack.tar" --tools "$parts" --out "$sift.new" >"$sift.log" 2>&1 || { tail -n 20 "$sift.log"; exit 1; }
  tail -n 1 "$sift.log"
  rm -rf "$sift" && mv "$sift.new" "$sift"
  say "data set built in $sift"
fi
[ -z "$builder" ] || wait "$builder" || { grep -E 'error|Error|undefined' /tmp/vecgpu-make.log | cut -c1-300 | tail -n 30; exit 1; }
. /opt/pg-host/env.sh

# pgvector's parallel build keeps its graph in /dev/shm
[ "$(df -Pm /dev/shm | awk 'NR==2 {print $4}')" -gt 20000 ] || mount -o remount,size=48G /dev/shm 2>/dev/null || say "/dev/shm stays small"

mkdir -p "$work" "$out"
export BENCH_COMMIT=${BENCH_COMMIT:-$(git describe --always --dirty 2>/dev/null || echo unknown)}
status=0
python3 bench/run.py --work "$work" --section "$out/section.md" --data "$sift" --host "$(nproc) cores${GPU_NAME:+, $GPU_NAME}" "$@" || status=$?
[ "$out" = "$work" ] || cp "$work/state.json" "$out/" 2>/dev/null || true
[ -f "$work/server.log" ] && { grep -E 'PANIC|FATAL|WARNING|TRAP|terminated by signal' "$work/server.log" | grep -v 'connection to client lost' | tail -n 5 || true; tail -n 300 "$work/server.log" >"$out/server-tail.log"; }
say "done, status $status"
exit $status
