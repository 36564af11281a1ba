#!/bin/sh
# Run a command with a PostgreSQL server of its own, named in WATTLOOP_TEST_POSTGRES, and stop the
# server when the command ends. Without PostgreSQL the command runs alone: the tests that need a
# server are skipped.
set -u

folder=""
for program in /usr/lib/postgresql/*/bin/initdb "$(command -v initdb)"; do
    [ -x "$program" ] && folder=$(dirname "$program")
done
if [ -n "${WATTLOOP_TEST_POSTGRES:-}" ] || [ -z "$folder" ]; then
    exec "$@"
fi

# PostgreSQL refuses to run as root.
as=""
place=$(mktemp -d)
if [ "$(id -u)" = 0 ]; then
    as="runuser -u postgres --"
    chown postgres "$place" 2>/dev/null || exec "$@"
fi

stop() {
    (cd / && $as "$folder/pg_ctl" -D "$place/data" -m immediate stop) >/dev/null 2>&1
    rm -rf "$place"
}
trap stop EXIT
# A shell that a signal ends runs no EXIT trap: Ctrl-C would leave the server running.
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# shellcheck disable=SC2086  # $as is a command with arguments, or nothing
started=no
(cd / && $as "$folder/initdb" --no-sync -D "$place/data" -A trust -U wattloop -E UTF8 --locale=C) \
    >"$place.out" 2>&1 &&
    # A port may be in use: try a few.
    for port in ${WATTLOOP_TEST_POSTGRES_PORTS:-$(for i in 0 1 2 3 4; do
        echo $((20000 + ($$ + 4001 * i) % 20000))
    done)}; do
        if (cd / && $as "$folder/pg_ctl" -D "$place/data" -w -l "$place/log" \
            -o "-p $port -c listen_addresses=127.0.0.1 -c fsync=off -k $place" start) \
            >"$place.out" 2>&1; then
            started=yes
            break
        fi
    done
if [ $started = yes ]; then
    WATTLOOP_TEST_POSTGRES="postgresql://wattloop@127.0.0.1:$port/postgres"
    export WATTLOOP_TEST_POSTGRES
else
    echo "with-postgres: PostgreSQL does not start, its tests are skipped: $(tail -n 1 "$place.out")" >&2
fi
rm -f "$place.out"

"$@"
