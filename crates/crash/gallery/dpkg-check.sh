# Exits with 1 if an installed package is gone, with 2 if its files are damaged or dpkg cannot go on.
root=$FIRST_WORK_DIR
status=$(dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${db:Status-Status}' sample 2>/dev/null)
if [ "$status" = installed ] && ! seq 1 2000 | cmp -s - "$root/opt/data"; then echo 'corrupt: installed, and its file is not whole'; exit 2; fi
if [ -s "$FIRST_ACKS" ] && [ "$status" != installed ]; then echo 'lost: the installed package'; exit 1; fi
if ! dpkg --root="$root" --force-not-root --force-script-chrootless --log=/dev/null -i "$GALLERY_TMP/sample.deb" >/dev/null 2>&1; then echo 'corrupt: dpkg cannot install it again'; exit 2; fi
