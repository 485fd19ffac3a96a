#!/bin/bash
# Builds the Debian package of a whet-fleet that is built already, and prints the package's path.
#
#   tools/deb_fleet.sh [BINARY [FOLDER]]      target/release/whet-fleet, to target/deb
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${1:-target/release/whet-fleet} folder=${2:-target/deb}

version=$("$binary" --version)
version=${version#whet-fleet }-1
maintainer="${DEBFULLNAME:-whet developers} <${DEBEMAIL:-whet@example.org}>"
# The date of the last commit: the same sources and binary make the same package.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
export SOURCE_DATE_EPOCH
mkdir -p "$folder"
root=$(mktemp -d "$folder/root.XXXXXX")
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
umask 022
doc=$root/usr/share/doc/whet-fleet

install -D -m 755 "$binary" "$root/usr/bin/whet-fleet"
strip --strip-unneeded --remove-section=.comment "$root/usr/bin/whet-fleet"
install -D -m 644 -t "$root/usr/lib/systemd/system" packaging/whet-fleet.{service,timer,path}
# It may hold credentials; the postinst lets the user's group read it.
install -D -m 640 packaging/whet-fleet.toml "$root/etc/whet-fleet.toml"
install -D -m 644 -t "$root/usr/share/man/man1" packaging/whet-fleet.1
install -D -m 644 -t "$doc" docs/fleet.md
install -D -m 644 CHANGELOG.md "$doc/changelog"
cat >"$doc/changelog.Debian" <<CHANGES
whet-fleet ($version) unstable; urgency=medium

  * What has changed is in changelog.gz.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
CHANGES
install -D -m 644 packaging/debian/copyright "$doc/copyright"
tools/third_party.py fleet_sync fleet_sync/cloud >"$doc/third-party"
gzip -9n "$doc/changelog" "$doc/changelog.Debian" "$doc/third-party" "$root"/usr/share/man/*/*

mkdir "$root/DEBIAN"
install -m 755 -t "$root/DEBIAN" packaging/debian-fleet/{postinst,prerm,postrm}
echo /etc/whet-fleet.toml >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
# dpkg-shlibdeps expects the layout of a source package and of a binary package around the program.
mkdir "$root/debian"
printf 'Source: whet-fleet\n\nPackage: whet-fleet\nArchitecture: amd64\n' >"$root/debian/control"
touch "$root/DEBIAN/control"
depends=$(cd "$root" && dpkg-shlibdeps -O "$PWD/usr/bin/whet-fleet")
rm -r "$root/debian"
cat >"$root/DEBIAN/control" <<CONTROL
Package: whet-fleet
Version: $version
Architecture: amd64
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: ${depends#shlibs:Depends=}, adduser, ca-certificates
Recommends: whet
Section: admin
Priority: optional
Description: exchange of whet's profiles between hosts
 whet-fleet shares the profiles of whet, the optimizer of running programs,
 between the hosts of a fleet, through an object store. One host's profile
 starts all others warm. It has a user of its own and no capabilities.
 .
 Nothing is exchanged before a store and a key are named in
 /etc/whet-fleet.toml and whet-fleet.timer is enabled.
CONTROL
package=$folder/whet-fleet_${version}_amd64.deb
dpkg-deb -Zgzip --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
