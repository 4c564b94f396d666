# Exits with 1 if an acknowledged row is gone, with 2 if the server does not start or a row is damaged.
# With `remove-empty-lock` a lock file that is empty, or zeros, is removed first, as the server's message says.
. "$GALLERY/postgres-functions.sh"
promised=$(wc -l < "$FIRST_ACKS")
chmod 755 "$FIRST_WORK_DIR"
lock=$FIRST_WORK_DIR/data/postmaster.pid
if [ "$1" = remove-empty-lock ] && [ -e "$lock" ] && [ -z "$(tr -d '\0' < "$lock")" ]; then rm "$lock"; fi
sockets=$(mktemp -d)
trap 'rm -rf "$sockets"' EXIT
start "$FIRST_WORK_DIR/data" "$sockets" -c fsync=off || { echo 'corrupt: the server does not start'; exit 2; }
rows=$(query "select count(*) from t where text = repeat('text', 200)") || { echo 'corrupt: the table cannot be read'; exit 2; }
query 'reindex table t' || { echo 'corrupt: the index cannot be made again'; exit 2; }
stop QUIT
if [ "$rows" -lt "$promised" ]; then echo 'lost: an acknowledged row'; exit 1; fi
