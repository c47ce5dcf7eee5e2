#include "faults.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace curb::sim {

namespace {

struct Fault {
    std::string name;
    uint64_t call = 0;
    CUresult result = CUDA_SUCCESS;
};

// `text` is name:call:code.
bool parse_one(const std::string &text, Fault *fault) {
    const size_t first = text.find(':');
    const size_t second = first == std::string::npos ? first : text.find(':', first + 1);
    if (second == std::string::npos) return false;
    const int code = std::atoi(text.c_str() + second + 1);
    *fault = {text.substr(0, first), std::strtoull(text.c_str() + first + 1, nullptr, 10), static_cast<CUresult>(code)};
    return fault->call > 0 && code > CUDA_SUCCESS && code <= CUDA_ERROR_UNKNOWN;
}

std::vector<Fault> parse(const char *text) {
    std::vector<Fault> faults;
    for (const char *item = text; item && *item;) {
        const char *end = std::strchr(item, ',');
        const std::string one = end ? std::string(item, end) : std::string(item);
        Fault fault;
        if (parse_one(one, &fault))
            faults.push_back(std::move(fault));
        else
            std::fprintf(stderr, "curb sim: CURB_SIM_FAULT: '%s' is not name:call:code\n", one.c_str());
        item = end ? end + 1 : nullptr;
    }
    return faults;
}

constinit std::atomic<uint64_t> all_calls = 0;

}  // namespace

CUresult fault(Entry &entry) {
    static const std::vector<Fault> &faults = *new std::vector<Fault>(parse(std::getenv("CURB_SIM_FAULT")));
    const uint64_t call = ++entry.calls;
    const uint64_t of_all = ++all_calls;
    for (const Fault &planned : faults) {
        const bool any = planned.name == "*";
        if (planned.call == (any ? of_all : call) && (any || planned.name == entry.name)) return planned.result;
    }
    return CUDA_SUCCESS;
}

}  // namespace curb::sim
