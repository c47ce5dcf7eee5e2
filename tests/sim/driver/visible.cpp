#include "visible.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <string>

#include "identity.hpp"

namespace curb::sim {

namespace {

constexpr int kNone = -1;

// Returns the GPU that an entry names; kNone if it names none.
int named(const std::string &entry, int count) {
    if (entry.rfind("GPU-", 0) != 0 && entry.rfind("MIG-", 0) != 0) {
        char *end = nullptr;
        const long number = std::strtol(entry.c_str(), &end, 10);
        return end != entry.c_str() && !*end && number >= 0 && number < count ? static_cast<int>(number) : kNone;
    }
    int found = kNone;
    for (int gpu = 0; gpu < count; ++gpu) {
        if (gpu_uuid_text(gpu).rfind(entry, 0) != 0 && !(mig_mode() && mig_uuid_text(gpu).rfind(entry, 0) == 0))
            continue;
        if (found != kNone) return kNone;  // ambiguous
        found = gpu;
    }
    return found;
}

}  // namespace

std::vector<int> visible_gpus(int count) {
    std::vector<int> gpus;
    const char *list = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!list) {
        gpus.resize(static_cast<size_t>(count));
        std::iota(gpus.begin(), gpus.end(), 0);
        return gpus;
    }
    std::istringstream entries(list);
    for (std::string entry; std::getline(entries, entry, ',');) {
        entry.erase(0, entry.find_first_not_of(' '));
        entry.erase(entry.find_last_not_of(' ') + 1);
        const int gpu = named(entry, count);
        if (gpu == kNone || std::find(gpus.begin(), gpus.end(), gpu) != gpus.end()) break;
        gpus.push_back(gpu);
    }
    return gpus;
}

}  // namespace curb::sim
