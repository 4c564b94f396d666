# Redis: keys with an append-only file. Argument: a value of appendfsync.
set -e
cd "$FIRST_WORK_DIR"
socket=$GALLERY_TMP.redis.sock
redis-server --port 0 --unixsocket "$socket" --dir "$FIRST_WORK_DIR" --appendonly yes --appendfsync "$1" --save '' --logfile /dev/null --daemonize no >/dev/null 2>&1 &
until redis-cli -s "$socket" ping >/dev/null 2>&1; do :; done
for number in 1 2 3; do
    redis-cli -s "$socket" set "key$number" "value$number" >/dev/null
    echo "saved $number"
done
redis-cli -s "$socket" shutdown nosave >/dev/null 2>&1 || true
wait
