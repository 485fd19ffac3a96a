#!/bin/bash
# Tests the artifacts of a release. A second run makes the same bytes, and packages have the same files. Images hold
# programs that run with nothing else, archives hold programs that need no C library. The manifests for Kubernetes can
# be rendered.
#
#   tools/test_release.sh [BINARIES [STATIC]]      the folders of whet and whet-fleet, target/debug and
#                                                  target/x86_64-unknown-linux-musl/debug by default; needs root, rpm,
#                                                  kubectl, musl-tools
set -euo pipefail
cd "$(dirname "$0")/.."
binaries=$(realpath "${1:-target/debug}")
static=$(realpath "${2:-target/x86_64-unknown-linux-musl/debug}")
fail() {
    echo "test_release: $*" >&2
    exit 1
}
work=$(mktemp -d)
busy=
ends() {
    if [[ -n $busy ]]; then kill "$busy" 2>/dev/null || true; fi
    umount "$work/archive/proc" "$work/archive/sys" 2>/dev/null || true
    rm -rf "$work"
}
trap ends EXIT
tools/release.sh "$binaries" "$static" "$work/one" >/dev/null
tools/release.sh "$binaries" "$static" "$work/two" >/dev/null
cmp "$work/one/SHA256SUMS" "$work/two/SHA256SUMS" || fail "a second run gives other bytes"
cd "$work/one"
sha256sum --quiet -c SHA256SUMS || fail "wrong checksums"
for name in whet whet-fleet; do
    of_deb() { dpkg-deb -c ${name}_*.deb | awk '$1 !~ /^d/ {print substr($6, 2)}' | LC_ALL=C sort; }
    of_rpm() { rpm -qpl $name-[0-9]*.rpm | LC_ALL=C sort; }
    of_tar() { tar tf $name-[0-9]*-x86_64.tar.gz | grep -v '/$' | cut -c2- | LC_ALL=C sort; }
    # Fedora's name of one folder differs.
    [[ $(of_deb | sed s/vendor-completions/site-functions/) == $(of_rpm) ]] || fail "$name: rpm and deb have other files"
    [[ $(of_deb) == $(of_tar) ]] || fail "$name: tar and deb have other files"
    for artifact in $name-[0-9]*.rpm; do
        rpm -qp --scripts "$artifact" >"$work/scripts"
        grep -q "^set -- configure" "$work/scripts" || fail "$artifact has no steps"
    done

    mkdir -p "$work/image/$name" "$work/root/$name"
    tar xf $name-[0-9]*-oci.tar -C "$work/image/$name"
    for blob in "$work/image/$name"/blobs/sha256/*; do
        [[ $(sha256sum <"$blob" | cut -d' ' -f1) == "${blob##*/}" ]] || fail "$name: a blob has another digest"
        if gzip -t "$blob" 2>/dev/null; then tar xzf "$blob" -C "$work/root/$name"; fi
    done
    said=$(chroot "$work/root/$name" "/usr/bin/$name" --version)
    [[ $said == "$name "* ]] || fail "the image's program says: $said"
done

# The programs of the archives on a system whose only other files are a program and musl.
archive=$work/archive
mkdir -p "$archive"/{proc,sys,tmp,run,lib}
for name in whet whet-fleet; do
    tar xzf $name-[0-9]*-x86_64.tar.gz -C "$archive"
    said=$(chroot "$archive" "/usr/bin/$name" --version)
    [[ $said == "$name "* ]] || fail "the archive's program says: $said"
done
cat >"$work/busy.c" <<'BUSY'
#include <stdio.h>
#include <stdlib.h>
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
static int numbers[100000];
int main(void) {
    for (unsigned seed = 1;; seed++) {
        for (int i = 0; i < 100000; i++) numbers[i] = (seed = seed * 1103515245 + 12345) >> 8;
        qsort(numbers, 100000, sizeof *numbers, compare);
        for (int i = 1; i < 100000; i++) if (numbers[i - 1] > numbers[i]) { puts("not sorted"); return 1; }
    }
}
BUSY
musl-gcc -O2 -funwind-tables -o "$archive/busy" "$work/busy.c"
cp -L /lib/ld-musl-x86_64.so.1 "$archive/lib/"
mount -t proc proc "$archive/proc"
mount -t sysfs -o ro sysfs "$archive/sys"
chroot "$archive" /busy >"$work/said" &
busy=$!
whet() { chroot "$archive" /usr/bin/whet "$@"; }
whet optimize "$busy" --seconds 3 || fail "the archive's program cannot optimize"
whet undo "$busy"
whet redo "$busy"
whet undo "$busy"
whet verify "$busy" || fail "code differs after the undo"
kill -0 "$busy" || fail "the program has ended: $(cat "$work/said")"
kill "$busy"
busy=

python3 - whet.cdx.json whet-fleet.cdx.json <<'CHECK'
import json
import sys

for path in sys.argv[1:]:
    with open(path) as file:
        parts = json.load(file)["components"]
    assert len(parts) > 50 and len({p["bom-ref"] for p in parts}) == len(parts), path
    assert all("hashes" in p or p["version"] == "0.1.0" for p in parts), path
CHECK
cd - >/dev/null
for folder in packaging/kubernetes/base packaging/kubernetes/overlays/*/; do
    kubectl kustomize "$folder" >"$work/manifest"
    grep -q "^kind: DaemonSet" "$work/manifest" || fail "$folder has no DaemonSet"
done
echo "test_release: ok"
