#!/bin/bash
# Real programs in stress mode: each runs plain, and then under `whet run --shuffle SEED`, which clones every
# function it can and puts all blocks in random order while the program runs. Exit code and output must be the
# same.
#
#   tools/realworld.sh short [SEED]       python3, sqlite3, perl with one seed; a minute at most
#   tools/realworld.sh long [SEED...]     also more of python3's own tests, xz, bash, gdb, mariadbd; three seeds
#
# The binary is $WHET or target/release/whet. A program that ends before it is optimized proves nothing, so it
# counts as failed. The last line is "N passed, N failed".
set -uo pipefail
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/.." || exit 1
whet=${WHET:-target/release/whet}
tools=$PWD/tools

form=${1:-}
case $form in
    short) seeds=("${2:-1}") ;;
    long) seeds=("${@:2}") && ((${#seeds[@]})) || seeds=(1 2 3) ;;
    *)
        echo "usage: tools/realworld.sh short|long [SEED...]" >&2
        exit 2
        ;;
esac
if [[ ! -x $whet ]]; then
    echo "there is no $whet; build it with \`cargo build --release -p whet\`" >&2
    exit 1
fi
whet=$(realpath "$whet")

packages=(
    /usr/bin/python3=python3-minimal
    /usr/lib/python3.11/test/test_json=libpython3.11-testsuite
    /usr/lib/python3.11/test/test_zlib.py=libpython3.11-testsuite
    sqlite3=sqlite3 perl=perl
)
if [[ $form == long ]]; then
    packages+=(xz=xz-utils gdb=gdb mariadbd=mariadb-server sysbench=sysbench)
fi
"$tools/install-missing.sh" "${packages[@]}" || exit 1

scratch=$(mktemp -d -t whet-realworld-XXXXXX)
# Ends the running program if the script is interrupted. Each program is a process group of its own.
running=
finish() {
    [[ -z $running ]] || kill -KILL -- "-$running" 2>/dev/null
    rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP
cd "$scratch" || exit 1

passed=0
failed=0

# result VERDICT NAME SEED CLONED PLAIN-SECONDS WHET-SECONDS: one row of the table.
result() {
    if [[ $1 == ok ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    printf '%-8s %-14s %5s %8s %8s %8s\n' "$@"
}

# in_group SECONDS COMMAND...: runs it with a time limit, as a process group that can be ended as a whole.
in_group() {
    local limit=$1
    shift
    # timeout creates the group, and signals all of it when the time is up.
    timeout --kill-after=5 "$limit" "$@" &
    running=$!
    wait "$running"
    local code=$?
    running=
    return "$code"
}

# Removes what differs from run to run in a program's output. In that of python's test runner these are times,
# load, its scratch directory, and the note that a test passed, which only tests of half a minute or more get.
stable() {
    sed -E -e 's/^[0-9:]+ load avg: [0-9.]+ //' -e '/^== /d' -e '/^Total duration/d' \
        -e '/^test_[a-z]+ passed in /d' -e 's/ -- test_[a-z]+ passed in .*//' "$1"
}

# program NAME COMMAND...: the command plain, then with each seed.
program() {
    local name=$1 began plain_code plain_seconds code seconds cloned verdict seed
    shift
    began=$SECONDS
    in_group 300 "$@" >plain.out 2>plain.err </dev/null
    plain_code=$?
    plain_seconds=$((SECONDS - began))
    if ((plain_code != 0)); then
        tail -n 5 plain.err >&2
        result FAILED "$name" - - "exit $plain_code" -
        return
    fi
    stable plain.out >plain.txt
    for seed in "${seeds[@]}"; do
        # On a busy machine a program may end before it is optimized. Such a run proves nothing and is
        # repeated.
        for _ in 1 2 3; do
            rm -f report.json
            began=$SECONDS
            in_group 600 "$whet" run --delay 0.3 --shuffle "$seed" --report report.json -- "$@" \
                >whet.out 2>whet.err </dev/null
            code=$?
            seconds=$((SECONDS - began))
            if [[ -s report.json ]] || ! grep -q 'ended' whet.err; then
                break
            fi
        done
        stable whet.out >whet.txt
        cloned=$(/usr/bin/python3 -c 'import json; print(json.load(open("report.json"))["functions"]["cloned"])' 2>/dev/null)
        verdict=FAILED
        if ((code != plain_code)); then
            echo "$name, seed $seed: exit code $code, plain $plain_code" >&2
            tail -n 20 whet.err >&2
        elif ! cmp -s plain.txt whet.txt; then
            echo "$name, seed $seed: the output differs" >&2
            diff -a plain.txt whet.txt | head -n 20 >&2
        elif [[ -z $cloned || $cloned == 0 ]]; then
            echo "$name, seed $seed: it was not optimized" >&2
            tail -n 5 whet.err >&2
        else
            verdict=ok
        fi
        result "$verdict" "$name" "$seed" "${cloned:--}" "$plain_seconds" "$seconds"
        if [[ $verdict != ok ]]; then
            echo "to find the function: tools/bisect --shuffle $seed -- $(printf '%q ' "$@")" >&2
        fi
    done
}

# The work. Each program has several seconds of it, so that most of it runs after the optimization.

# Each module is named several times, so it runs as often: the first runs happen while whet still works.
python_modules=()
for _ in {1..9}; do python_modules+=(test_json test_re); done
if [[ $form == long ]]; then
    python_modules+=(
        test_unicode test_dict test_list test_set test_struct test_hashlib test_zlib test_sort test_generators
        test_exceptions test_math test_decimal
    )

    # 30 MB that take a compressor some time: words of a fixed pseudo-random sequence.
    /usr/bin/perl -e 'my $s = 1; my @words = map { join "", map { chr 97 + ($s = ($s * 69069 + 1) & 0xffffffff) % 26 } 0 .. 2 + $_ % 9 } 1 .. 5000;
        my $n = 0; while ($n < 30_000_000) { $s = ($s * 69069 + 1) & 0xffffffff; my $w = $words[($s >> 12) % 5000]; print $w, " "; $n += 1 + length $w }' >words
    xz -T1 -0 -k words
    # One file of many streams. Each stream has a checksum of its content.
    for _ in {1..6}; do cat words.xz; done >many.xz
fi

cat >work.sql <<'SQL'
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, s TEXT, x REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900000)
  INSERT INTO t SELECT i, (i * 7919) % 10007, printf('%08d-%x', i * 31 % 99991, i), i / 7.0 FROM n;
CREATE INDEX tk ON t(k);
CREATE INDEX ts ON t(s);
SELECT count(*), sum(k), min(s), max(s), round(avg(x), 6) FROM t;
SELECT k % 10, count(*), round(sum(x), 3), group_concat(DISTINCT substr(s, 1, 1)) FROM t GROUP BY 1 ORDER BY 1;
SELECT count(*) FROM t a JOIN t b ON b.k = a.k AND b.id < a.id WHERE a.id % 13 = 0;
SELECT count(*) FROM t WHERE s LIKE '%1f%' OR s GLOB '*-*a';
SELECT id, rank() OVER (ORDER BY k, s DESC) FROM t WHERE id % 60000 = 0;
UPDATE t SET s = upper(s) || k WHERE id % 3 = 0;
DELETE FROM t WHERE k BETWEEN 100 AND 900;
SELECT count(*), sum(length(s)) FROM t;
SELECT sum(json_extract(json_object('a', k, 'b', s), '$.a')) FROM t;
PRAGMA integrity_check;
SQL

cat >work.pl <<'PERL'
use strict;
use warnings;
my (%count, $text);
my $s = 1;
for my $round (1 .. 90) {
    for my $i (1 .. 40_000) {
        $s = ($s * 1103515245 + 12345) & 0x7fffffff;
        my $word = sprintf "%s%05x-%d", chr(97 + $s % 26), $s >> 8, $i % 97;
        $count{substr $word, 0, 3}++;
        $text .= "$word " if $word =~ /^[aeiou].*?(\d)\1/;
        if (my ($hex, $n) = $word =~ /([0-9a-f]{3})-(\d+)$/) { $count{$n} += hex $hex }
    }
    $text =~ s/(\w)(\w)(\w+)-(\d+)/$4-$3$2$1/g;
    my @sorted = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
    printf "%d %s %d %s\n", $round, $sorted[0], length $text, unpack "%32C*", $text;
    $text = join " ", (split / /, $text)[0 .. 99];
}
PERL

cat >work.sh <<'BASH'
declare -A seen
sum=0
for ((i = 0; i < 180000; i++)); do
    ((s = (i * 7919 + 13) % 10007))
    key="k$((s % 501))"
    ((seen[$key] += s))
    case $key in
        k1*7) ((sum += ${#key})) ;;
        k[2-4]?) v=${key/k/x} && ((sum += ${#v} * 2)) ;;
    esac
    [[ $key =~ ^k([0-9])(.*)$ ]] && ((sum += BASH_REMATCH[1]))
    ((i % 50000)) || printf '%s %05d %x\n' "$key" "$sum" "$s"
done
for key in "${!seen[@]}"; do echo "$key ${seen[$key]}"; done | LC_ALL=C sort
BASH

printf '%-8s %-14s %5s %8s %8s %8s\n' '' program seed cloned 'plain s' 'whet s'
program python3 /usr/bin/python3 -m test "${python_modules[@]}"
program sqlite3 sqlite3 :memory: '.read work.sql'
program perl /usr/bin/perl work.pl
if [[ $form == long ]]; then
    program xz xz -T1 -1 -c words
    program xz-test xz -T1 -t many.xz
    program bash /bin/bash work.sh
    # Lists the symbols of whet three times: gdb reads DWARF, sorts and demangles.
    listing=()
    for _ in {1..3}; do listing+=(-ex 'info functions' -ex 'info types' -ex 'info variables'); done
    program gdb gdb -nx -batch "${listing[@]}" "$whet"
    for seed in "${seeds[@]}"; do
        began=$SECONDS
        WHET=$whet in_group 300 python3 "$tools/server-test.py" --shuffle "$seed" --seconds 90 --toggles 5 >server.out 2>&1 </dev/null
        code=$?
        verdict=ok
        if ((code != 0)); then
            verdict=FAILED
            cat server.out >&2
        fi
        cloned=$(sed -nE 's/^ +([0-9]+) functions cloned.*/\1/p' server.out)
        result "$verdict" mariadbd "$seed" "${cloned:--}" - $((SECONDS - began))
    done
fi

echo "$passed passed, $failed failed"
((failed == 0))
