#!/bin/bash
# Rebuilds assets/echarts.js: Apache ECharts, only the parts that the report uses. Needs npm; run by hand when the library is renewed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/entry.js" "$work/"
cd "$work"
npm init -y >/dev/null
npm install --no-audit --no-fund echarts@6.1.0 esbuild@0.28.2
{
    echo '/*! Apache ECharts 6.1.0, Copyright 2017-2026 The Apache Software Foundation, Apache-2.0 (crates/lab/assets/charts/NOTICE);'
    echo '    with zrender, BSD-3-Clause (crates/lab/assets/charts/LICENSE-zrender). Bundled by charts/build.sh. */'
    npx esbuild entry.js --bundle --minify --format=iife --global-name=echarts --legal-comments=inline
} >"$here/../echarts.js"
cp node_modules/echarts/NOTICE "$here/NOTICE"
cp node_modules/zrender/LICENSE "$here/LICENSE-zrender"
