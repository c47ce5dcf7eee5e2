// cuGetProcAddress: names, versions, per-thread forms, and that its addresses are the exports'.
#include <dlfcn.h>

#include "contract.hpp"

using namespace contract;

namespace {

struct Answer {
    CUresult result;
    void *address;
    CUdriverProcAddressQueryResult status;
};

Answer ask(const char *name, int version, uint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT) {
    Answer answer{CUDA_SUCCESS, nullptr, CU_GET_PROC_ADDRESS_SUCCESS};
    answer.result = cuGetProcAddress_v2(name, &answer.address, version, flags, &answer.status);
    return answer;
}

void *exported(const char *name) {
    void *driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    REQUIRE(driver);
    void *address = ::dlsym(driver, name);
    REQUIRE(address);
    return address;
}

}  // namespace

TEST_CASE("a name and a version lead to the address of the exact export") {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    struct Question {
        const char *name;
        int version;
        uint64_t flags;
        const char *answer;
    };
    const Question question = GENERATE(
        Question{"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"}, Question{"cuMemAlloc", 13000, 0, "cuMemAlloc_v2"},
        Question{"cuMemFree", 12000, 0, "cuMemFree_v2"}, Question{"cuMemGetInfo", 3020, 0, "cuMemGetInfo_v2"},
        Question{"cuMemAllocAsync", 11020, 0, "cuMemAllocAsync"},
        Question{"cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz"},
        Question{"cuMemAllocAsync", 11020, 1, "cuMemAllocAsync"},
        Question{"cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"},
        Question{"cuMemcpyHtoDAsync", 7000, 2, "cuMemcpyHtoDAsync_v2_ptsz"},
        Question{"cuMemAlloc", 12000, 2, "cuMemAlloc_v2"}, Question{"cuMemCreate", 12000, 0, "cuMemCreate"},
        Question{"cuCtxCreate", 3020, 0, "cuCtxCreate_v2"}, Question{"cuCtxCreate", 11040, 0, "cuCtxCreate_v3"},
        Question{"cuDevicePrimaryCtxRelease", 11000, 0, "cuDevicePrimaryCtxRelease_v2"},
        Question{"cuDevicePrimaryCtxRelease", 7000, 0, "cuDevicePrimaryCtxRelease"},
        Question{"cuStreamBeginCapture", 10010, 2, "cuStreamBeginCapture_v2_ptsz"},
        Question{"cuGetProcAddress", 11030, 0, "cuGetProcAddress"},
        Question{"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"});
    CAPTURE(question.name, question.version, question.flags);
    const Answer answer = ask(question.name, question.version, question.flags);
    REQUIRE(answer.result == CUDA_SUCCESS);
    CHECK(answer.status == CU_GET_PROC_ADDRESS_SUCCESS);
    CHECK(answer.address == exported(question.answer));
}

TEST_CASE("an unknown name, and a function that came after the requested version, are not found; the status says why") {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    const auto [name, version, status] = GENERATE(table<const char *, int, CUdriverProcAddressQueryResult>(
        {{"", 13000, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND},
         {"cuNoSuchThing", 13000, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND},
         {"cuMemAllocAsync", 11000, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT}}));
    const Answer answer = ask(name, version);
    CHECK(answer.result == CUDA_SUCCESS);
    CHECK(answer.address == nullptr);
    CHECK(answer.status == status);
}

TEST_CASE("the status may be left out") {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    void *address = nullptr;
    CHECK(cuGetProcAddress_v2("cuMemAlloc", &address, 12000, 0, nullptr) == CUDA_SUCCESS);
    CHECK(cuGetProcAddress_v2("cuNoSuchThing", &address, 12000, 0, nullptr) == CUDA_SUCCESS);
    CHECK(address == nullptr);
}

TEST_CASE("errors have names and texts") {
    const char *text = nullptr;
    REQUIRE(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text) == CUDA_SUCCESS);
    CHECK(std::string(text) == "CUDA_ERROR_OUT_OF_MEMORY");
    REQUIRE(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text) == CUDA_SUCCESS);
    CHECK(std::string(text) == "out of memory");
    CHECK(cuGetErrorName(static_cast<CUresult>(777), &text) == CUDA_ERROR_INVALID_VALUE);
}
