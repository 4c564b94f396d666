# A repository with one commit, in $GALLERY_TMP/git.
set -e
rm -rf "$GALLERY_TMP/git"
mkdir -p "$GALLERY_TMP/git/repository"
cd "$GALLERY_TMP/git/repository"
export HOME=/nonexistent
git init -q -b main .
git config user.name a
git config user.email a@example.org
git config maintenance.auto false
git config gc.auto 0
echo 0 > file
git add file
git commit -q -m 0
