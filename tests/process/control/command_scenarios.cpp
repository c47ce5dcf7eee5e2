// A program that reads commands from its standard input, one a line, and answers each with one line.

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "abi/nvml_abi.h"
#include "families.hpp"
#include "mapped.hpp"
#include "memory.hpp"

using namespace scenario;

namespace {

CUcontext main_context = nullptr;

std::string answer_of(CUresult result) {
    return result == CUDA_SUCCESS ? "ok" : result == CUDA_ERROR_OUT_OF_MEMORY ? "refused" : "error";
}

// ---- memory that it takes and gives back ----

std::vector<CUdeviceptr> blocks;
constexpr std::uint64_t kBlock = 64 * MiB;

std::string take_one(std::uint64_t bytes) {
    CUdeviceptr block = 0;
    const CUresult result = cuMemAlloc_v2(&block, bytes);
    if (result == CUDA_SUCCESS) blocks.push_back(block);
    return answer_of(result);
}
// Takes blocks until one is refused. Returns the bytes held.
std::string fill_up() {
    while (take_one(kBlock) == "ok") {
    }
    return std::to_string(curb_sim_held(0));
}
std::string drop_all() {
    for (const CUdeviceptr block : blocks) MUST(cuMemFree_v2(block));
    blocks.clear();
    return "ok";
}
// The same in blocks of their own.
std::vector<CUdeviceptr> filling;
std::string fill_again() {
    CUdeviceptr block = 0;
    while (cuMemAlloc_v2(&block, kBlock) == CUDA_SUCCESS) filling.push_back(block);
    return "filled";
}
std::string empty_again() {
    for (const CUdeviceptr block : filling) MUST(cuMemFree_v2(block));
    filling.clear();
    return "emptied";
}
std::string take_and_free_much() {
    for (int i = 0; i < 2000; ++i) MUST(cuMemFree_v2(take(2 * MiB)));
    return "ok";
}
std::string take_managed(std::uint64_t bytes) {
    CUdeviceptr block = 0;
    return answer_of(cuMemAllocManaged(&block, bytes, CU_MEM_ATTACH_GLOBAL));
}

std::string leave_in_the_pool() {
    MUST(cuMemFreeAsync(take_from_keeping_pool(256 * MiB), nullptr));
    return "ok";
}
std::string leave_in_pools() {
    for (const std::uint64_t bytes : {64 * MiB, 256 * MiB, 128 * MiB}) {
        CUmemoryPool pool = make_pool();
        CUdeviceptr block = 0;
        keep_everything(pool);
        MUST(cuMemAllocFromPoolAsync(&block, bytes, pool, nullptr));
        MUST(cuMemFreeAsync(block, nullptr));
    }
    return "ok";
}

std::string probe() {
    CUdeviceptr block = 0;
    for (int i = 0; i < 100; ++i) EXPECT_EQ(cuMemAlloc_v2(&block, 1024 * GiB), CUDA_ERROR_OUT_OF_MEMORY);
    return "ok";
}

// Makes a request in a thread of its own, where it may wait for memory.
std::atomic<int> asked{0};
std::string ask() {
    asked = 1;
    std::thread([] {
        MUST(cuCtxSetCurrent(main_context));
        CUdeviceptr block = 0;
        asked = cuMemAlloc_v2(&block, kBlock) == CUDA_SUCCESS ? 2 : 3;
    }).detach();
    return "ok";
}
std::string has_been_answered() { return asked == 1 ? "waits" : asked == 2 ? "granted" : "refused"; }

// ---- memory whose content it knows ----

constexpr std::uint64_t kPage = 4 * KiB, kApart = 16 * MiB;

struct Marked {
    CUdeviceptr start;
    std::uint64_t bytes;
};
std::vector<Marked> all_marked;

// Writes a page in every 16 MiB, with its offset.
void mark(const Marked &block) {
    for (std::uint64_t at = 0; at + kPage <= block.bytes; at += kApart)
        MUST(cuMemsetD32_v2(block.start + at, static_cast<unsigned>(at >> 20) + 7, kPage / 4));
}
bool is_as_marked(const Marked &block) {
    unsigned words[kPage / 4];
    for (std::uint64_t at = 0; at + kPage <= block.bytes; at += kApart) {
        MUST(cuMemcpyDtoH_v2(words, block.start + at, sizeof words));
        for (const unsigned word : words)
            if (word != static_cast<unsigned>(at >> 20) + 7) return false;
    }
    return true;
}
std::string hold(std::uint64_t bytes, int device) {
    MUST(cuDevicePrimaryCtxRetain(&main_context, device));
    MUST(cuCtxSetCurrent(main_context));
    Marked block{0, bytes};
    const CUresult result = cuMemAlloc_v2(&block.start, bytes);
    if (result != CUDA_SUCCESS) return answer_of(result);
    mark(block);
    all_marked.push_back(block);
    return "held";
}
std::string give_last() {
    MUST(cuMemFree_v2(all_marked.back().start));
    all_marked.pop_back();
    return "given";
}
std::string map(std::uint64_t bytes) {
    all_mapped().emplace_back(bytes / 2);
    return "mapped";
}
std::string change() {
    for (Mapped &one : all_mapped()) one.change();
    return "changed";
}
std::string check() {
    const bool is_right =
        std::all_of(all_marked.begin(), all_marked.end(), is_as_marked) &&
        std::all_of(all_mapped().begin(), all_mapped().end(), [](const Mapped &one) { return one.is_right(); });
    return is_right ? "right" : "wrong";
}

// Checks it in an exit handler. A wrong word is the exit status 9.
std::string check_at_exit() {
    return std::atexit([] {
               if (check() != "right") _exit(9);
           }) == 0
               ? "ok"
               : "error";
}

// Checks the mapped memory on another thread, by a copy that stops in the middle.
std::future<bool> checking;
std::string begin_to_check() {
    const std::uint64_t before = curb_sim_calls("cuMemcpyDtoH_v2");
    curb_sim_hold_copies(1);
    checking = std::async(std::launch::async, [context = main_context] {
        MUST(cuCtxSetCurrent(context));
        return all_mapped().front().is_right_at_once();
    });
    while (curb_sim_calls("cuMemcpyDtoH_v2") == before) std::this_thread::yield();
    return "ok";
}
std::string end_checking() {
    curb_sim_hold_copies(0);
    return checking.get() ? "right" : "wrong";
}

// ---- work ----

// Starts four threads that allocate and free memory without a pause.
std::string work_on() {
    for (int i = 0; i < 4; ++i)
        std::thread([] {
            MUST(cuCtxSetCurrent(main_context));
            for (;;) {
                CUdeviceptr block = 0;
                if (cuMemAlloc_v2(&block, 4 * MiB) == CUDA_SUCCESS) cuMemFree_v2(block);
            }
        }).detach();
    return "ok";
}

// Launches a kernel of 3 s, which every synchronisation waits for.
std::string compute() {
    MUST(launch(kernel_of(load_module("curb-sim-module\nkernel slow us=3000000\n"), "slow")));
    return "ok";
}

// Submits work that lasts until the next line of input. Waits for it without a call of the driver.
std::string submit() {
    std::promise<void> ended;
    const auto wait_for_a_line = [](void *to_say) {
        std::string line;
        std::getline(std::cin, line);
        static_cast<std::promise<void> *>(to_say)->set_value();
    };
    MUST(cuLaunchHostFunc(nullptr, wait_for_a_line, &ended));
    std::cout << "submitting" << std::endl;
    ended.get_future().wait();
    return "ended";
}

// A call in another thread. The driver's `function`, which it calls, has its answer and does not return yet.
std::future<CUresult> held_call;
std::string begin_held(const char *function, CUresult (*call)()) {
    const std::uint64_t before = curb_sim_calls(function);
    curb_sim_hold_return(function);
    held_call = std::async(std::launch::async, [call, context = main_context] {
        MUST(cuCtxSetCurrent(context));
        return call();
    });
    while (curb_sim_calls(function) == before) std::this_thread::yield();
    return "ok";
}
std::string begin_to_ask_for_memory() {
    return begin_held("cuMemGetInfo_v2", [] {
        std::size_t free = 0, total = 0;
        return cuMemGetInfo_v2(&free, &total);
    });
}
std::string begin_to_allocate() {
    return begin_held("cuDeviceGetAttribute", [] {
        CUdeviceptr block = 0;
        return cuMemAlloc_v2(&block, 4 * MiB);
    });
}
std::string end_held_call() {
    curb_sim_hold_return(nullptr);
    return answer_of(held_call.get());
}

// The driver is to call a function that needs the mutex.
std::mutex needed;
std::string lock_before_submitting() {
    needed.lock();
    MUST(cuLaunchHostFunc(
        nullptr, [](void *) { const std::scoped_lock lock(needed); }, nullptr));
    return "ok";
}
std::string call_and_unlock() {
    CUdeviceptr block = 0;
    const CUresult result = cuMemAlloc_v2(&block, MiB);
    needed.unlock();
    MUST(cuCtxSynchronize());
    return answer_of(result);
}

// ---- calls of the driver in every way to reach it, each in a thread of its own ----

CUevent used_event = nullptr;
const CUdeviceptr *used_block = nullptr;

struct OneCall {
    const char *name;
    void *linked;
    CUresult (*make)(void *function);
};
#define ONE_CALL(name, ...)                                                                         \
    OneCall {                                                                                       \
#name, reinterpret_cast < void *>(&name),                                                   \
            [](void *function) { return reinterpret_cast<decltype(&name)>(function)(__VA_ARGS__); } \
    }
std::vector<OneCall> all_calls() {
    static std::size_t free = 0, total = 0;
    static CUdevice device = 0;
    static CUcontext current = nullptr;
    static unsigned word = 0;
    return {ONE_CALL(cuCtxSynchronize),
            ONE_CALL(cuStreamSynchronize, nullptr),
            ONE_CALL(cuStreamQuery, nullptr),
            ONE_CALL(cuEventQuery, used_event),
            ONE_CALL(cuEventSynchronize, used_event),
            ONE_CALL(cuMemGetInfo_v2, &free, &total),
            ONE_CALL(cuMemcpyDtoH_v2, &word, *used_block, sizeof word),
            ONE_CALL(cuMemsetD32_v2, *used_block, 7, 1),
            ONE_CALL(cuEventRecord, used_event, nullptr),
            ONE_CALL(cuCtxGetDevice, &device),
            ONE_CALL(cuCtxGetCurrent, &current)};
}
// `way`: 0 linked, 1 dlsym, 2 cuGetProcAddress.
void *reached(const OneCall &call, int way) {
    if (way == 0) return call.linked;
    if (way == 1) return dlsym(dlopen("libcuda.so.1", RTLD_NOW), call.name);
    const std::string name = call.name;
    void *found = nullptr;
    CUdriverProcAddressQueryResult status{};
    MUST(cuGetProcAddress_v2(name.substr(0, name.find("_v2")).c_str(), &found, 12000, 0, &status));
    return found;
}
std::atomic<bool> calling{false}, calling_on{false};
std::atomic<int> returned{0}, wrong{0};
std::vector<std::thread> callers;
// Starts the threads. With `again` each calls on and on, until the next "returned".
std::string prepare_calls(int way, bool again) {
    hold(kApart, 0);
    static const CUdeviceptr block = all_marked.back().start;
    used_block = &block;
    MUST(cuEventCreate(&used_event, 0));
    calling = again;
    calling_on = again;
    returned = wrong = 0;
    for (const OneCall &call : all_calls()) {
        void *function = reached(call, way);
        callers.emplace_back([=, context = main_context] {  // the main thread may set main_context again
            MUST(cuCtxSetCurrent(context));
            while (!calling) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            do {
                const CUresult result = call.make(function);
                wrong += result != CUDA_SUCCESS;
            } while (calling_on);
            ++returned;
        });
    }
    return "ok";
}
// Lets the threads call. Returns how many calls have returned 150 ms after the first one: cuCtxGetCurrent never waits.
std::string begin_calls() {
    calling = true;
    EXPECT(within(std::chrono::seconds(60), [] { return returned != 0; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    return std::to_string(returned);
}
std::string end_calls() {
    calling_on = false;
    for (std::thread &thread : callers) thread.join();
    callers.clear();
    return std::to_string(returned) + " returned, " + std::to_string(wrong) + " wrong";
}

// ---- descriptors ----

// Closes all descriptors, as daemons do, then opens the program's own under the same numbers: sockets with data to
// read, or files.
struct Pair {
    int ends[2];
};
std::vector<Pair> sockets;
std::vector<int> files;
std::string close_for_sockets() {
    close_range(3, ~0U, 0);
    for (int i = 0; i < 20; ++i) {
        Pair pair{};
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair.ends) != 0 || write(pair.ends[1], "theirs", 6) != 6)
            return "no sockets";
        sockets.push_back(pair);
    }
    return "ok";
}
std::string close_for_files() {
    close_range(3, ~0U, 0);
    for (int i = 0; i < 40; ++i) files.push_back(memfd_create("theirs", 0));
    return "ok";
}
// Checks that curb has not touched them.
std::string look_at_them() {
    for (const Pair &pair : sockets) {
        char text[8] = {};
        if (recv(pair.ends[0], text, sizeof text, MSG_DONTWAIT) != 6 || std::strcmp(text, "theirs") != 0 ||
            recv(pair.ends[1], text, sizeof text, MSG_DONTWAIT) >= 0)
            return "disturbed";
    }
    for (const int file : files)
        if (lseek(file, 0, SEEK_END) != 0) return "disturbed";
    return "untouched";
}

int ends[2] = {-1, -1};
std::string open_a_pipe() { return pipe2(ends, O_CLOEXEC) == 0 ? "ok" : "no pipe"; }
// Closes the pipe's writing end, and checks that its reader then sees the end: nothing else keeps that open.
std::string close_the_pipe() {
    close(ends[1]);
    pollfd readable{ends[0], POLLIN, 0};
    char none = 0;
    if (poll(&readable, 1, 5000) != 1) return "somebody keeps it open";
    return read(ends[0], &none, 1) == 0 ? "ok" : "something was written to it";
}

// ---- children and successors ----

std::string fork_child_that_allocates() {
    const pid_t child = fork();
    if (child == 0) {
        CUdeviceptr none = 0;
        for (int i = 0; i < 100'000; ++i) cuMemAlloc_v2(&none, MiB);
        std::exit(0);
    }
    const int status = status_of(child);
    return status == 0 ? "ok" : "it ended with " + std::to_string(status);
}

std::string fork_child_that_ends() {
    const pid_t child = fork();
    if (child == 0) std::exit(cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    return status_of(child) == 0 ? "ok" : "it ended badly";
}

// Forks a child that keeps what it inherits until the test kills it. Returns its PID.
std::string fork_child_that_stays() {
    int ready[2];
    if (pipe(ready) != 0) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
        for (const int end : {0, 1, 2, ready[0], ready[1]}) close(end);
        for (;;) pause();
    }
    close(ready[1]);
    char none = 0;
    if (read(ready[0], &none, 1) != 0) return "no child";
    close(ready[0]);
    return std::to_string(child);
}

// Has SIGCHLD counted from here on; `reaps`: by a handler that also waits for all children.
std::atomic<int> child_signals{0};
std::string watch_children(bool reaps) {
    struct sigaction action {};
    action.sa_flags = SA_RESTART;
    action.sa_handler = [](int) { ++child_signals; };
    if (reaps)
        action.sa_handler = [](int) {
            while (waitpid(-1, nullptr, WNOHANG | __WALL) > 0) {
            }
        };
    return sigaction(SIGCHLD, &action, nullptr) == 0 ? "ok" : "error";
}
// Returns what wait() says, and how often SIGCHLD has come.
std::string seen_of_children() {
    const pid_t child = waitpid(-1, nullptr, WNOHANG);
    const std::string found = child < 0 && errno == ECHILD ? "no child" : "child " + std::to_string(child);
    return found + ", " + std::to_string(child_signals) + " signals";
}
std::string become_subreaper() { return prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 ? "ok" : "error"; }

// ---- what programs do to themselves ----

// Writes over the variables that the program got, as libraries do that set a process title. It goes on with copies.
std::string set_title() {
    static std::vector<char *> copies;
    const std::size_t count =
        static_cast<std::size_t>(std::distance(environ, std::find(environ, environ + 10'000, nullptr)));
    for (std::size_t i = 0; i < count; ++i) {
        copies.push_back(strdup(environ[i]));
        std::memset(environ[i], 'x', std::strlen(environ[i]));
    }
    copies.push_back(nullptr);
    environ = copies.data();
    return "ok";
}
// Forbids all threads to send on sockets, as a sandbox may do after its start.
std::string forbid_sending() {
    sock_filter lines[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter{std::size(lines), lines};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "error";
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0 ? "ok" : "error";
}

// ---- what keeps a process in its GPUs ----

std::string begin_capture() {
    return answer_of(cuStreamBeginCapture_v2(make_stream(), CU_STREAM_CAPTURE_MODE_RELAXED));
}
constexpr CUmemAllocationHandleType kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
struct Mapped {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr start;
    std::uint64_t bytes;
};
std::vector<Mapped> handles;
std::string next_line() {
    std::string line;
    std::getline(std::cin, line);
    return line;
}
// Opens a file of another process, "PID/FILE".
int open_file(std::string name) {
    name.replace(name.find('/'), 1, "/fd/");
    return open(("/proc/" + name).c_str(), O_RDWR | O_CLOEXEC);
}
template <class Bytes>
void read_bytes(std::istream &from, Bytes &to) {
    for (auto &byte : to) {
        int value = 0;
        from >> value;
        byte = static_cast<std::remove_reference_t<decltype(byte)>>(value);
    }
}
// The bytes of a handle as text, and back from the next line of input.
template <class Handle>
std::string text_of(const Handle &handle) {
    std::ostringstream out;
    for (const char byte : handle.reserved) out << static_cast<int>(static_cast<unsigned char>(byte)) << ' ';
    return out.str();
}
template <class Handle>
Handle read_handle() {
    Handle handle{};
    std::istringstream bytes(next_line());
    read_bytes(bytes, handle.reserved);
    return handle;
}
// Returns the handle of the block that it took last.
std::string export_block() {
    CUipcMemHandle handle{};
    MUST(cuIpcGetMemHandle(&handle, blocks.back()));
    return text_of(handle);
}
std::string open_block(decltype(&cuIpcOpenMemHandle_v2) open_handle_of_block) {
    CUdeviceptr block = 0;
    const CUresult result = open_handle_of_block(&block, read_handle<CUipcMemHandle>(), 1 /* lazily for peers */);
    blocks.push_back(block);
    return answer_of(result);
}
// Fills the block that it took or opened last; returns the value that fills it.
std::string write_block(std::uint64_t value) {
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
    MUST(cuMemGetAddressRange_v2(&start, &bytes, blocks.back()));
    return answer_of(cuMemsetD8_v2(start, static_cast<unsigned char>(value), bytes));
}
std::string read_block() {
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
    MUST(cuMemGetAddressRange_v2(&start, &bytes, blocks.back()));
    std::vector<unsigned char> all(bytes);
    MUST(cuMemcpyDtoH_v2(all.data(), start, bytes));
    const bool is_one = std::all_of(all.begin(), all.end(), [&](unsigned char byte) { return byte == all.front(); });
    return is_one ? std::to_string(int{all.front()}) : "mixed";
}
std::string compare_addresses() { return blocks.at(blocks.size() - 2) == blocks.back() ? "same" : "others"; }
// A fork child cannot use the driver, and gets the driver's answer.
std::string fork_child_that_exports() {
    const pid_t child = fork();
    CUipcMemHandle handle{};
    if (child == 0) std::exit(cuIpcGetMemHandle(&handle, blocks.back()) == CUDA_SUCCESS ? 1 : 0);
    return status_of(child) == 0 ? "ok" : "it got a handle";
}
// Asks about the block that it opened last what it would ask about one of its own.
std::string ask_about_block() {
    const CUdeviceptr block = blocks.back();
    CUcontext context = nullptr;
    std::uint64_t types = ~0ULL;
    CUmemGenericAllocationHandle handle = 0;
    CUipcMemHandle ipc{};
    const bool is_right =
        cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, block) == CUDA_SUCCESS &&
        context == main_context &&
        cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, block) == CUDA_SUCCESS && types == 0 &&
        cuMemRetainAllocationHandle(&handle, reinterpret_cast<void *>(block)) == CUDA_ERROR_INVALID_VALUE &&
        cuMemUnmap(block, 2 * MiB) == CUDA_ERROR_INVALID_VALUE && cuMemFree_v2(block) == CUDA_ERROR_INVALID_VALUE &&
        cuIpcGetMemHandle(&ipc, block) == CUDA_ERROR_INVALID_VALUE;
    return is_right ? "as of its own" : "wrong";
}
std::string reset_context() {
    blocks.clear();
    MUST(cuDevicePrimaryCtxReset_v2(0));
    return answer_of(cuDevicePrimaryCtxRetain(&main_context, 0));
}
CUevent shared_event = nullptr;
std::string export_event() {
    CUipcEventHandle handle{};
    MUST(cuEventCreate(&shared_event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    MUST(cuIpcGetEventHandle(&handle, shared_event));
    return text_of(handle);
}
std::string open_event() { return answer_of(cuIpcOpenEventHandle(&shared_event, read_handle<CUipcEventHandle>())); }
std::string destroy_event() { return answer_of(cuEventDestroy_v2(shared_event)); }
std::string close_block() {
    const CUdeviceptr block = blocks.back();
    blocks.pop_back();
    return answer_of(cuIpcCloseMemHandle(block));
}
// Memory behind a descriptor that stays open, "PID/FILE"; the importer opens it there, as programs do that send it.
std::string export_handle(std::uint64_t bytes) {
    const CUmemAllocationProp properties = on_device(0, kFile);
    CUmemGenericAllocationHandle handle = 0;
    int file = -1;
    const CUresult result = cuMemCreate(&handle, bytes, &properties, 0);
    if (result != CUDA_SUCCESS) return answer_of(result);
    handles.push_back({handle, 0, bytes});
    MUST(cuMemExportToShareableHandle(&file, handle, kFile, 0));
    return std::to_string(getpid()) + "/" + std::to_string(file);
}
std::string open_handle(std::uint64_t bytes) {
    const int file = open_file(next_line());
    Mapped one{0, 0, bytes};
    const CUresult result =
        cuMemImportFromShareableHandle(&one.handle, reinterpret_cast<void *>(static_cast<intptr_t>(file)), kFile);
    close(file);
    if (result != CUDA_SUCCESS) return answer_of(result);
    MUST(cuMemAddressReserve(&one.start, bytes, 0, 0, 0));
    MUST(cuMemMap(one.start, bytes, 0, one.handle, 0));
    handles.push_back(one);
    return "ok";
}
std::string close_handle() {
    const Mapped one = handles.back();
    handles.pop_back();
    if (one.start) MUST(cuMemUnmap(one.start, one.bytes));
    return answer_of(cuMemRelease(one.handle));
}
CUexternalMemory external_memory = nullptr;
std::string import_external() {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC description{};
    description.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    description.handle.fd = memfd_create("external", MFD_CLOEXEC);
    description.size = 2 * MiB;
    if (ftruncate(description.handle.fd, 2 * MiB) != 0) return "no file";
    return answer_of(cuImportExternalMemory(&external_memory, &description));
}
CUmemoryPool exported_pool = nullptr;
// Makes a pool whose memory others can open. Returns the descriptor.
int export_pool() {
    int file = -1;
    exported_pool = make_pool(pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0, kFile));
    MUST(cuMemPoolExportToShareableHandle(&file, exported_pool, kFile, 0));
    return file;
}
// A piece is a block of an exported pool: "PID/FILE" and the pointer.
CUdeviceptr piece = 0;
std::string export_piece(std::uint64_t bytes) {
    const int file = export_pool();
    CUmemPoolPtrExportData data{};
    const CUresult result = cuMemAllocFromPoolAsync(&piece, bytes, exported_pool, nullptr);
    if (result != CUDA_SUCCESS) return answer_of(result);
    MUST(cuStreamSynchronize(nullptr));
    MUST(cuMemPoolExportPointer(&data, piece));
    return std::to_string(getpid()) + "/" + std::to_string(file) + ' ' + text_of(data);
}
std::string open_piece() {
    std::istringstream words(next_line());
    std::string name;
    words >> name;
    const int file = open_file(name);
    MUST(cuMemPoolImportFromShareableHandle(&exported_pool, reinterpret_cast<void *>(static_cast<intptr_t>(file)),
                                            kFile, 0));
    close(file);
    CUmemPoolPtrExportData data{};
    read_bytes(words, data.reserved);
    return answer_of(cuMemPoolImportPointer(&piece, exported_pool, &data));
}
std::string free_piece() {
    const CUresult result = cuMemFreeAsync(piece, nullptr);
    MUST(cuStreamSynchronize(nullptr));
    return answer_of(result);
}
std::string destroy_pool() { return answer_of(cuMemPoolDestroy(exported_pool)); }

// Calls NVML as Python programs do: each function is looked up in the library.
template <class Function>
Function *of_nvml(const char *name) {
    static void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    return reinterpret_cast<Function *>(dlsym(library, name));
}
#define NVML(function) of_nvml<decltype(function)>(#function)
nvmlDevice_t first_gpu() {
    static nvmlDevice_t gpu = nullptr;
    if (gpu) return gpu;
    EXPECT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &gpu), NVML_SUCCESS);
    return gpu;
}
// Returns figures that loggers of metrics poll.
std::string figures_of_nvml() {
    nvmlMemory_t memory{};
    nvmlMemory_v2_t second{.version = nvmlMemory_v2, .total = 0, .reserved = 0, .free = 0, .used = 0};
    nvmlUtilization_t rates{};
    unsigned degrees = 0, milliwatts = 0;
    EXPECT_EQ(NVML(nvmlDeviceGetMemoryInfo)(first_gpu(), &memory), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlDeviceGetMemoryInfo_v2)(first_gpu(), &second), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlDeviceGetUtilizationRates)(first_gpu(), &rates), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlDeviceGetTemperature)(first_gpu(), NVML_TEMPERATURE_GPU, &degrees), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlDeviceGetPowerUsage)(first_gpu(), &milliwatts), NVML_SUCCESS);
    std::ostringstream out;
    for (const auto figure : {memory.total, memory.used, second.used}) out << figure / MiB << ' ';
    out << rates.gpu << ' ' << degrees << ' ' << milliwatts;
    return out.str();
}
std::string name_by_nvml() {
    char name[96] = "";
    EXPECT_EQ(NVML(nvmlDeviceGetName)(first_gpu(), name, sizeof name), NVML_SUCCESS);
    return name;
}

// For so many seconds, allocates 30 GiB, keeps it for 100 ms and frees it. Returns how often it got the memory.
std::string take_turns(std::uint64_t seconds) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    int given = 0;
    while (std::chrono::steady_clock::now() < until) {
        CUdeviceptr block = 0;
        if (cuMemAlloc_v2(&block, 30 * GiB) != CUDA_SUCCESS) continue;
        ++given;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        MUST(cuMemFree_v2(block));
    }
    return std::to_string(given);
}
// False for managed memory, which keeps a process in its GPUs, and for families whose memory other threads share.
bool may_nap(families::Trait trait) {
    using families::Trait;
    return trait != Trait::managed && trait != Trait::context && trait != Trait::whole_context &&
           trait != Trait::open_capture;
}
// For so many seconds, eight threads allocate and free memory of every family that may nap, and rest all at the same
// time, for up to 0.3 s. Now and then the first one forks meanwhile.
std::string work_and_rest(std::uint64_t seconds) {
    constexpr int kThreads = 8;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    std::barrier together(kThreads);
    std::atomic<int> failed{0};
    std::atomic<bool> over{false};
    in_threads(kThreads, [&](unsigned number) {
        families::Calls calls;
        const families::Place place = families::make_place(calls, 0);
        std::mt19937 random(number);
        while (!over) {
            for (int i = 0; i < 4; ++i) {
                const auto all = families::families();
                const families::Family &family = all[random() % all.size()];
                if (!may_nap(family.memory.trait)) continue;
                const families::Use use{calls, place, static_cast<unsigned>(random())};
                families::Block block;
                block.bytes = family.nth(0, 4 * MiB);
                CUresult result = family.take(use, block);
                const char *what = "take";
                if (result == CUDA_SUCCESS) result = family.give(use, block), what = "give";
                if (result == CUDA_SUCCESS) continue;
                ++failed;
                std::cerr << family.name + (std::string(" ") + what) + ": " + std::to_string(result) + "\n";
            }
            together.arrive_and_wait();
            if (number == 0) {
                over = std::chrono::steady_clock::now() >= until;
                std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
                if (random() % 8 == 0) {
                    const std::string ended = fork_child_that_ends();
                    failed += ended != "ok";
                    if (ended != "ok") std::cerr << "fork: " + ended + "\n";
                }
                std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
            }
            together.arrive_and_wait();
        }
        families::end_place(calls, place);
    });
    return std::to_string(failed) + " wrong";
}

std::string become_another() {
    execl("/proc/self/exe", "scenarios", "runs_commands", nullptr);
    return "not executed";
}
// The numbers after a command's name: MiB or a count, and the device.
struct Numbers {
    std::uint64_t mib = kBlock / MiB;
    int device = 0;
};

const std::map<std::string, std::function<std::string(const Numbers &)>> kCommands = {
    {"held", [](const auto &) { return std::to_string(curb_sim_held(0)); }},
    {"total", [](const auto &) { return std::to_string(shown_total()); }},
    {"threads", [](const auto &) { return std::to_string(entries("/proc/self/task")); }},
    {"descriptors", [](const auto &) { return std::to_string(entries("/proc/self/fd")); }},
    {"take", [](const Numbers &of) { return take_one(of.mib * MiB); }},
    {"fill", [](const auto &) { return fill_up(); }},
    {"drop", [](const auto &) { return drop_all(); }},
    {"fill again", [](const auto &) { return fill_again(); }},
    {"empty again", [](const auto &) { return empty_again(); }},
    {"much", [](const auto &) { return take_and_free_much(); }},
    {"managed", [](const Numbers &of) { return take_managed(of.mib * MiB); }},
    {"pool", [](const auto &) { return leave_in_the_pool(); }},
    {"pools", [](const auto &) { return leave_in_pools(); }},
    {"probe", [](const auto &) { return probe(); }},
    {"ask", [](const auto &) { return ask(); }},
    {"asked", [](const auto &) { return has_been_answered(); }},
    {"hold", [](const Numbers &of) { return hold(of.mib * MiB, of.device); }},
    {"give", [](const auto &) { return give_last(); }},
    {"map", [](const Numbers &of) { return map(of.mib * MiB); }},
    {"change", [](const auto &) { return change(); }},
    {"check", [](const auto &) { return check(); }},
    {"check at exit", [](const auto &) { return check_at_exit(); }},
    {"begin to check", [](const auto &) { return begin_to_check(); }},
    {"end checking", [](const auto &) { return end_checking(); }},
    {"work", [](const auto &) { return work_on(); }},
    {"compute", [](const auto &) { return compute(); }},
    {"submit", [](const auto &) { return submit(); }},
    {"begin to ask for memory", [](const auto &) { return begin_to_ask_for_memory(); }},
    {"begin to allocate", [](const auto &) { return begin_to_allocate(); }},
    {"end the call", [](const auto &) { return end_held_call(); }},
    {"lock before submitting", [](const auto &) { return lock_before_submitting(); }},
    {"call and unlock", [](const auto &) { return call_and_unlock(); }},
    {"prepare", [](const Numbers &of) { return prepare_calls(static_cast<int>(of.mib), false); }},
    {"call on", [](const Numbers &of) { return prepare_calls(static_cast<int>(of.mib), true); }},
    {"begin", [](const auto &) { return begin_calls(); }},
    {"returned", [](const auto &) { return end_calls(); }},
    {"fail by a wrong address",
     [](const auto &) {
         curb_sim_report_next("cuCtxSynchronize", CUDA_ERROR_ILLEGAL_ADDRESS, 1);
         return answer_of(cuCtxSynchronize());
     }},
    {"synchronize", [](const auto &) { return answer_of(cuCtxSynchronize()); }},
    {"fork", [](const auto &) { return fork_child_that_ends(); }},
    {"close for sockets", [](const auto &) { return close_for_sockets(); }},
    {"close for files", [](const auto &) { return close_for_files(); }},
    {"look", [](const auto &) { return look_at_them(); }},
    {"ignore the signal", [](const auto &) { return std::signal(SIGUSR1, SIG_IGN) == SIG_ERR ? "error" : "ok"; }},
    {"ignore children", [](const auto &) { return std::signal(SIGCHLD, SIG_IGN) == SIG_ERR ? "error" : "ok"; }},
    {"watch children", [](const auto &) { return watch_children(false); }},
    {"reap all children", [](const auto &) { return watch_children(true); }},
    {"children", [](const auto &) { return seen_of_children(); }},
    {"subreaper", [](const auto &) { return become_subreaper(); }},
    {"title", [](const auto &) { return set_title(); }},
    {"enter", [](const auto &) { return chdir(next_line().c_str()) == 0 ? "ok" : "error"; }},
    {"forbid sending", [](const auto &) { return forbid_sending(); }},
    {"pipe", [](const auto &) { return open_a_pipe(); }},
    {"close the pipe", [](const auto &) { return close_the_pipe(); }},
    {"fork and allocate", [](const auto &) { return fork_child_that_allocates(); }},
    {"fork and stay", [](const auto &) { return fork_child_that_stays(); }},
    {"exec", [](const auto &) { return become_another(); }},
    {"turns", [](const Numbers &of) { return take_turns(of.mib); }},
    {"utilise", [](const Numbers &of) { return curb_sim_set_utilization(static_cast<unsigned>(of.mib)), "ok"; }},
    {"capture", [](const auto &) { return begin_capture(); }},
    {"export block", [](const auto &) { return export_block(); }},
    {"open block", [](const auto &) { return open_block(cuIpcOpenMemHandle_v2); }},
    {"open block by an old call", [](const auto &) { return open_block(cuIpcOpenMemHandle); }},
    {"import external memory", [](const auto &) { return import_external(); }},
    {"destroy external memory", [](const auto &) { return answer_of(cuDestroyExternalMemory(external_memory)); }},
    {"close block", [](const auto &) { return close_block(); }},
    {"write block", [](const Numbers &of) { return write_block(of.mib); }},
    {"read block", [](const auto &) { return read_block(); }},
    {"compare addresses", [](const auto &) { return compare_addresses(); }},
    {"fork and export", [](const auto &) { return fork_child_that_exports(); }},
    {"ask about block", [](const auto &) { return ask_about_block(); }},
    {"reset context", [](const auto &) { return reset_context(); }},
    {"export event", [](const auto &) { return export_event(); }},
    {"open event", [](const auto &) { return open_event(); }},
    {"destroy event", [](const auto &) { return destroy_event(); }},
    {"export handle", [](const Numbers &of) { return export_handle(of.mib * MiB); }},
    {"open handle", [](const Numbers &of) { return open_handle(of.mib * MiB); }},
    {"close handle", [](const auto &) { return close_handle(); }},
    {"export piece", [](const Numbers &of) { return export_piece(of.mib * MiB); }},
    {"open piece", [](const auto &) { return open_piece(); }},
    {"free piece", [](const auto &) { return free_piece(); }},
    {"export pool", [](const auto &) { return close(export_pool()) == 0 ? "ok" : "no file"; }},
    {"destroy pool", [](const auto &) { return destroy_pool(); }},
    {"figures", [](const auto &) { return figures_of_nvml(); }},
    {"name", [](const auto &) { return name_by_nvml(); }},
    {"work and rest", [](const Numbers &of) { return work_and_rest(of.mib); }},
};

}  // namespace

namespace {

void answer_commands() {
    std::cout << "ready" << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
        if (line == "leave main") {
            std::thread([] {
                MUST(cuCtxSetCurrent(main_context));
                answer_commands();
                std::exit(0);
            }).detach();
            pthread_exit(nullptr);
        }
        const std::size_t name = line.find_first_of("0123456789");  // no name has a digit
        Numbers of;
        if (name != std::string::npos) std::istringstream(line.substr(name)) >> of.mib >> of.device;
        std::cout << kCommands.at(line.substr(0, name == std::string::npos ? name : name - 1))(of) << std::endl;
    }
}

}  // namespace

SCENARIO_NAMED(runs_commands) {
    if (std::getenv("CALLS_LAST"))  // after the driver's own exit handler
        std::atexit([] {
            if (cuDevicePrimaryCtxRelease_v2(0) != CUDA_ERROR_DEINITIALIZED) _exit(9);
        });
    main_context = start();
    answer_commands();
    // The program ends normally at the end of its input.
}

// A program that imports for long, initialises CUDA first, and uses it only after its first line of input.
SCENARIO_NAMED(runs_commands_later) {
    MUST(cuInit(0));
    std::cout << "imports" << std::endl;
    next_line();
    main_context = start();
    answer_commands();
}
