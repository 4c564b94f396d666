# Exits with 1 if an acknowledged change is gone, with 2 if neither text is there.
cd "$FIRST_WORK_DIR"
text=$(cat file 2>/dev/null | tr -d '\000'); backup=$(cat file~ 2>/dev/null | tr -d '\000')
case "$text" in 'new text of the file') exit 0 ;; esac
if [ -s "$FIRST_ACKS" ]; then echo 'lost: the acknowledged text'; exit 1; fi
case "$text$backup" in *'old text'*) exit 0 ;; esac
echo 'corrupt: neither the old nor the new text is there'; exit 2
