# Git: two commits in a repository with one. Argument: a value of core.fsync, or default.
set -e
cd "$FIRST_WORK_DIR/repository"
export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z' HOME=/nonexistent
fsync=${1#default}
for number in 1 2; do
    echo "$number" > file
    git ${fsync:+-c core.fsync="$fsync"} add file
    git ${fsync:+-c core.fsync="$fsync"} commit -q -m "$number"
    echo "saved $number"
done
