# Where PostgreSQL's programs are, and how a server is started as a user that it accepts.
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
as_user() {
    if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; else "$@"; fi
}
# Arguments: the data directory, the directory for the socket, further options.
start() {
    data=$1 sockets=$2
    shift 2
    if [ "$(id -u)" = 0 ]; then chown -R postgres:postgres "$data" "$sockets"; fi
    chmod -R go-rwx "$data"
    as_user "$bin/postgres" -D "$data" -c listen_addresses= -c unix_socket_directories="$sockets" \
        -c shared_buffers=1MB -c max_connections=10 -c autovacuum=off "$@" >/dev/null 2>&1 &
    server=$!
    until query 'select 1' >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null || return 1
    done
}
# Argument: the signal. The shell's child is not the server itself.
stop() {
    kill -"$1" "$(head -n 1 "$data/postmaster.pid")"
    wait "$server" || true
}
query() {
    PGOPTIONS= as_user "$bin/psql" -X -q -t -A -h "$sockets" -d template1 -U postgres -c "$1" </dev/null
}
