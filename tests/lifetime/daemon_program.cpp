// Becomes a daemon as textbooks say: forks, leaves its session, forks again, closes every descriptor, and opens its own
// from 0 on. Arguments: "before" or "after", which is when it first uses CUDA, and the file that it writes. With
// "stays" it closes the descriptors from 3 on, forks once, and exits with the child's errno.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "abi/cuda_abi.h"

namespace {

bool use_cuda() {
    CUcontext context = nullptr;
    CUdeviceptr block = 0;
    return cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
           cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc_v2(&block, 4 << 20) == CUDA_SUCCESS;
}

}  // namespace

int main(int /*argc*/, char **argv) {
    const bool before = std::strcmp(argv[1], "before") == 0;
    const std::string file = argv[2], aside = file + ".writing";
    const bool stays = std::strcmp(argv[1], "stays") == 0;
    if ((before || stays) && !use_cuda()) return 2;
    if (!stays) {
        if (fork() != 0) std::exit(0);
        setsid();
        if (fork() != 0) std::exit(0);
    }
    for (int fd = stays ? 3 : 0; fd < 256; ++fd) close(fd);
    errno = 77;
    const pid_t child = fork();  // with no descriptor open
    if (child == 0) _exit(errno);
    if (stays) {  // it closed curb's descriptors before the fork
        int status = 0;
        waitpid(child, &status, 0);
        return WEXITSTATUS(status);
    }
    if (open(aside.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600) != 0 || dup(0) != 1 || dup(0) != 2) _exit(3);
    const CUresult first = before ? cuInit(0) : use_cuda() ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    int status = 0;
    waitpid(child, &status, 0);
    const std::string text = "pid " + std::to_string(getpid()) + " result " + std::to_string(first) +
                             " errno after fork " + std::to_string(WEXITSTATUS(status)) + "\n";
    if (write(0, text.data(), text.size()) < 0) _exit(4);
    usleep(20'000);  // time for anything else to write there
    std::rename(aside.c_str(), file.c_str());
    std::exit(0);
}
