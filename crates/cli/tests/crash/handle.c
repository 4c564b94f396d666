/* Saves a file twice by writing another and renaming it; everything is synced. `handle HOW` says what
   it does with calls that fail: stop, ignore, retry or rewrite after a failed sync, ignore a short
   write, skip the round in silence, or tell of it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *how;
static char bytes[5000];

static int is(const char *name) { return !strcmp(how, name); }

static int write_all(int file) {
    size_t done = 0;
    while (done < sizeof bytes) {
        ssize_t count = write(file, bytes + done, sizeof bytes - done);
        if (count < 0) return -1;
        if (is("short")) return 0;
        done += count;
    }
    return 0;
}

static int sync_file(int file) {
    if (!fsync(file) || is("ignore")) return 0;
    if (is("retry")) return fsync(file);
    if (is("rewrite")) {
        lseek(file, 0, SEEK_SET);
        return write_all(file) ? -1 : fsync(file);
    }
    return -1;
}

static int save(int directory, int round) {
    memset(bytes, '0' + round, sizeof bytes);
    int file = open("map.tmp", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0) return -1;
    if (write_all(file) || sync_file(file)) {
        close(file);
        return -1;
    }
    if (close(file) || rename("map.tmp", "map")) return -1;
    return fsync(directory);
}

int main(int argc, char **argv) {
    (void)argc;
    how = argv[1];
    if (chdir(getenv("FIRST_WORK_DIR"))) return 1;
    int directory = open(".", O_RDONLY);
    if (directory < 0) return 1;
    for (int round = 0; round < 2; round++) {
        int failed = save(directory, round);
        if (failed && is("skip")) continue;
        if (failed && !is("tell")) return 1;
        printf("%s %d\n", failed ? "failed" : "saved", round);
        fflush(stdout);
    }
    return 0;
}
