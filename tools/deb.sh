#!/bin/bash
# Builds a Debian package of a whet that is built already, and prints the package's path.
#
#   tools/deb.sh [BINARY [FOLDER]]      target/release/whet, to target/deb
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${1:-target/release/whet} folder=${2:-target/deb}

version=$("$binary" --version)
version=${version#whet }-1
maintainer="${DEBFULLNAME:-whet developers} <${DEBEMAIL:-whet@example.org}>"
# The date of the last commit: the same sources and binary make the same package.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
export SOURCE_DATE_EPOCH
mkdir -p "$folder"
root=$(mktemp -d "$folder/root.XXXXXX")
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
umask 022
doc=$root/usr/share/doc/whet man=$root/usr/share/man

install -D -m 755 "$binary" "$root/usr/bin/whet"
strip --strip-unneeded --remove-section=.comment "$root/usr/bin/whet"
install -D -m 644 -t "$root/usr/lib/systemd/system" packaging/whet.service packaging/whet-off.{path,service}
# The kill switch is active wherever the package is installed.
mkdir "$root/usr/lib/systemd/system/paths.target.wants"
ln -s ../whet-off.path "$root/usr/lib/systemd/system/paths.target.wants/whet-off.path"
install -D -m 644 packaging/whet.toml "$root/etc/whet.toml"
install -D -m 644 -t "$root/usr/share/whet/monitoring" packaging/monitoring/*

"$binary" generate "$root/generated" >/dev/null
install -D -m 644 -t "$man/man1" "$root"/generated/*.1
install -D -m 644 -t "$man/man5" packaging/whet.toml.5
install -D -m 644 "$root/generated/whet.bash" "$root/usr/share/bash-completion/completions/whet"
install -D -m 644 -t "$root/usr/share/zsh/vendor-completions" "$root/generated/_whet"
install -D -m 644 -t "$root/usr/share/fish/vendor_completions.d" "$root/generated/whet.fish"
rm -r "$root/generated"

install -D -m 644 -t "$doc" README.md RUNBOOK.md SECURITY.md
install -D -m 644 -t "$doc/docs" docs/*.md
install -D -m 644 CHANGELOG.md "$doc/changelog"
cat >"$doc/changelog.Debian" <<CHANGES
whet ($version) unstable; urgency=medium

  * What has changed is in changelog.gz.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
CHANGES
{
    cat packaging/debian/copyright
    echo "License: Apache-2.0"
    echo " On Debian systems the text is in /usr/share/common-licenses/Apache-2.0."
    echo
    echo "License: Expat"
    sed -e 1,2d -e 's/^$/./' -e 's/^/ /' LICENSE-MIT
} >"$doc/copyright"
tools/third_party.py >"$doc/third-party"
gzip -9n "$doc/changelog" "$doc/changelog.Debian" "$doc/third-party" "$man"/*/*

mkdir "$root/DEBIAN"
install -m 755 -t "$root/DEBIAN" packaging/debian/{postinst,prerm,postrm}
echo /etc/whet.toml >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
# dpkg-shlibdeps expects the layout of a source package and of a binary package around the program.
mkdir "$root/debian"
printf 'Source: whet\n\nPackage: whet\nArchitecture: amd64\n' >"$root/debian/control"
touch "$root/DEBIAN/control"
depends=$(cd "$root" && dpkg-shlibdeps -O "$PWD/usr/bin/whet")
rm -r "$root/debian"
cat >"$root/DEBIAN/control" <<CONTROL
Package: whet
Version: $version
Architecture: amd64
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: ${depends#shlibs:Depends=}, debianutils
Section: admin
Priority: optional
Description: optimizer of running programs
 whet sharpens programs while they run: it samples a live server under load,
 rebuilds its hot machine code with a better layout and leads execution there.
 No restart, no rebuild, no symbols, no performance counters; one command takes
 it out again.
 .
 Nothing is optimized before "whet optimize PID" or "systemctl enable --now
 whet". Removing the package takes back what was optimized.
CONTROL
package=$folder/whet_${version}_amd64.deb
dpkg-deb -Zgzip --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
