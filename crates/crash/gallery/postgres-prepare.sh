# A cluster with one table, in $GALLERY_TMP/postgres. Databases that nobody uses are dropped: each
# state is a copy of all of it.
set -e
. "$GALLERY/postgres-functions.sh"
rm -rf "$GALLERY_TMP/postgres"
mkdir -p "$GALLERY_TMP/postgres/data"
# The user that the server runs as has to reach it.
chmod 755 "$GALLERY_TMP" "$GALLERY_TMP/.." "$GALLERY_TMP/postgres"
if [ "$(id -u)" = 0 ]; then chown -R postgres:postgres "$GALLERY_TMP/postgres"; fi
as_user "$bin/initdb" -D "$GALLERY_TMP/postgres/data" -U postgres --no-locale -E UTF8 -A trust --wal-segsize=1 >/dev/null
sockets=$(mktemp -d)
start "$GALLERY_TMP/postgres/data" "$sockets"
query "update pg_database set datistemplate = false where datname = 'template0'"
query 'drop database template0'
query 'drop database postgres'
query 'create table t (number integer primary key, text text)'
query 'checkpoint'
stop INT
rm -rf "$sockets"
