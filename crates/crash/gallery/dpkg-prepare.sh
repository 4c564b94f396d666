# Makes a package, and a root for it in $GALLERY_TMP/root.
set -e
mkdir -p "$GALLERY_TMP/sample/DEBIAN" "$GALLERY_TMP/sample/opt" "$GALLERY_TMP/root/var/lib/dpkg/info" "$GALLERY_TMP/root/var/lib/dpkg/updates" "$GALLERY_TMP/root/var/lib/dpkg/triggers"
printf 'Package: sample\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: a sample\n' > "$GALLERY_TMP/sample/DEBIAN/control"
seq 1 2000 > "$GALLERY_TMP/sample/opt/data"
touch "$GALLERY_TMP/root/var/lib/dpkg/status" "$GALLERY_TMP/root/var/lib/dpkg/available"
dpkg-deb -Zgzip --root-owner-group -b "$GALLERY_TMP/sample" "$GALLERY_TMP/sample.deb" >/dev/null
