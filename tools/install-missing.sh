#!/bin/bash
# Installs the Debian packages that the demo and the tests need, if they are missing and the user is root. For
# other users it lists the missing packages and fails.
#
#   tools/install-missing.sh COMMAND=PACKAGE...     COMMAND: a program's name, or the path of any file
set -euo pipefail

missing=()
for pair in "$@"; do
    command=${pair%%=*} package=${pair#*=}
    if [[ $command == /* ]]; then
        [[ -e $command ]] || missing+=("$package")
    else
        # mariadbd is in /usr/sbin, which only the path of root has.
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

# Debian's packages start their services, but the demo starts its own private server. An existing policy (as
# in containers) is left as it is.
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
