#!/bin/bash
# Checks the manifests for Kubernetes against the schemas of all Kubernetes versions for which they are written. A field
# that a version does not have fails.
#
#   tools/test_kubernetes.sh [KUBERNETES_VALIDATE]      the program of this name from PyPI, which brings the schemas;
#                                                       it is installed for the run if not given; needs kubectl
set -euo pipefail
cd "$(dirname "$0")/.."
# The first version that has `appArmorProfile`; docs/release.md names it.
oldest=30
fail() {
    echo "test_kubernetes: $*" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
validate=${1:-$work/venv/bin/kubernetes-validate}
if [[ $# -eq 0 ]]; then
    if ! { python3 -m venv "$work/venv" &&
        "$work/venv/bin/pip" install -q --disable-pip-version-check kubernetes-validate==1.37.0; }; then
        echo "skipped: kubernetes-validate cannot be installed, for the reason above"
        exit 0
    fi
fi
newest=$("$validate" --version | grep -o '[0-9]*\.[0-9]*' | head -n 1)
newest=${newest#*.}
[[ $newest -ge $oldest ]] || fail "no schemas of Kubernetes 1.$oldest"
for folder in packaging/kubernetes/base packaging/kubernetes/overlays/*/; do
    kubectl kustomize "$folder" >"$work/manifest.yaml"
    for kind in Namespace ConfigMap DaemonSet; do
        grep -q "^kind: $kind" "$work/manifest.yaml" || fail "$folder has no $kind"
    done
    for minor in $(seq "$oldest" "$newest"); do
        "$validate" --strict --quiet -k "1.$minor.0" "$work/manifest.yaml" || fail "$folder does not fit Kubernetes 1.$minor"
    done
    # The check finds what is wrong.
    sed 's/hostPID:/hostPid:/' "$work/manifest.yaml" >"$work/wrong.yaml"
    if "$validate" --strict --quiet "$work/wrong.yaml" >/dev/null 2>&1; then fail "a misspelled field was not found"; fi
done
echo "test_kubernetes: ok (Kubernetes 1.$oldest to 1.$newest)"
