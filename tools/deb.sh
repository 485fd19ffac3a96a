#!/bin/bash
# Builds a Debian package of a program that is built already, and prints the package's path.
#
#   tools/deb.sh whet|whet-fleet [BINARY [FOLDER]]      target/release/NAME, to target/deb
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1 binary=${2:-target/release/$1} folder=${3:-target/deb}

version=$("$binary" --version)
version=${version#"$name "}-1
# The date of the last commit: the same sources and binary make the same package.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
export SOURCE_DATE_EPOCH
mkdir -p "$folder"
work=$(mktemp -d "$folder/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$(realpath "$work")/root
umask 022
doc=$root/usr/share/doc/$name man=$root/usr/share/man

files_of_whet() {
    install -D -m 644 -t "$root/usr/lib/systemd/system" packaging/whet.service packaging/whet-off.{path,service}
    # The kill switch is active wherever the package is installed.
    mkdir "$root/usr/lib/systemd/system/paths.target.wants"
    ln -s ../whet-off.path "$root/usr/lib/systemd/system/paths.target.wants/whet-off.path"
    install -D -m 644 -t "$root/etc" packaging/whet.toml
    install -D -m 644 -t "$root/usr/share/whet/monitoring" packaging/monitoring/*
    "$binary" generate "$work/generated" >/dev/null
    install -D -m 644 -t "$man/man1" "$work"/generated/*.1
    install -D -m 644 -t "$man/man5" packaging/whet.toml.5
    install -D -m 644 "$work/generated/whet.bash" "$root/usr/share/bash-completion/completions/whet"
    install -D -m 644 -t "$root/usr/share/zsh/vendor-completions" "$work/generated/_whet"
    install -D -m 644 -t "$root/usr/share/fish/vendor_completions.d" "$work/generated/whet.fish"
    install -D -m 644 -t "$doc" README.md RUNBOOK.md SECURITY.md
    install -D -m 644 -t "$doc/docs" docs/*.md
    tools/third_party.py >"$doc/third-party"
}

files_of_fleet() {
    install -D -m 644 -t "$root/usr/lib/systemd/system" packaging/whet-fleet.{service,timer,path}
    # It may hold credentials; the postinst lets the user's group read it.
    install -D -m 640 -t "$root/etc" packaging/whet-fleet.toml
    install -D -m 644 -t "$man/man1" packaging/whet-fleet.1
    install -D -m 644 -t "$doc" docs/fleet.md
    tools/third_party.py fleet_sync fleet_sync/cloud >"$doc/third-party"
}

install -D -m 755 "$binary" "$root/usr/bin/$name"
strip --strip-unneeded --remove-section=.comment "$root/usr/bin/$name"
case $name in
whet) files_of_whet ;;
whet-fleet) files_of_fleet ;;
esac
install -D -m 644 CHANGELOG.md "$doc/changelog"
cat >"$doc/changelog.Debian" <<CHANGES
whet ($version) unstable; urgency=medium

  * What has changed is in changelog.gz.

 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
CHANGES
{
    cat packaging/debian/copyright
    echo "License: Apache-2.0"
    echo " On Debian systems the text is in /usr/share/common-licenses/Apache-2.0."
    echo
    echo "License: Expat"
    sed -e 1,2d -e 's/^$/./' -e 's/^/ /' LICENSE-MIT
} >"$doc/copyright"

# The tools of dpkg-dev expect the layout of a source package around that of the package.
mkdir "$work/debian" "$root/DEBIAN"
cp packaging/debian/control "$work/debian/control"
cp "$doc/changelog.Debian" "$work/debian/changelog"
gzip -9n "$doc"/{changelog,changelog.Debian,third-party} "$man"/*/*
for step in postinst prerm postrm; do
    install -m 755 "packaging/debian/$name.$step" "$root/DEBIAN/$step"
done
(cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
(
    cd "$work"
    dpkg-shlibdeps -Tsubstvars "$root/usr/bin/$name"
    dpkg-gencontrol -p"$name" -P"$root" -Tsubstvars -fdebian/files
)
package=$folder/${name}_${version}_amd64.deb
dpkg-deb -Zgzip --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
