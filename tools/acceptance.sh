#!/bin/bash
# The tests that need whole servers and programs instead of cargo: the tools, MariaDB under load, real
# programs in stress mode.
#
#   tools/acceptance.sh short|long        the binary is $WHET
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
form=${1:?short or long}

failed=0
run() {
    echo "==> $*"
    "$@" && return
    failed=$((failed + 1))
    return 1
}
# These wait more than they compute, so they run beside the others.
run python3 tools/test_bisect.py &
pids=($!)
run tools/test_deb.sh &
pids+=($!)
if command -v kubectl >/dev/null; then
    run tools/test_kubernetes.sh &
    pids+=($!)
else
    echo "skipped: tools/test_kubernetes.sh, without kubectl"
fi
run python3 tools/test_measure.py
run tools/test_metrics.sh
for pid in "${pids[@]}"; do
    wait "$pid" || failed=$((failed + 1))
done
if [[ $form == long ]]; then
    run tools/test_system.sh
    run python3 tools/fleet_hosts_test.py
    run python3 tools/server-test.py --seconds 180 --toggles 50
    run python3 tools/server-test.py --seconds 60 --connections 64
    run python3 tools/server-test.py --crash
    for seed in 1 2 3; do
        run python3 tools/server-test.py --shuffle "$seed" --seconds 120
    done
    for server in mysql-9.7 mariadb-10.1 mariadb-10.2 mariadb-11.4 mariadb-11.8 mysql-5.6; do
        if python3 tools/server.py fetch "$server"; then
            run python3 tools/server-test.py --server "$server" --seconds 60 --toggles 20
            run python3 tools/server-test.py --server "$server" --crash
            run python3 tools/server-test.py --server "$server" --shuffle 1 --seconds 120
        else
            echo "skipped: $server, for the reason above"
        fi
    done
else
    run python3 tools/server-test.py --seconds 30 --toggles 10
    run python3 tools/server-test.py --crash
fi
if [[ $form == long ]]; then
    # One after the other: family-test.py skips a server that cannot be had.
    for pair in apache2=apache2-bin php-fpm8.2=php8.2-fpm gunicorn=gunicorn puma=puma; do
        tools/install-missing.sh "$pair" || echo "skipped: $pair cannot be installed, for the reason above"
    done
    run python3 tools/family-test.py --long
    run python3 tools/family-test.py --server postgresql-18 --load select --load tpcb --load reconnect
else
    run python3 tools/family-test.py
fi
run tools/realworld.sh "$form"
if ((failed)); then
    echo "acceptance: $failed of the runs above failed" >&2
    exit 1
fi
echo "acceptance: all well"
