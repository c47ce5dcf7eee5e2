// The simulated machine's devices: which there are, which a process sees, and their UUIDs.
#include "sim.h"

#include <unistd.h>

#include <cstring>
#include <fstream>

#include "contract.hpp"

using namespace contract;

namespace {

unsigned char last_byte_of_uuid(CUdevice device) {
    CUuuid uuid{};
    REQUIRE(cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS);
    return static_cast<unsigned char>(uuid.bytes[15]);
}

}  // namespace

TEST_CASE("the child: two GPUs of 16 GiB", "[.child]") {
    const Gpu gpu;
    int count = 0;
    size_t free = 0, total = 0;
    REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    CHECK(count == 2);
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
    CHECK(total == 16 * kGiB);
    CHECK(free == 16 * kGiB - kContext);
    CUcontext other = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
    CHECK(curb_sim_held(1) == kContext);
    int peer = 0;
    REQUIRE(cuDeviceCanAccessPeer(&peer, 0, 1) == CUDA_SUCCESS);
    CHECK(peer == 1);
    REQUIRE(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
    CHECK(curb_sim_held(1) == 0);
}

TEST_CASE("the environment sets the number and the size of the devices") {
    CHECK(run_case("the child: two GPUs of 16 GiB", {"CURB_SIM_GPUS=2", "CURB_SIM_MEMORY=16GiB"}) == 0);
    CHECK(run_case("the child: two GPUs of 16 GiB", {"CURB_SIM_GPUS=2", "CURB_SIM_MEMORY=16384MiB"}) == 0);
}

TEST_CASE("the child: there is no device", "[.child]") { CHECK(cuInit(0) == CUDA_ERROR_NO_DEVICE); }

TEST_CASE("settings that are wrong, or differ from the machine in the state file, give no device") {
    for (const char *wrong :
         {"CURB_SIM_GPUS=abc", "CURB_SIM_GPUS=0", "CURB_SIM_GPUS=17", "CURB_SIM_GPUS=9999", "CURB_SIM_GPUS=-1",
          "CURB_SIM_MEMORY=16GB", "CURB_SIM_MEMORY=16gb", "CURB_SIM_MEMORY=abc", "CURB_SIM_MEMORY=-1",
          "CURB_SIM_MEMORY=-1GiB", "CURB_SIM_MEMORY=16", "CURB_SIM_MEMORY=0GiB", "CURB_SIM_MEMORY=17179869184GiB"}) {
        CAPTURE(wrong);
        CHECK(run_case("the child: there is no device", {wrong}) == 0);
    }
    const State state;
    const auto on_it = [&](const char *name, const char *gpus, const char *memory) {
        return run_case(name, {state.variable(), gpus, memory}) == 0;
    };
    CHECK(on_it("the child: two GPUs of 16 GiB", "CURB_SIM_GPUS=2", "CURB_SIM_MEMORY=16GiB"));
    CHECK(on_it("the child: two GPUs of 16 GiB", "CURB_SIM_GPUS=", "CURB_SIM_MEMORY="));
    CHECK(on_it("the child: there is no device", "CURB_SIM_GPUS=3", "CURB_SIM_MEMORY="));
    CHECK(on_it("the child: there is no device", "CURB_SIM_GPUS=", "CURB_SIM_MEMORY=80GiB"));
}

TEST_CASE("the child: writes to a standard output that it has closed", "[.child]") {
    ::close(STDIN_FILENO);
    ::close(STDOUT_FILENO);
    const Gpu gpu;
    for (const int standard : {STDIN_FILENO, STDOUT_FILENO}) CHECK(::write(standard, "held\n", 5) < 0);
}

TEST_CASE("a program without standard streams does not write into the state file") {
    const State state;
    CHECK(run_case("the child: writes to a standard output that it has closed", {state.variable()}) == 0);
    CHECK(run_case("the child: one GPU", {state.variable()}) == 0);
}

TEST_CASE("the child: one GPU", "[.child]") { const Gpu gpu; }

TEST_CASE("the child: sees the GPUs that SEES names", "[.child]") {
    const std::string expected = environment("SEES");
    if (expected.empty()) {
        CHECK(cuInit(0) == CUDA_ERROR_NO_DEVICE);
        return;
    }
    const Gpu gpu;
    int count = 0;
    REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    std::string seen;
    for (int device = 0; device < count; ++device) seen += static_cast<char>('0' + last_byte_of_uuid(device));
    CHECK(seen == expected);
    // NVML counts all GPUs, and finds the process under its own number of the GPU.
    const Nvml nvml;
    unsigned gpus = 0;
    REQUIRE(nvmlDeviceGetCount_v2(&gpus) == NVML_SUCCESS);
    CHECK(gpus == 4);
    const auto processes = nvml.processes(nvml.device(last_byte_of_uuid(0)));
    REQUIRE(processes.size() == 1);
    CHECK(processes[0].usedGpuMemory == curb_sim_held(0));
}

TEST_CASE("CUDA_VISIBLE_DEVICES chooses and orders the GPUs, up to the first entry that names none") {
    struct List {
        const char *value, *sees;
    };
    const std::string uuid = "GPU-c07b513d-0000-4000-8000-00000000000";
    const auto list = GENERATE(List{"2", "2"}, List{"3,0", "30"}, List{"1,9,0", "1"}, List{"0,-1,1", "0"}, List{"", ""},
                               List{"7", ""}, List{"none", ""}, List{"1,1", "1"}, List{"UUID2", "2"},
                               List{"UUID3,UUID1,0", "310"}, List{"GPU-c0", ""});
    std::string value = list.value;
    for (size_t at = 0; (at = value.find("UUID")) != std::string::npos;) value.replace(at, 4, uuid);
    CAPTURE(value);
    CHECK(run_case("the child: sees the GPUs that SEES names",
                   {"CURB_SIM_GPUS=4", "CURB_SIM_MACHINE=0", "CUDA_VISIBLE_DEVICES=" + value,
                    std::string("SEES=") + list.sees}) == 0);
}

TEST_CASE("the child: is on an instance of a GPU", "[.child]") {
    const Gpu gpu;
    CUuuid own{}, parent{};
    REQUIRE(cuDeviceGetUuid_v2(&own, 0) == CUDA_SUCCESS);
    REQUIRE(cuDeviceGetUuid(&parent, 0) == CUDA_SUCCESS);
    CHECK(std::memcmp(&own, &parent, sizeof own) != 0);
    const Nvml nvml;
    nvmlDevice_t instance = nullptr, whole = nullptr;
    CHECK(nvmlDeviceGetHandleByUUID(text_of("GPU-", own).c_str(), &instance) == NVML_ERROR_NOT_FOUND);
    REQUIRE(nvmlDeviceGetHandleByUUID(text_of("MIG-", own).c_str(), &instance) == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetHandleByUUID(text_of("GPU-", parent).c_str(), &whole) == NVML_SUCCESS);
    const auto of_instance = nvml.processes(instance), of_whole = nvml.processes(whole);
    REQUIRE(of_instance.size() == 1);
    CHECK(of_instance[0].usedGpuMemory == curb_sim_held(0));
    REQUIRE(of_whole.size() == 1);
    CHECK(of_whole[0].usedGpuMemory == NVML_VALUE_NOT_AVAILABLE);
    nvmlMemory_t memory{};
    CHECK(nvmlDeviceGetMemoryInfo(instance, &memory) == NVML_SUCCESS);
    char reported[96];
    REQUIRE(nvmlDeviceGetUUID(instance, reported, sizeof reported) == NVML_SUCCESS);
    CHECK(reported == text_of("MIG-", own));
}

TEST_CASE("in MIG mode CUDA is on an instance, which NVML finds by a UUID of its own") {
    CHECK(run_case("the child: is on an instance of a GPU", {"CURB_SIM_MIG=1"}) == 0);
    CHECK(run_case("the child: is on an instance of a GPU",
                   {"CURB_SIM_MIG=1", "CURB_SIM_MACHINE=0",
                    "CUDA_VISIBLE_DEVICES=MIG-317b513d-0000-4000-8000-000000000000"}) == 0);
}

TEST_CASE("the child: is on a machine whose GPU shares the host's memory", "[.child]") {
    const std::string meminfo = environment("CURB_SIM_UNIFIED");
    const auto available = [&] {
        std::ifstream file(meminfo);
        std::string word;
        for (int64_t kib = 0; file >> word;)
            if (word == "MemAvailable:" && file >> kib) return kib * kKiB;
        return int64_t{-1};
    };
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    CHECK(available() == 8 * kGiB);
    CUcontext context = nullptr;
    int integrated = 0;
    REQUIRE(cuDeviceGetAttribute(&integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0) == CUDA_SUCCESS);
    CHECK(integrated == 1);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(available() == 8 * kGiB - kContext);
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, 1 * kGiB) == CUDA_SUCCESS);
    CHECK(available() == 7 * kGiB - kContext);
    size_t free = 0, total = 0;
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
    CHECK(free == 7 * kGiB - kContext - 256 * kMiB);                                       // without the page cache
    CHECK(cuMemAlloc_v2(&block, static_cast<size_t>(free + 128 * kMiB)) == CUDA_SUCCESS);  // which it can have
    const Nvml nvml;
    nvmlMemory_t memory{};
    CHECK(nvmlDeviceGetMemoryInfo(nvml.device(), &memory) == NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(nvml.processes(nvml.device()).size() == 1);
    CHECK(nvml.processes(nvml.device())[0].usedGpuMemory == NVML_VALUE_NOT_AVAILABLE);
    REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
    CHECK(available() == 8 * kGiB);
}

TEST_CASE("a GPU can share the host's memory, whose figures are in a file for /proc/meminfo") {
    const TempDir dir;
    const std::string file = "CURB_SIM_UNIFIED=" + dir.write("meminfo", "");
    CHECK(run_case("the child: is on a machine whose GPU shares the host's memory", {file, "CURB_SIM_MEMORY=8GiB"}) ==
          0);
    CHECK(run_case("the child: there is no device", {file, "CURB_SIM_GPUS=2"}) == 0);
}
