#!/bin/bash
# Debian packages that the demo and the tests need: installs those that are missing, as root; says which they are,
# as anybody else.
#
#   tools/install-missing.sh COMMAND=PACKAGE...     COMMAND: a program's name, or the path of any file
set -euo pipefail

missing=()
for pair in "$@"; do
    command=${pair%%=*} package=${pair#*=}
    if [[ $command == /* ]]; then
        [[ -e $command ]] || missing+=("$package")
    else
        # mariadbd lives in /usr/sbin, which only root has in its path.
        PATH=$PATH:/usr/sbin command -v "$command" >/dev/null || missing+=("$package")
    fi
done
if ((${#missing[@]} == 0)); then
    exit 0
fi
if ((EUID != 0)); then
    echo "missing packages; as root: apt-get install ${missing[*]}" >&2
    exit 1
fi

# Debian's packages start their services; the demo brings its own private server. A policy that is there already
# (as in containers) is left as it is.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
echo "installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
{
    apt-get -q update
    apt-get -q install -y --no-install-recommends "${missing[@]}"
} >&2
