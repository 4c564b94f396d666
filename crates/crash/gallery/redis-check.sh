# Exits with 1 if an acknowledged key is gone, with 2 if the server does not start.
cd "$FIRST_WORK_DIR"
promised=$(wc -l < "$FIRST_ACKS")
socket=$(mktemp -u)
redis-server --port 0 --unixsocket "$socket" --dir "$FIRST_WORK_DIR" --appendonly yes --save '' --logfile /dev/null --daemonize no >/dev/null 2>&1 &
server=$!
until redis-cli -s "$socket" ping 2>/dev/null | grep -q PONG; do
    kill -0 "$server" 2>/dev/null || { echo 'corrupt: the server does not start'; exit 2; }
done
number=1
while [ "$number" -le "$promised" ]; do
    if [ "$(redis-cli -s "$socket" get "key$number")" != "value$number" ]; then echo 'lost: an acknowledged key'; exit 1; fi
    number=$((number + 1))
done
