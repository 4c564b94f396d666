/* Saves a file by writing another and renaming it. `save none|file|both ROUNDS`: what is synced. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    (void)argc;
    if (chdir(getenv("FIRST_WORK_DIR"))) return 1;
    for (int round = 0; round < atoi(argv[2]); round++) {
        char bytes[5000];
        memset(bytes, '0' + round, sizeof bytes);
        int file = open("map.tmp", O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (file < 0 || write(file, bytes, sizeof bytes) != sizeof bytes) return 1;
        if (strcmp(argv[1], "none") && fsync(file)) return 1;
        close(file);
        if (rename("map.tmp", "map")) return 1;
        if (!strcmp(argv[1], "both")) {
            int directory = open(".", O_RDONLY);
            if (fsync(directory)) return 1;
            close(directory);
        }
        printf("saved %d\n", round);
        fflush(stdout);
    }
    return 0;
}
