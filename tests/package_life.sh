#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# package_life.sh: the life of the Debian packages in this folder, in a root that may be changed
# (tests/bare.sh --packages): install, start the service, build and run the example, keep an entry,
# upgrade with data, find it again, remove, purge. Two versions lie here; the older one comes first.
set -eu
export DEBIAN_FRONTEND=noninteractive
versions=$(ls kvterrace_*.deb | sed 's/^kvterrace_\(.*\)_[a-z0-9]*\.deb$/\1/' | sort -V)
[ "$(printf '%s\n' "$versions" | wc -l)" -eq 2 ] || {
    echo "two versions are needed: $versions"
    exit 1
}
old=$(printf '%s\n' "$versions" | head -n 1)
new=$(printf '%s\n' "$versions" | tail -n 1)

install_version() {
    # shellcheck disable=SC2046 # a list of files on purpose
    apt-get install -y -q $(ls ./*_"$1"_*.deb | grep -v dbgsym) >apt.log 2>&1 || {
        tail -n 20 apt.log
        exit 1
    }
}

# The service as its unit starts it: systemd does not run in this root.
unit=/lib/systemd/system/kvterrace.service
setting() { sed -n "s/^$1=//p" "$unit"; }
as_service() { setpriv --reuid "$(setting User)" --regid "$(setting Group)" --init-groups "$@"; }
start() {
    install -d -o kvterrace -g kvterrace "/run/$(setting RuntimeDirectory)" \
        "/var/lib/$(setting StateDirectory)"
    # shellcheck disable=SC2046 # a command line on purpose
    setpriv --reuid kvterrace --regid kvterrace --init-groups $(setting ExecStart) \
        >serve.log 2>&1 & # not as_service: its shell would be what is killed
    server=$!
    for _ in $(seq 100); do
        [ -S /run/kvterrace/socket ] && return
        sleep 0.2
    done
    echo "the service does not listen:"
    cat serve.log
    exit 1
}
stop() {
    kill "$server"
    wait "$server" || { echo "the service ended badly:"; cat serve.log; exit 1; }
}
expect() {
    label=$1
    shift
    "$@" >out 2>&1 || { echo "$label:"; cat out; exit 1; }
    echo "    $label"
}

install_version "$old"
apt-get install -y -q gcc libc6-dev pkgconf man-db bash-completion >apt.log 2>&1
expect "the command is $old" kvterrace --version
expect "its configuration is sound" kvterrace check-config /etc/kvterrace.ini
expect "its manual page is there" man -w kvterrace
expect "its completion is there" test -s /usr/share/bash-completion/completions/kvterrace
expect "the user is there" id kvterrace
examples=/usr/share/doc/kvterrace/examples
build() { sh -c "cc $1 -o $2 \$(pkg-config --cflags --libs kvterrace)"; }
expect "the example builds" build $examples/example.c example
expect "and runs" ./example

sed 's/^capacity = 8GiB/capacity = 256MiB/; s/^capacity = 1GiB/capacity = 64MiB/' \
    /etc/kvterrace.ini >small.ini
cp small.ini /etc/kvterrace.ini
start
cat >keep.c <<'C'
#include <kvterrace/connect.h>
#include <kvterrace/kvterrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* keep put|get: one entry in the service's store. */
int main(int count, char **words)
{
    kvt_store *store;
    char message[256] = "";
    if (kvt_connect("/run/kvterrace/socket", NULL, &store, message, sizeof message) != KVT_OK) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    const kvt_entry entry = {
        .struct_size = sizeof entry,
        .key = {{7}},
        .layout = {
            .layers = 4, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 64}};
    uint64_t bytes;
    if (kvt_layout_bytes(&entry.layout, &bytes) != KVT_OK) return 1;
    unsigned char *kv = malloc(bytes), *back = malloc(bytes);
    for (uint64_t i = 0; i < bytes; i++)
        kv[i] = (unsigned char)(i * 31 + (i >> 9));
    kvt_status status = count > 1 && strcmp(words[1], "put") == 0
                            ? kvt_store_put(store, &entry, KVT_PACKED(kv, bytes))
                            : kvt_store_get(store, &entry.key, KVT_PACKED(back, bytes),
                                            KVT_NO_DEADLINE, NULL);
    if (status == KVT_OK && count > 1 && strcmp(words[1], "get") == 0 &&
        memcmp(kv, back, bytes) != 0)
        status = KVT_E_CORRUPT;
    printf("%s\n", kvt_status_text(status));
    kvt_store_close(store);
    return status == KVT_OK ? 0 : 1;
}
C
build keep.c keep
expect "an entry is put" as_service ./keep put
stop

install_version "$new"
expect "the upgrade keeps the configuration" cmp small.ini /etc/kvterrace.ini
start
expect "the entry is there after the upgrade to $new" as_service ./keep get
expect "the programs of the older version run" ./example
stop

apt-get remove -y -q kvterrace libkvterrace-dev >apt.log 2>&1
expect "a remove keeps data and configuration" \
    sh -c "test -s /var/lib/kvterrace/catalog.db && test -s /etc/kvterrace.ini"
apt-get purge -y -q kvterrace >apt.log 2>&1
expect "a purge takes both" sh -c "! test -e /var/lib/kvterrace && ! test -e /etc/kvterrace.ini"
apt-get autoremove -y -q --purge "libkvterrace*" >apt.log 2>&1
left=$(find /usr /etc /var/lib -name '*kvterrace*' ! -path '/usr/share/doc/*' \
    ! -path '/var/lib/dpkg/*' ! -path '/var/lib/systemd/*' ! -path '/var/lib/apt/*')
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
