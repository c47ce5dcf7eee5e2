// Moves a child process out to host memory and back (cuCheckpointProcess*). The calls are looked up by hand: a driver
// before 570 lacks them, and then there is nothing to check.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "contract.hpp"

using namespace contract;

namespace {

constexpr int kIn = 100, kOut = 101;  // of the child; higher than what is open here

#define CHECKPOINT_CALL(name)                                                                        \
    CUresult name(int pid, auto *arguments) {                                                        \
        const auto call = reinterpret_cast<decltype(&::cuCheckpointProcess##name)>(                  \
            ::dlsym(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "cuCheckpointProcess" #name)); \
        return call ? call(pid, arguments) : CUDA_ERROR_NOT_FOUND;                                   \
    }
CHECKPOINT_CALL(GetState)
CHECKPOINT_CALL(Lock)
CHECKPOINT_CALL(Checkpoint)
CHECKPOINT_CALL(Restore)
CHECKPOINT_CALL(Unlock)

CUresult lock(int pid, unsigned milliseconds = 10'000) {
    CUcheckpointLockArgs arguments{};
    arguments.timeoutMs = milliseconds;
    return Lock(pid, &arguments);
}
CUresult checkpoint(int pid) {
    CUcheckpointCheckpointArgs arguments{};
    return Checkpoint(pid, &arguments);
}
CUresult restore(int pid) {
    CUcheckpointRestoreArgs arguments{};
    return Restore(pid, &arguments);
}
CUresult unlock(int pid) {
    CUcheckpointUnlockArgs arguments{};
    return Unlock(pid, &arguments);
}
int state_of(int pid) {
    CUprocessState state{};
    REQUIRE(GetState(pid, &state) == CUDA_SUCCESS);
    return state;
}

bool here() {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    CUprocessState state{};
    if (GetState(::getpid(), &state) != CUDA_ERROR_NOT_FOUND) return true;
    skip("the driver lacks cuCheckpointProcess*");
    return false;
}

// A process with a context and some memory, which answers a letter with a letter.
class Child {
  public:
    Child() {
        int in[2], out[2];
        REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
        REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
        posix_spawn_file_actions_t files;
        ::posix_spawn_file_actions_init(&files);
        ::posix_spawn_file_actions_adddup2(&files, in[0], kIn);
        ::posix_spawn_file_actions_adddup2(&files, out[1], kOut);
        std::string program = "/proc/self/exe", what = "the child: runs commands";
        char *arguments[] = {program.data(), what.data(), nullptr};
        REQUIRE(::posix_spawn(&pid_, "/proc/self/exe", &files, nullptr, arguments, environ) == 0);
        ::posix_spawn_file_actions_destroy(&files);
        ::close(in[0]);
        ::close(out[1]);
        in_ = in[1];
        out_ = out[0];
        REQUIRE(says() == 'r');
    }
    ~Child() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
        ::close(in_);
        ::close(out_);
    }
    Child(const Child &) = delete;
    Child &operator=(const Child &) = delete;

    [[nodiscard]] int pid() const { return pid_; }
    void tell(char letter) const { REQUIRE(::write(in_, &letter, 1) == 1); }
    // Returns 0 if nothing came in time.
    [[nodiscard]] char says(int milliseconds = 30'000) const {
        pollfd pipe{out_, POLLIN, 0};
        char letter = 0;
        return ::poll(&pipe, 1, milliseconds) == 1 && ::read(out_, &letter, 1) == 1 ? letter : '\0';
    }
    // Waits for its end. Returns the signal that ended it, else 0.
    [[nodiscard]] int ends_by() const {
        siginfo_t info{};
        REQUIRE(::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) == 0);
        return info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED ? info.si_status : 0;
    }
    [[nodiscard]] char answers(char letter) const {
        tell(letter);
        return says();
    }

  private:
    pid_t pid_ = 0;
    int in_ = -1, out_ = -1;
};

void say(char letter) { REQUIRE(::write(kOut, &letter, 1) == 1); }

constexpr size_t kBlock = 512 * kMiB;

// The child and the process that moves it share a simulated machine.
#define ON_ONE_MACHINE(name) IN_A_PROCESS(name, "[checkpoint]", State().variable())

}  // namespace

TEST_CASE("the child: runs commands", "[.child]") {
    const Gpu gpu;
    CUdeviceptr managed = 0;
    const CUdeviceptr block = allocate(kBlock);
    REQUIRE(cuMemsetD32_v2(block, 0xC0FFEE, kBlock / 4) == CUDA_SUCCESS);
    CUevent event = nullptr;
    REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
    say('r');
    for (char letter = 0; ::read(kIn, &letter, 1) == 1;) {
        unsigned first = 0, last = 0;
        switch (letter) {
            case 'c':  // checks what it has
                CHECK(cuMemcpyDtoH_v2(&first, block, 4) == CUDA_SUCCESS);
                CHECK(cuMemcpyDtoH_v2(&last, block + kBlock - 4, 4) == CUDA_SUCCESS);
                say(first == 0xC0FFEE && last == 0xC0FFEE ? 'y' : 'n');
                break;
            case 'a': {  // calls that the driver answers at once, and one that fails
                CUcontext current = nullptr;
                CUdeviceptr start = 0;
                CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
                CHECK(current == gpu.context);
                CHECK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, block) == CUDA_SUCCESS);
                size_t free = 0, total = 0;
                say(cuMemGetInfo_v2(&free, &total) == CUDA_ERROR_OPERATING_SYSTEM ? 'y' : 'n');
                break;
            }
            case 'q':
                cuStreamQuery(nullptr);
                say('y');
                break;
            case 'e':
                cuEventQuery(event);
                say('y');
                break;
            case 'w':
                cuStreamSynchronize(nullptr);
                say('y');
                break;
            case 'x':
                cuCtxSynchronize();
                say('y');
                break;
            case 'm':
                CHECK(cuMemAllocManaged(&managed, 64 * kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
                say('y');
                break;
            case 's':  // submits work that ends with the next letter
                CHECK(cuLaunchHostFunc(
                          nullptr,
                          [](void *) {
                              char end = 0;
                              say('s');
                              while (::read(kIn, &end, 1) == 1 && end != 'e') {
                              }
                          },
                          nullptr) == CUDA_SUCCESS);
                CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
                say('y');
                break;
            default: return;
        }
    }
}

ON_ONE_MACHINE("a process is moved out to host memory and back, and its calls wait meanwhile") {
    if (!here()) return;
    const Child child;
    const int64_t before = held_by(child.pid());
    CHECK(before > static_cast<int64_t>(kBlock));
    CHECK(state_of(child.pid()) == CU_PROCESS_STATE_RUNNING);
    REQUIRE(lock(child.pid()) == CUDA_SUCCESS);
    CHECK(state_of(child.pid()) == CU_PROCESS_STATE_LOCKED);
    CHECK(held_by(child.pid()) == before);
    child.tell('c');
    CHECK(child.says(200) == 0);  // its calls wait
    REQUIRE(checkpoint(child.pid()) == CUDA_SUCCESS);
    CHECK(state_of(child.pid()) == CU_PROCESS_STATE_CHECKPOINTED);
    CHECK(held_by(child.pid()) <= 16 * kMiB);
    CHECK(child.says(200) == 0);
    REQUIRE(restore(child.pid()) == CUDA_SUCCESS);
    CHECK(state_of(child.pid()) == CU_PROCESS_STATE_LOCKED);
    CHECK(child.says(200) == 0);
    REQUIRE(unlock(child.pid()) == CUDA_SUCCESS);
    CHECK(state_of(child.pid()) == CU_PROCESS_STATE_RUNNING);
    CHECK(child.says() == 'y');
    CHECK(std::abs(held_by(child.pid()) - before) <= 8 * kMiB);
}

ON_ONE_MACHINE("of a process that is out some calls fail, some are answered, and some end it") {
    if (!here()) return;
    {
        const Child child;
        REQUIRE(lock(child.pid()) == CUDA_SUCCESS);
        REQUIRE(checkpoint(child.pid()) == CUDA_SUCCESS);
        CHECK(child.answers('a') == 'y');
        REQUIRE(restore(child.pid()) == CUDA_SUCCESS);
        REQUIRE(unlock(child.pid()) == CUDA_SUCCESS);
        CHECK(child.answers('c') == 'y');
    }
    for (const char call : {'q', 'e', 'w', 'x'}) {
        CAPTURE(call);
        const Child child;
        REQUIRE(lock(child.pid()) == CUDA_SUCCESS);
        REQUIRE(checkpoint(child.pid()) == CUDA_SUCCESS);
        child.tell(call);
        CHECK(child.ends_by() == SIGSEGV);
    }
}

ON_ONE_MACHINE("each step of a checkpoint needs its own state; out of order it changes nothing") {
    if (!here()) return;
    const Child child;
    CHECK(checkpoint(child.pid()) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(restore(child.pid()) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(unlock(child.pid()) == CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(lock(child.pid()) == CUDA_SUCCESS);
    CHECK(lock(child.pid(), 100) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(restore(child.pid()) == CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(unlock(child.pid()) == CUDA_SUCCESS);
    CHECK(child.answers('c') == 'y');
    REQUIRE(lock(child.pid()) == CUDA_SUCCESS);
    REQUIRE(checkpoint(child.pid()) == CUDA_SUCCESS);
    CHECK(checkpoint(child.pid()) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(unlock(child.pid()) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(lock(child.pid(), 100) == CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(restore(child.pid()) == CUDA_SUCCESS);
    REQUIRE(unlock(child.pid()) == CUDA_SUCCESS);
    CHECK(child.answers('c') == 'y');
}

ON_ONE_MACHINE("a lock waits for submitted work, and leaves the process running if it times out") {
    if (!here()) return;
    const Child child;
    REQUIRE(child.answers('s') == 's');
    CHECK(lock(child.pid(), 200) == CUDA_ERROR_NOT_READY);
    CHECK(state_of(child.pid()) == CU_PROCESS_STATE_RUNNING);
    CHECK(child.answers('e') == 'y');
    CHECK(child.answers('c') == 'y');
    CHECK(lock(child.pid()) == CUDA_SUCCESS);
    CHECK(unlock(child.pid()) == CUDA_SUCCESS);
}

ON_ONE_MACHINE("managed memory is not moved, and the process can be unlocked") {
    if (!here()) return;
    const Child child;
    REQUIRE(child.answers('m') == 'y');
    REQUIRE(lock(child.pid()) == CUDA_SUCCESS);
    CHECK(checkpoint(child.pid()) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(state_of(child.pid()) == CU_PROCESS_STATE_LOCKED);
    CHECK(unlock(child.pid()) == CUDA_SUCCESS);
    CHECK(child.answers('c') == 'y');
}

ON_ONE_MACHINE("processes that do not exist, or do not use CUDA, have no state") {
    if (!here()) return;
    CUprocessState state{};
    CHECK(GetState(4'999'999, &state) == CUDA_ERROR_OPERATING_SYSTEM);
    CHECK(GetState(1, &state) == CUDA_ERROR_NOT_INITIALIZED);  // exists, without CUDA
    CHECK(lock(4'999'999, 100) == CUDA_ERROR_OPERATING_SYSTEM);
    CHECK(checkpoint(4'999'999) == CUDA_ERROR_OPERATING_SYSTEM);
    CHECK(restore(4'999'999) == CUDA_ERROR_OPERATING_SYSTEM);
    CHECK(unlock(4'999'999) == CUDA_ERROR_OPERATING_SYSTEM);
}
