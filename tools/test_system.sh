#!/bin/bash
# Tests whet on a whole system: systemd is the first process in namespaces of its own, in an overlay of this
# machine's root folder. The package is installed there. Debian's unit starts MariaDB, which runs under load.
# The daemon optimizes the server, which is then measured, restarted and started warm. whet-fleet exchanges its profile
# with a store. The kill switch undoes it, and the packages are removed. The script prints a transcript, and nothing is left.
#
#   tools/test_system.sh     the binary is $WHET, target/debug/whet by default, with whet-fleet beside it; needs root and
#                            systemd; some minutes
set -euo pipefail
cd "$(dirname "$0")/.."
fail() {
    echo "test_system: $*" >&2
    exit 1
}

# The steps in that system. /outside has the package, and a whet that stays after the removal.
inside() {
    local package=$1 first second
    shown() {
        echo "# $*"
        "$@" 2>&1 | sed 's/^/  /'
        return "${PIPESTATUS[0]}"
    }
    server() { systemctl show mariadb -p MainPID --value; }
    state() { whet status "$1" --format json | grep -o '"targets":\[{[^}]*"state":"[a-z]*"' | grep -o '[a-z]*"$' | tr -d '"' | head -1; }
    # Waits up to SECONDS until `whet status` reports the wanted state of the process.
    becomes() {
        local seconds=$1 pid=$2 wanted=$3 found=
        for ((; seconds > 0; seconds--)); do
            found=$(state "$pid" || true)
            [[ $found == "$wanted" ]] && return
            sleep 1
        done
        whet status
        journalctl --no-pager -u whet | tail -20
        fail "process $pid is '$found', not '$wanted'"
    }

    shown dpkg --no-triggers -i "$package" || fail "cannot be installed"
    systemctl is-active --quiet whet && fail "the daemon was started by the installation"
    shown systemctl is-active whet-off.path || fail "the kill switch is not armed"

    [[ -d /var/lib/mysql/mysql ]] || mariadb-install-db --user=mysql >/dev/null
    shown systemctl start mariadb || fail "no MariaDB"
    mariadb -e 'CREATE DATABASE sbtest; GRANT ALL ON sbtest.* TO sbtest@localhost IDENTIFIED BY "sbtest"'
    local load=(sysbench oltp_point_select --tables=2 --table-size=10000 --mysql-user=sbtest --mysql-password=sbtest
        --mysql-socket=/run/mysqld/mysqld.sock --threads=4 --time=0 --mysql-ignore-errors=all)
    "${load[@]}" prepare >/dev/null
    systemd-run --quiet --unit=load "${load[@]}" run
    first=$(server)

    # By default the daemon waits for a minute.
    sed -i 's/^#:min_age.*/min_age = "5s"/; s/^#:warm_min_age.*/warm_min_age = "2s"/' /etc/whet.toml
    shown systemctl enable --now whet || fail "the daemon does not start"
    becomes 180 "$first" optimized
    shown whet status
    shown whet verify "$first" || fail "code differs"
    # The daemon first compares, to see whether the clones gain.
    local tries
    for ((tries = 0; tries < 90; tries++)); do
        journalctl --no-pager -u whet | grep -q 'work per user CPU second\|could not be measured' && break
        sleep 1
    done
    shown whet status
    # Exit code 7: the machine is too busy for a result.
    shown whet measure "$first" --mysql --rounds 10 || [[ $? == 7 ]] || fail "cannot be measured"

    echo "# systemctl restart mariadb"
    systemctl restart mariadb
    systemctl restart load
    second=$(server)
    becomes 120 "$second" optimized
    shown whet status
    journalctl --no-pager -u whet | grep -iq warm || fail "no warm start"

    # After an upgrade another daemon has the same targets.
    shown dpkg --no-triggers --force-confold -i "$package" || fail "cannot be upgraded"
    becomes 30 "$second" optimized

    # whet-fleet runs as soon as the daemon lists a build, and gets the build's profile.
    local public own=/etc/systemd/system/whet-fleet.service.d
    runs() { systemctl show whet-fleet -p ExecMainExitTimestampMonotonic --value; }
    shown dpkg --no-triggers -i /outside/deb/whet-fleet_*.deb || fail "whet-fleet cannot be installed"
    [[ $(systemctl is-active whet-fleet.timer whet-fleet.path) == $'inactive\ninactive' ]] || fail "whet-fleet was started"
    public=$(whet-fleet keygen /root/fleet.key | cut -d'"' -f2)
    install -d -o whet-fleet /srv/fleet
    mkdir "$own"
    printf '[Service]\nReadWritePaths=/srv/fleet\n' >"$own/store.conf"
    printf 'store = "file:///srv/fleet"\nkeys = ["%s"]\n' "$public" >/etc/whet-fleet.toml
    sed -i "s|^#:spool = .*|spool = \"/var/spool/whet\"|; s|^#:keys = .*|keys = [\"$public\"]|" /etc/whet.toml
    systemctl daemon-reload
    shown systemctl enable --now whet-fleet.path || fail "no path unit"
    # Its mount namespace is older than the spool folder.
    shown systemctl restart whet
    for ((tries = 0; tries < 60; tries++)); do
        [[ $(runs) != 0 ]] && break
        sleep 1
    done
    shown systemctl show whet-fleet -p Result -p ExecMainStatus
    [[ $(systemctl show whet-fleet -p Result --value) == success && $(runs) != 0 ]] || {
        journalctl --no-pager -u whet-fleet -u whet-fleet.path | tail -20
        fail "whet-fleet did not run, or failed"
    }
    becomes 10 "$second" optimized
    shown whet-fleet status
    [[ -n $(find /srv/fleet -type f -path '*/c/*') ]] || {
        # The daemon exports a profile at its own time; the timer's run would take it.
        for ((tries = 0; tries < 60; tries++)); do
            compgen -G '/var/spool/whet/out/*.profile' >/dev/null && break
            sleep 1
        done
        shown systemctl start whet-fleet || fail "the exchange fails"
    }
    [[ -n $(find /srv/fleet -type f -path '*/c/*') ]] || fail "the store has no contribution"
    shown dpkg --no-triggers -P whet-fleet || fail "whet-fleet cannot be purged"
    rm -r "$own"
    sed -i 's|^spool = .*|#:spool = "/var/spool/whet"|; s|^keys = .*|#:keys = []|' /etc/whet.toml
    systemctl daemon-reload
    systemctl reload whet

    # The daemon runs with capabilities instead of root, as RUNBOOK.md describes.
    own=/etc/systemd/system/whet.service.d
    mkdir "$own"
    {
        echo "[Service]"
        echo "User=daemon"
        grep -o 'AmbientCapabilities=[A-Z_ ]*' /outside/RUNBOOK.md
    } >"$own/user.conf"
    shown cat "$own/user.conf"
    systemctl daemon-reload
    systemctl restart whet mariadb
    systemctl restart load
    [[ $(ps -o user= -p "$(systemctl show whet -p MainPID --value)") == daemon ]] || fail "the daemon is root's"
    second=$(server)
    becomes 120 "$second" optimized
    rm -r "$own"
    systemctl daemon-reload

    # The kill switch works without a daemon, and more than once.
    systemctl stop whet
    for _ in 1 2; do
        shown touch /etc/whet.off
        becomes 30 "$second" undone
        rm /etc/whet.off
        shown whet redo "$second" || fail "no redo"
    done
    systemctl start whet

    shown dpkg --no-triggers -P whet || fail "cannot be purged"
    shown /outside/whet verify "$second" --format json | grep -q '"live_redirects":0' || fail "still optimized"
    mariadb -e 'SELECT 1' >/dev/null || fail "MariaDB is gone"
    [[ $(server) == "$second" ]] || fail "MariaDB was restarted"
    shown systemctl --failed --no-legend
    [[ -z $(systemctl --failed --no-legend) ]] || fail "units have failed"
    [[ -z $(find /etc /run /var/lib -name '*whet*' ! -path '/var/lib/dpkg/*') ]] || fail "something is left"
}
if [[ ${1:-} == --inside ]]; then
    inside "$2"
    exit
fi

if ((EUID != 0)) || [[ ! -x /lib/systemd/systemd ]] || ! command -v mariadbd sysbench >/dev/null; then
    echo "skipped: takes root, systemd, mariadbd and sysbench"
    exit 0
fi
whet=$(realpath "${WHET:-target/debug/whet}")
work=$(mktemp -d)
name=whet-test-$$
# With cgroups of version 1, or of both versions, systemd has its own hierarchy.
if [[ -d /sys/fs/cgroup/systemd ]]; then
    groups=(/sys/fs/cgroup/systemd/$name /sys/fs/cgroup/unified/$name)
else
    groups=(/sys/fs/cgroup/$name)
fi
system='' outer=''
ends() {
    # The new system's first process ends with this process, and all its other processes end with the first.
    kill -9 "$outer" 2>/dev/null || true
    wait "$outer" 2>/dev/null || true
    for _ in {1..50}; do
        find "${groups[@]}" -depth -type d -exec rmdir {} \; 2>/dev/null || true
        [[ -e ${groups[0]} ]] || break
        sleep 0.1
    done
    rm -rf "$work"
}
trap ends EXIT
package=$(tools/deb.sh whet "$whet" "$work/deb")
tools/deb.sh whet-fleet "${whet%/*}/whet-fleet" "$work/deb" >/dev/null
cp "$whet" "$work/whet"
cp "$0" "$work/test"
cp RUNBOOK.md "$work"
mkdir "$work/mnt"
mkdir -p "${groups[@]}"

cat >"$work/boot" <<'BOOT'
set -eu
work=$1
shift
for group; do
    echo $$ >"$group/cgroup.procs"
done
export work
exec unshare --mount --cgroup --propagation private sh -euc '
    mount -t tmpfs layers "$work/mnt"
    mkdir "$work/mnt/upper" "$work/mnt/scratch" "$work/mnt/root"
    root=$work/mnt/root
    mount -t overlay -o "lowerdir=/,upperdir=$work/mnt/upper,workdir=$work/mnt/scratch" whet "$root"
    mount -t tmpfs tmp "$root/tmp"
    mount -t tmpfs run "$root/run"
    mkdir "$root/outside"
    mount --bind "$work" "$root/outside"
    # systemd creates files in its /dev, which must not get into the /dev of this machine.
    mount -t tmpfs -o mode=755 dev "$root/dev"
    for node in null zero full random urandom tty; do
        touch "$root/dev/$node"
        mount --bind "/dev/$node" "$root/dev/$node"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=666 pts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
    mount --rbind /sys "$root/sys"
    if [ -d /sys/fs/cgroup/systemd ]; then
        mount -t tmpfs groups "$root/sys/fs/cgroup"
        mkdir "$root/sys/fs/cgroup/systemd" "$root/sys/fs/cgroup/unified"
        mount -t cgroup -o none,name=systemd groups "$root/sys/fs/cgroup/systemd"
        mount -t cgroup2 groups "$root/sys/fs/cgroup/unified"
    else
        mount -t cgroup2 groups "$root/sys/fs/cgroup"
    fi
    # The units that this machine starts are removed, and the units that need hardware are masked.
    rm -f "$root"/etc/systemd/system/*.wants/*
    for unit in getty.target systemd-udevd.service systemd-udev-trigger.service systemd-networkd.service \
        systemd-modules-load.service systemd-sysctl.service; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
    exec unshare --pid --fork --kill-child --uts --ipc chroot "$root" sh -c "
        mount -t proc proc /proc
        exec env -i container=whet PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --log-target=journal"
'
BOOT
sh "$work/boot" "$work" "${groups[@]}" </dev/null >"$work/boot.log" 2>&1 &
outer=$!
enter() { nsenter -t "$system" --mount --pid --uts --ipc --cgroup --root --wd "$@"; }
for _ in {1..60}; do
    sleep 1
    kill -0 "$outer" 2>/dev/null || fail "the system did not start: $(cat "$work/boot.log")"
    system=$(cat "/proc/$outer/task/$outer/children" 2>/dev/null | tr -d ' ')
    if [[ -z $system || $(cat "/proc/$system/comm") != systemd ]]; then continue; fi
    [[ $(enter systemctl is-system-running 2>/dev/null) =~ running|degraded ]] && break
done
[[ $(enter systemctl is-system-running) =~ running|degraded ]] || fail "the system did not come up: $(cat "$work/boot.log")"
enter bash /outside/test --inside "/outside/deb/$(basename "$package")"
echo "test_system: all well"
