/* What `save` promised must be there: the last acknowledged round or a later one, whole. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    int promised = -1;
    char line[100];
    FILE *acks = fopen(getenv("FIRST_ACKS"), "r");
    while (acks && fgets(line, sizeof line, acks)) promised = line[0] == 's' ? atoi(line + 6) : promised;
    if (chdir(getenv("FIRST_WORK_DIR"))) return 2;
    FILE *map = fopen("map", "r");
    if (!map) {
        if (promised < 0) return 0;
        printf("round %d is lost\n", promised);
        return 1;
    }
    char bytes[5001];
    size_t size = fread(bytes, 1, sizeof bytes, map);
    for (size_t at = 0; at < size; at++)
        if (bytes[at] != bytes[0] || !bytes[at]) size = 0;
    if (size != 5000) {
        printf("map is torn\n");
        return 1;
    }
    if (bytes[0] - '0' < promised) {
        printf("round %d is lost, map is of round %c\n", promised, bytes[0]);
        return 1;
    }
    return 0;
}
