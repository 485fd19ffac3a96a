#!/bin/bash
# Builds an .rpm from a Debian package of this workspace: the same files, the same steps. Prints the package's path.
#
#   tools/rpm.sh PACKAGE.deb [FOLDER]      to target/rpm
set -euo pipefail
cd "$(dirname "$0")/.."
deb=$(realpath "$1") folder=${2:-target/rpm}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
export SOURCE_DATE_EPOCH
mkdir -p "$folder"
folder=$(realpath "$folder")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dpkg-deb -R "$deb" "$work/root"
field() { dpkg-deb -f "$deb" "$1"; }
name=$(field Package) version=$(field Version)
# The program's own library names are found by rpm. Debian's folders for completions have other names in Fedora.
if [[ -d $work/root/usr/share/zsh/vendor-completions ]]; then
    mv "$work/root/usr/share/zsh/vendor-completions" "$work/root/usr/share/zsh/site-functions"
fi
script() {
    [[ -e $work/root/DEBIAN/$1 ]] || return 0
    # Debian passes words for what rpm passes as the number of versions that remain. rpm has no ischroot and no adduser.
    sed -e 1,1d -e 's/ischroot/false/' \
        -e 's/adduser --system .* whet-fleet$/getent passwd whet-fleet >\/dev\/null || useradd --system --user-group --no-create-home --home-dir \/var\/lib\/whet-fleet --shell \/sbin\/nologin whet-fleet/' \
        "$work/root/DEBIAN/$1"
}
{
    cat <<SPEC
Name: $name
Version: ${version%-*}
Release: ${version##*-}
Summary: $(field Description | head -n 1)
License: Apache-2.0 OR MIT
BuildArch: x86_64
%global _build_id_links none
%global __os_install_post %{nil}
%global debug_package %{nil}
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global _buildhost reproducible
%description
$(field Description | tail -n +2 | sed -e 's/^ //' -e 's/^\.$//')
%install
cp -a $work/build/. %{buildroot}/
%files
SPEC
    (cd "$work/root" && find . -path ./DEBIAN -prune -o \( -type f -o -type l \) -print | LC_ALL=C sort | while read -r file; do
        case ${file#.} in
        /etc/*) echo "%config(noreplace) ${file#.}" ;;
        *) echo "${file#.}" ;;
        esac
    done)
    echo "%post"
    echo "set -- configure"
    script postinst
    echo "%preun"
    echo '[ "$1" = 0 ] && set -- remove || set -- upgrade'
    script prerm
    echo "%postun"
    echo 'set -- "$([ "$1" = 0 ] && echo remove || echo upgrade)"'
    script postrm
} >"$work/spec"
cp -a "$work/root" "$work/build"
rm -r "$work/build/DEBIAN"
rpmbuild --quiet -bb --define "_rpmdir $folder" --define "_topdir $work/top" --define "_binary_payload w9.gzdio" \
    "$work/spec" >&2
echo "$folder/x86_64/$name-${version%-*}-${version##*-}.x86_64.rpm"
