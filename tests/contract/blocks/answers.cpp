// Asks the driver about memory of cuMemAlloc, and prints each question with its answer, a line each. answers_test.py
// runs it with blocks of the driver's and with blocks of curb's: the answers must be the same. Runs on a GPU too.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "abi/cuda_abi.h"

namespace {

constexpr std::size_t KiB = 1 << 10, MiB = 1 << 20, kGranule = 2 * MiB;

CUcontext context = nullptr;
std::string subject;  // what the questions are about

void say(const std::string &question, const std::string &answer) {
    std::printf("%s %s\t%s\n", subject.c_str(), question.c_str(), answer.c_str());
}
std::string text(CUresult result) { return result == CUDA_SUCCESS ? "ok" : std::to_string(result); }
void ask(const std::string &question, CUresult result) { say(question, text(result)); }

struct Block {
    explicit Block(std::size_t asked) : bytes(asked), rounded((asked + kGranule - 1) / kGranule * kGranule) {
        if (const CUresult result = cuMemAlloc_v2(&start, bytes); result != CUDA_SUCCESS) {
            std::fprintf(stderr, "%zu bytes: %s\n", bytes, text(result).c_str());
            std::exit(1);
        }
    }
    CUdeviceptr start = 0;
    std::size_t bytes, rounded;
};

// Addresses relative to the block, since they differ from run to run.
std::string place(std::uint64_t value, const Block &block) {
    const std::uint64_t offset = value - block.start;
    return value == 0 ? "0" : offset <= block.rounded ? "start+" + std::to_string(offset) : "elsewhere";
}

constexpr int kAttributes[] = {CU_POINTER_ATTRIBUTE_CONTEXT,
                               CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                               CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                               CU_POINTER_ATTRIBUTE_HOST_POINTER,
                               CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                               CU_POINTER_ATTRIBUTE_BUFFER_ID,
                               CU_POINTER_ATTRIBUTE_IS_MANAGED,
                               CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                               CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                               CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                               CU_POINTER_ATTRIBUTE_MAPPED,
                               CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                               CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                               CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                               CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                               CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
                               CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                               CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
                               CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE};

// The bytes that an attribute has written, of a buffer that was filled with 0xcd.
std::string value_of(int attribute, const std::array<unsigned char, 64> &bytes, const Block &block) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data(), sizeof value);
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return value == reinterpret_cast<std::uint64_t>(context) ? "the context" : value == 0 ? "null" : "another";
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return place(value, block);
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return value == 0 ? "0" : "a number";
        default: break;
    }
    std::string hex;
    for (const unsigned char byte : bytes)
        if (hex.size() < 16) {
            std::array<char, 3> digits{};
            std::snprintf(digits.data(), digits.size(), "%02x", byte);
            hex += digits.data();
        }
    return hex;
}

std::string attribute_at(int attribute, CUdeviceptr address, const Block &block, bool plural) {
    alignas(16) std::array<unsigned char, 64> bytes{};
    bytes.fill(0xcd);
    auto which = static_cast<CUpointer_attribute>(attribute);
    void *out = bytes.data();
    const CUresult result =
        plural ? cuPointerGetAttributes(1, &which, &out, address) : cuPointerGetAttribute(out, which, address);
    return result == CUDA_SUCCESS ? value_of(attribute, bytes, block) : text(result);
}

std::string range_at(CUdeviceptr address, const Block &block) {
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
    const CUresult result = cuMemGetAddressRange_v2(&start, &bytes, address);
    return result == CUDA_SUCCESS ? place(start, block) + " " + std::to_string(bytes) : text(result);
}

std::vector<std::pair<std::string, std::size_t>> offsets_in(const Block &block) {
    std::vector<std::pair<std::string, std::size_t>> all{{"0", 0}, {"4096", 4096}, {"end-1", block.bytes - 1}};
    if (block.bytes < block.rounded) all.insert(all.end(), {{"end", block.bytes}, {"rounded-1", block.rounded - 1}});
    return all;
}

std::uint64_t buffer_id(const Block &block) {
    std::uint64_t id = 0;
    cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, block.start);
    return id;
}

void attributes(std::size_t bytes) {
    const Block block(bytes), other(bytes);
    for (const auto &[name, offset] : offsets_in(block)) {
        for (const int attribute : kAttributes)
            for (const bool plural : {false, true})
                say((plural ? "attributes " : "attribute ") + std::to_string(attribute) + " at " + name,
                    attribute_at(attribute, block.start + offset, block, plural));
        say("range at " + name, range_at(block.start + offset, block));
    }
    const unsigned on = 1;
    ask("set SYNC_MEMOPS", cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block.start + 4096));
    say("then", attribute_at(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block.start, block, false));
    say("two blocks have", buffer_id(block) == buffer_id(other) ? "the same id" : "an id each");
    std::size_t size = 0;
    CUdeviceptr start = 0;
    ask("range without start", cuMemGetAddressRange_v2(nullptr, &size, block.start));
    ask("range without size", cuMemGetAddressRange_v2(&start, nullptr, block.start));
    ask("attribute without value", cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_CONTEXT, block.start));
    cuMemFree_v2(block.start);
    cuMemFree_v2(other.start);
    say("range once freed", range_at(block.start, block));
    say("attribute once freed", attribute_at(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block.start, block, false));
}

void frees(std::size_t bytes) {
    const Block block(bytes);
    ask("free at 4096", cuMemFree_v2(block.start + 4096));
    ask("free in the middle", cuMemFree_v2(block.start + bytes / 2));
    ask("free at end", cuMemFree_v2(block.start + bytes));
    ask("free", cuMemFree_v2(block.start));
    ask("free twice", cuMemFree_v2(block.start));
    const Block in_stream(bytes);
    ask("free in a stream", cuMemFreeAsync(in_stream.start, nullptr));
    cuCtxSynchronize();
    ask("free once freed in a stream", cuMemFree_v2(in_stream.start));
    unsigned word = 0;
    ask("read once freed", cuMemcpyDtoH_v2(&word, in_stream.start, sizeof word));
}

void handles(std::size_t bytes) {
    const Block block(bytes);
    CUmemGenericAllocationHandle handle = 0;
    const auto pointer = [&](std::size_t offset) { return reinterpret_cast<void *>(block.start + offset); };
    ask("retain", cuMemRetainAllocationHandle(&handle, pointer(0)));
    ask("retain at 4096", cuMemRetainAllocationHandle(&handle, pointer(4096)));
    CUdeviceptr device = 0;
    unsigned flags = 0;
    ask("device pointer of host memory", cuMemHostGetDevicePointer_v2(&device, pointer(0), 0));
    ask("flags of host memory", cuMemHostGetFlags(&flags, pointer(0)));
    ask("unregister host memory", cuMemHostUnregister(pointer(0)));
    ask("free host memory", cuMemFreeHost(pointer(0)));
    const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    unsigned long long access = 77;
    const CUresult result = cuMemGetAccess(&access, &here, block.start);
    say("access", text(result) + " " + std::to_string(access));
    const CUmemAccessDesc all{here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    ask("set access", cuMemSetAccess(block.start, block.rounded, &all, 1));
    ask("unmap", cuMemUnmap(block.start, block.rounded));
    ask("unmap a granule", cuMemUnmap(block.start, kGranule));
    ask("free addresses", cuMemAddressFree(block.start, block.rounded));
    CUmemPoolPtrExportData exported{};
    ask("export pointer of a pool", cuMemPoolExportPointer(&exported, block.start));
    CUipcMemHandle ipc{};
    ask("IPC handle", cuIpcGetMemHandle(&ipc, block.start));
    for (const std::size_t size : {std::size_t{64 * KiB}, kGranule}) {
        int file = -1;
        ask("dma-buf of " + std::to_string(size),
            cuMemGetHandleForAddressRange(&file, block.start, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
        if (file >= 0) close(file);
    }
    unsigned word = 0;
    ask("read after all this", cuMemcpyDtoH_v2(&word, block.start, sizeof word));
    ask("free after all this", cuMemFree_v2(block.start));
}

void copies(std::size_t bytes) {
    const Block block(bytes), other(bytes);
    std::vector<unsigned char> there(block.rounded + 4096), back(bytes);
    for (std::size_t i = 0; i < there.size(); ++i) there[i] = static_cast<unsigned char>(i * 7 + (i >> 12));
    const auto is_there = [&] { return std::equal(back.begin(), back.end(), there.begin()) ? " right" : " wrong"; };
    ask("write", cuMemcpyHtoD_v2(block.start, there.data(), bytes));
    ask("copy", cuMemcpyDtoD_v2(other.start, block.start, bytes));
    ask("read", cuMemcpyDtoH_v2(back.data(), other.start, bytes));
    say("what was read is", is_there());
    ask("fill", cuMemsetD8_v2(block.start, 3, bytes));
    ask("past the end: write past the granules", cuMemcpyHtoD_v2(block.start + block.rounded - 8, there.data(), 4096));
    ask("past the end: write", cuMemcpyHtoD_v2(block.start, there.data(), bytes + 1));
    ask("past the end: read", cuMemcpyDtoH_v2(there.data(), block.start, bytes + 1));
    ask("past the end: fill", cuMemsetD8_v2(block.start, 0, bytes + 1));
    cuMemFree_v2(block.start);
    cuMemFree_v2(other.start);
}

void rows() {
    for (const unsigned element : {4U, 8U, 16U, 5U})
        for (const std::size_t width : {std::size_t{1}, std::size_t{1025}, std::size_t{4096}}) {
            std::size_t pitch = 0;
            CUdeviceptr start = 0;
            const CUresult result = cuMemAllocPitch_v2(&start, &pitch, width, 8192, element);
            say("pitch of " + std::to_string(width) + " in " + std::to_string(element),
                text(result) + " " + std::to_string(pitch));
            if (result == CUDA_SUCCESS) cuMemFree_v2(start);
        }
}

void captures() {
    CUstream stream = nullptr;
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    for (const auto mode :
         {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED})
        for (const bool frees : {false, true}) {
            const Block block(kGranule);
            CUdeviceptr made = 0;
            CUgraph graph = nullptr;
            cuStreamBeginCapture_v2(stream, mode);
            const CUresult result = frees ? cuMemFree_v2(block.start) : cuMemAlloc_v2(&made, kGranule);
            const CUresult end = cuStreamEndCapture(stream, &graph);
            say(std::string(frees ? "free" : "allocate") + " in mode " + std::to_string(mode),
                text(result) + ", end " + text(end));
            if (result != CUDA_SUCCESS || !frees) cuMemFree_v2(block.start);
            if (made) cuMemFree_v2(made);
        }
    const Block block(kGranule);
    CUgraph graph = nullptr;
    cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    ask("free in the captured stream", cuMemFreeAsync(block.start, stream));
    ask("end", cuStreamEndCapture(stream, &graph));
    cuMemFree_v2(block.start);
}

void ends() {
    CUcontext second = nullptr;
    cuCtxCreate_v2(&second, 0, 0);
    const Block block(64 * MiB);
    CUcontext owner = nullptr;
    ask("context", cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, block.start));
    say("it is", owner == second ? "the second" : "another");
    cuCtxSetCurrent(context);
    ask("destroy", cuCtxDestroy_v2(second));
    unsigned word = 0;
    ask("read once its context has ended", cuMemcpyDtoH_v2(&word, block.start, sizeof word));
    say("range once its context has ended", range_at(block.start, block));
    ask("free once its context has ended", cuMemFree_v2(block.start));
    const Block last(64 * MiB);
    ask("reset", cuDevicePrimaryCtxReset_v2(0));
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    say("attribute after a reset", attribute_at(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, last.start, last, false));
    ask("free after a reset", cuMemFree_v2(last.start));
}

void sizes() {
    CUdeviceptr start = 0;
    ask("0 bytes", cuMemAlloc_v2(&start, 0));
    ask("1 EiB", cuMemAlloc_v2(&start, std::size_t{1} << 60));
    ask("1 TiB", cuMemAlloc_v2(&start, std::size_t{1} << 40));
    ask("no pointer", cuMemAlloc_v2(nullptr, kGranule));
    cuCtxSetCurrent(nullptr);
    ask("without a context", cuMemAlloc_v2(&start, kGranule));
    cuCtxSetCurrent(context);
    const Block block(kGranule);
    cuCtxSetCurrent(nullptr);
    const CUresult freed = cuMemFree_v2(block.start);
    ask("free without a context", freed);
    cuCtxSetCurrent(context);
    if (freed != CUDA_SUCCESS) cuMemFree_v2(block.start);
}

}  // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a crash shows after which answer
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return 77;
    cuCtxSetCurrent(context);
    for (const std::size_t bytes : {2 * MiB, 3 * MiB + 5, 64 * MiB}) {
        subject = std::to_string(bytes) + ":";
        attributes(bytes);
        frees(bytes);
        handles(bytes);
        copies(bytes);
    }
    subject = "rows:";
    rows();
    subject = "captures:";
    captures();
    subject = "sizes:";
    sizes();
    subject = "contexts:";
    ends();
}
