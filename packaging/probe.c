// Asks the driver for eight pieces of 256 MiB and prints how many it was given: packaging/try, where there is no Python.
#include <stddef.h>
#include <stdio.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);

int main(void) {
    void *context;
    unsigned long long block;
    int pieces = 0;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    while (pieces < 8 && cuMemAlloc_v2(&block, (size_t)256 << 20) == 0) ++pieces;
    printf("trained with %d of 8 pieces\n", pieces);
    return 0;
}
