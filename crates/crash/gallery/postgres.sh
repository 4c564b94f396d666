# PostgreSQL: one row per transaction, each acknowledged. Argument: a value of fsync.
set -e
. "$GALLERY/postgres-functions.sh"
chmod 755 "$FIRST_WORK_DIR"
sockets=$(mktemp -d)
start "$FIRST_WORK_DIR/data" "$sockets" -c fsync="$1"
for number in 1 2 3; do
    query "insert into t values ($number, repeat('text', 200))"
    echo "saved $number"
done
query 'checkpoint'
query "insert into t values (4, repeat('text', 200))"
echo 'saved 4'
# As a process that is killed: a shutdown would write more.
stop QUIT
rm -rf "$sockets"
