# Exits with 1 if an acknowledged commit is gone, with 2 if the repository is damaged.
export HOME=/nonexistent
cd "$FIRST_WORK_DIR/repository" || { echo 'corrupt: no repository'; exit 2; }
promised=$(wc -l < "$FIRST_ACKS")
count=$(git rev-list --count HEAD 2>/dev/null) || { echo 'corrupt: HEAD cannot be read'; exit 2; }
git fsck --full >/dev/null 2>&1 || { echo 'corrupt: git fsck'; exit 2; }
if [ "$count" -le "$promised" ]; then echo 'lost: an acknowledged commit'; exit 1; fi
