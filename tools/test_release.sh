#!/bin/bash
# Tests the artifacts of a release: made twice they are the same, packages have the same files, images hold programs that
# run with nothing else, and the manifests for Kubernetes can be rendered.
#
#   tools/test_release.sh [BINARIES]      the folder of whet and whet-fleet, target/debug by default; needs root, rpm, kubectl
set -euo pipefail
cd "$(dirname "$0")/.."
binaries=$(realpath "${1:-target/debug}")
fail() {
    echo "test_release: $*" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/release.sh "$binaries" "$work/one" >/dev/null
tools/release.sh "$binaries" "$work/two" >/dev/null
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
