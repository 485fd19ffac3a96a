#!/bin/bash
# Tests the package: builds it from a binary and examines it. Then installs, uses, upgrades, removes and purges it
# in a separate root folder (an overlay of this machine's root, in its own namespaces). Nothing may be left.
#
#   tools/test_deb.sh        the binary is $WHET, target/debug/whet by default; needs root
set -euo pipefail
cd "$(dirname "$0")/.."
fail() {
    echo "test_deb: $*" >&2
    exit 1
}

# The steps in the new root. /outside has the package, and a whet that stays after the removal.
inside() {
    local package=$1 whet=/outside/whet pid
    installed() { dpkg-query -W -f '${Status}' whet 2>/dev/null; }
    quietly() { "$@" >/outside/log 2>&1 || { cat /outside/log >&2; fail "failed: $*"; }; }
    live() { "$whet" verify "$1" --format json | grep -o '"live_redirects":[0-9]*' | cut -d: -f2; }
    daemon() { pgrep -f '^/proc/self/exe start --foreground' || true; }

    awk 'BEGIN { while (1) x += length(x) }' &
    pid=$!
    quietly dpkg --no-triggers -i "$package"
    [[ $(installed) == "install ok installed" ]] || fail "not installed: $(installed)"
    [[ $(whet --version) == $("$whet" --version) ]] || fail "another version"
    [[ -z $(pgrep -x whet) ]] || fail "something of whet's runs right after it was installed"
    whet status | grep -q 'nothing is optimized' || fail "something is optimized: $(whet status)"
    [[ ! -e /var/lib/whet ]] || fail "something has run"

    echo "# mine" >>/etc/whet.toml
    quietly whet start
    quietly whet optimize "$pid" --shuffle 1
    (($(live "$pid") > 0)) || fail "nothing was optimized"
    local runs
    runs=$(daemon)
    [[ -n $runs ]] || fail "no daemon"

    # An upgrade changes neither targets nor the configuration.
    quietly dpkg --no-triggers --force-confold -i "$package"
    (($(live "$pid") > 0)) || fail "an upgrade has undone a target"
    [[ $(daemon) == "$runs" ]] || fail "the daemon is gone after an upgrade"
    grep -q "^# mine" /etc/whet.toml || fail "the configuration was replaced"

    # If a target cannot be undone, the package stays, since it has the tool for the undo.
    kill -STOP "$pid"
    if dpkg --no-triggers -r whet >/outside/log 2>&1; then fail "removed while something is optimized"; fi
    grep -q "still optimized" /outside/log || fail "the reason is missing: $(cat /outside/log)"
    [[ -x /usr/bin/whet ]] || fail "the tool is gone"
    kill -CONT "$pid"

    quietly dpkg --no-triggers -r whet
    [[ $(live "$pid") == 0 ]] || fail "removed, and still optimized"
    "$whet" verify "$pid" >/dev/null || fail "code differs after the removal"
    kill -0 "$pid" || fail "the target is gone"
    [[ -z $(daemon) ]] || fail "the daemon still runs"
    [[ -e /etc/whet.toml && -e /var/lib/whet && ! -e /usr/bin/whet ]] || fail "removed too much or too little"
    touch /etc/whet.off
    quietly dpkg --no-triggers -P whet
    kill "$pid"
}
if [[ ${1:-} == --inside ]]; then
    inside "$2"
    exit
fi

if ! unshare --mount --pid --fork true 2>/dev/null; then
    echo "skipped: takes root, and namespaces"
    exit 0
fi
whet=$(realpath "${WHET:-target/debug/whet}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=$(tools/deb.sh whet "$whet" "$work/deb")

# The content of the package.
dpkg-deb -x "$package" "$work/tree"
man1=$work/tree/usr/share/man/man1
for command in $("$whet" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]\+\) .*/\1/p'); do
    [[ -f $man1/whet-$command.1.gz ]] || fail "no man page of $command"
done
for page in "$man1"/* "$work"/tree/usr/share/man/man5/*; do
    warnings=$(MANROFFSEQ='' MANWIDTH=100 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
    [[ -z $warnings ]] || fail "$page: $warnings"
done
bash -n "$work/tree/usr/share/bash-completion/completions/whet"
if command -v zsh >/dev/null; then zsh -n "$work/tree/usr/share/zsh/vendor-completions/_whet"; fi
if command -v fish >/dev/null; then fish -n "$work/tree/usr/share/fish/vendor_completions.d/whet.fish"; fi
for script in postinst prerm postrm; do
    dpkg-deb -I "$package" "$script" | sh -n
done
if command -v lintian >/dev/null; then
    # The package is made by hand from a binary, so it closes no bug of Debian.
    lintian --fail-on error --suppress-tags initial-upload-closes-no-bugs "$package"
else
    echo "skipped: no lintian"
fi

# Nothing in the new root can change files or processes of this machine. The first process is in the new root,
# as on a real system.
cp "$whet" "$work/whet"
cp "$0" "$work/test"
mkdir "$work/mnt"
# shellcheck disable=SC2016
unshare --mount --propagation private bash -euc '
    work=$1 package=$2
    mount -t tmpfs layers "$work/mnt"
    mkdir "$work"/mnt/{upper,scratch,root}
    root=$work/mnt/root
    mount -t overlay -o "lowerdir=/,upperdir=$work/mnt/upper,workdir=$work/mnt/scratch" whet "$root"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmp "$root/tmp"
    mount -t tmpfs run "$root/run"
    mkdir "$root/outside"
    mount --bind "$work" "$root/outside"
    unshare --pid --fork --kill-child chroot "$root" sh -c "
        mount -t proc proc /proc && exec bash /outside/test --inside /outside/deb/$package"
    # Mount itself writes to /run/mount, which is left out.
    find "$root/run" -mindepth 1 ! -path "*/mount*" -printf "/run/%P\n" >"$work/left"
    cd "$work/mnt/upper"
    # New files, and folders that did not exist. The database and log of dpkg are left out.
    find . -mindepth 1 ! -path "./var/lib/dpkg/*" ! -path ./var/log/dpkg.log ! -path ./outside |
        while read -r left; do
            [[ -d $left && -d /$left ]] || echo "$left"
        done >>"$work/left"
' - "$work" "$(basename "$package")"
[[ ! -s $work/left ]] || fail "left after the purge: $(cat "$work/left")"
echo "test_deb: all well"
