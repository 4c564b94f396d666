# Vim: a file is changed and written. Argument: a Vim command to run first.
cd "$FIRST_WORK_DIR"
vim -u NONE -N -n -es -c "$1" -c 'normal! ggcGnew text of the file' -c 'wq!' file </dev/null >/dev/null 2>&1
echo saved
