// Reads a number from each line of stdin, allocates that many pieces of 256 MiB of the GPU, and prints how many it got.
#include <stdio.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);

int main(void) {
    void *context;
    unsigned long long block;
    int wanted;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    while (scanf("%d", &wanted) == 1) {
        int got = 0;
        while (got < wanted && cuMemAlloc_v2(&block, (size_t)256 << 20) == 0) ++got;
        printf("%d\n", got);
        fflush(stdout);
    }
    return 0;
}
