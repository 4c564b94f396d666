# dpkg: a package is installed into a root of its own. Argument: an option, or none.
set -e
root=$FIRST_WORK_DIR
dpkg --root="$root" --force-not-root --force-script-chrootless --log=/dev/null ${1:+"$1"} -i "$GALLERY_TMP/sample.deb" >/dev/null 2>&1
echo installed
