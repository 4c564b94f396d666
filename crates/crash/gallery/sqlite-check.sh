# Exits with 1 if an acknowledged row is gone, with 2 if the database is damaged.
db=$FIRST_WORK_DIR/db
promised=$(wc -l < "$FIRST_ACKS")
found=$(sqlite3 "$db" 'pragma integrity_check' 2>&1)
if [ "$found" != ok ]; then echo "corrupt: $found" | head -n 1; exit 2; fi
rows=$(sqlite3 "$db" 'select count(*) from t' 2>/dev/null || echo 0)
if [ "$rows" -lt "$promised" ]; then echo "lost: an acknowledged row"; exit 1; fi
