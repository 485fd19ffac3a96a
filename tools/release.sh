#!/bin/bash
# Makes all artifacts of a release from programs that are built already, with their checksums. A second run on the same
# sources and programs gives the same bytes.
#
#   tools/release.sh [BINARIES [STATIC [FOLDER]]]
#
# BINARIES is the folder of the programs for packages and images, target/release by default. STATIC has the statically linked
# ones for the archives, target/x86_64-unknown-linux-musl/release by default. The artifacts go to FOLDER, target/dist by default.
set -euo pipefail
cd "$(dirname "$0")/.."
binaries=${1:-target/release} static=${2:-target/x86_64-unknown-linux-musl/release} folder=${3:-target/dist}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -rf "$folder"
mkdir -p "$folder"
for name in whet whet-fleet; do
    deb=$(tools/deb.sh "$name" "$binaries/$name" "$folder")
    version=$(dpkg-deb -f "$deb" Version)
    rpm=$(tools/rpm.sh "$deb" "$folder/rpm")
    mv "$rpm" "$folder"
    # The same files without a package manager, for any C library.
    root=$(mktemp -d)
    dpkg-deb -x "$deb" "$root"
    install -m 755 "$static/$name" "$root/usr/bin/$name"
    tar -C "$root" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c . |
        gzip -9n >"$folder/$name-${version%-*}-x86_64.tar.gz"
    rm -r "$root"
    tools/oci.py "$binaries/$name" "$name" "$folder/$name-${version%-*}-oci.tar" >/dev/null
done
rm -r "$folder/rpm"
tools/sbom.py whet >"$folder/whet.cdx.json"
tools/sbom.py fleet_sync fleet_sync/cloud >"$folder/whet-fleet.cdx.json"
(cd "$folder" && sha256sum -- * >SHA256SUMS)
echo "$folder"
