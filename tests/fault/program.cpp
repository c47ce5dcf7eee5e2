#include "program.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>
#include <thread>
#include <variant>

#include "control/client.hpp"
#include "runs.hpp"
#include "sim.h"

namespace fault {
namespace {

using namespace std::chrono_literals;
namespace control = curb::control;

const char *error_text(int result) {
    const char *name = nullptr;
    return cuGetErrorName(static_cast<CUresult>(result), &name) == CUDA_SUCCESS && name ? name : "?";
}

std::string books_text(const Books &books) {
    std::string out = "held " + std::to_string(books.held) + ", of the driver " + std::to_string(books.driver) +
                      ", contexts " + std::to_string(books.contexts);
    for (std::size_t kind = 0; kind < books.kinds.size(); ++kind)
        if (books.kinds[kind] != 0)
            out += std::string(", ") + curb::policy::kind_name(static_cast<curb::policy::Kind>(kind)) + " " +
                   std::to_string(books.kinds[kind]);
    return out;
}

class Unobserved {
  public:
    explicit Unobserved(Injector &injector) : injector_(injector) { injector_.pause(true); }
    ~Unobserved() { injector_.pause(false); }
    Unobserved(const Unobserved &) = delete;
    Unobserved &operator=(const Unobserved &) = delete;

  private:
    Injector &injector_;
};

}  // namespace

std::vector<Way> &ways() {
    static std::vector<Way> all;
    return all;
}

template <class Wanted>
Wanted Program::ask(const control::Request &request) {
    // The socket is there a moment after cuInit. After a fault of the host there may be none.
    static bool given_up = false;
    const bool of_driver = injector_.is_of_driver();
    const auto until = std::chrono::steady_clock::now() + (of_driver ? 30s : 1s);
    control::Reply reply;
    do {
        reply = control::ask(getpid(), request, 30s);
        if (const auto *wanted = std::get_if<Wanted>(&reply)) return *wanted;
        std::this_thread::sleep_for(of_driver ? 100us : 5000us);
    } while (!given_up && std::chrono::steady_clock::now() < until);
    given_up = true;
    if (of_driver || !injector_.failed()) {
        const auto *why = std::get_if<control::Failure>(&reply);
        problem("the control socket: " + (why ? why->message : "another answer"));
    }
    return {};
}

bool Program::again(int attempt) {
    constexpr int kOfDriver = 3;
    if (injector_.is_of_driver()) return attempt < kOfDriver;
    const auto now = std::chrono::steady_clock::now();
    if (attempt == 0) again_until_ = now + 20s;
    if (fault_.lasting && attempt == 4) end_fault();
    std::this_thread::sleep_for(10ms);
    return now < again_until_;
}

void Program::problem(const std::string &text) {
    const std::size_t there = std::strlen(report_.problem.data());
    std::snprintf(report_.problem.data() + there, report_.problem.size() - there, "%s\n", text.c_str());
}

void Program::judge(const char *name, CUresult expected, CUresult result, const char *failed_before) {
    const char *failed = injector_.failed();
    const bool just_now = failed && !failed_before;
    // Such a call is one of the driver to the program, though curb makes several for it.
    constexpr std::string_view kOfBlocks[] = {"cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemFree_v2", "cuMemFreeAsync"};
    const bool is_made_of_others =
        fault_.blocks && std::find(std::begin(kOfBlocks), std::end(kOfBlocks), name) != std::end(kOfBlocks);
    const bool own = just_now && injector_.is_of_driver() && !fault_.others &&
                     (is_made_of_others ? result != expected : std::strcmp(failed, name) == 0);
    const auto code = static_cast<CUresult>(fault_.code);
    const auto said = [&](const char *what) {
        problem(std::string(name) + " returns " + error_text(result) + ", " + what + " (expected " +
                error_text(expected) + ", failed " + (failed ? failed : "nothing") +
                (just_now ? " just now"
                 : failed ? " earlier"
                          : "") +
                ")");
    };
    if (!injector_.is_of_driver() && failed && result == CUDA_ERROR_OUT_OF_MEMORY) return;
    // Within these curb makes calls of the same name: to create a twin of an array, to free kept blocks, and to find
    // out which context is the primary one.
    constexpr std::string_view kBoth[] = {"cuArray3DCreate_v2", "cuMipmappedArrayCreate", "cuMemFree_v2",
                                          "cuDevicePrimaryCtxRelease_v2"};
    if (result == expected && std::find(std::begin(kBoth), std::end(kBoth), name) != std::end(kBoth)) return;
    if (result == expected) {
        // After out-of-memory curb frees what it can and calls again.
        if (own && result != code && code != CUDA_ERROR_OUT_OF_MEMORY) said("though the driver has refused it");
        return;
    }
    if (own && result == code) return;
    said("which it would not see without curb");
}

Bytes slack() {
    static const char *given = std::getenv("CURB_FAULT_SLACK");
    return given ? std::strtoull(given, nullptr, 10) * MiB : 0;
}

bool alike(Bytes one, Bytes other) { return std::max(one, other) - std::min(one, other) <= slack(); }

bool alike(const Books &one, const Books &other) {
    if (slack() == 0) return one == other;
    for (std::size_t kind = 0; kind < one.kinds.size(); ++kind)
        if (!alike(one.kinds[kind], other.kinds[kind])) return false;
    return alike(one.held, other.held) && alike(one.driver, other.driver) && alike(one.shown, other.shown) &&
           alike(one.cached, other.cached) && one.contexts == other.contexts;
}

CUcontext Program::start() {
    Program &p = *this;
    CUcontext context = nullptr;
    injector_.plan(fault_);
    DO(cuInit, 0);
    DO(cuDevicePrimaryCtxRetain, &context, 0);
    DO(cuCtxSetCurrent, context);
    return context;
}

Books Program::read_books() {
    const Unobserved unobserved(injector_);
    // The driver may have taken or given back memory of its own. Under a cap these calls make curb measure again, as
    // before a program's next request. Without a cap a release does.
    std::size_t free = 0, total = 0, stack = 0;
    CUcontext current = nullptr;
    if (cuCtxGetCurrent(&current) == CUDA_SUCCESS && current) {
        if (cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS) cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack);
        cuMemGetInfo_v2(&free, &total);
    }
    Books books;
    books.driver = curb_sim_held(0);
    books.shown = total - free;
    if (!injector_.is_of_driver()) {
        if (report_.books_read < kMostBooks) report_.books[report_.books_read++] = books;
        return books;
    }
    auto status = ask<control::Status>(control::StatusRequest{});
    if (status.gpus.empty() || !status.gpus.front().cap || !current) {
        ask<control::ReleaseReport>(curb::policy::ReleaseRequest{{}, std::vector{curb::policy::Step::pressure}});
        status = ask<control::Status>(control::StatusRequest{});
    }
    if (status.gpus.empty()) {
        problem("curb knows no device");
        return books;
    }
    const control::GpuStatus &gpu = status.gpus.front();
    books.held = gpu.held;
    if (slack() != 0 && !gpu.cap) books.shown = 0;  // a real device's own figure, which its other users change
    books.kinds = gpu.kinds;
    books.cached = gpu.cached;
    books.contexts = gpu.contexts;
    const Bytes managed = gpu.kinds[static_cast<std::size_t>(curb::policy::Kind::managed)];
    if (!alike(books.held, books.driver + managed)) problem("the books do not balance: " + books_text(books));
    if (report_.books_read < kMostBooks) report_.books[report_.books_read++] = books;
    return books;
}

Bytes Program::device_size() {
    const Unobserved unobserved(injector_);
    const auto status = ask<control::Status>(control::StatusRequest{});
    if (status.gpus.empty()) return problem("curb knows no device"), 0;
    return status.gpus.front().total;
}

void Program::holds(curb::policy::Kind kind, Bytes bytes) {
    const Books books = read_books();
    if (!alike(books.kinds[static_cast<std::size_t>(kind)], bytes))
        problem(std::string("not ") + std::to_string(bytes) + " B of " + curb::policy::kind_name(kind) + ": " +
                books_text(books));
}

void Program::end_fault() {
    if (fault_.lasting) injector_.pause(true);
}

void Program::cap_holds(Bytes cap) {
    const Unobserved unobserved(injector_);
    Program &p = *this;
    CUdeviceptr pointer = 0;
    REFUSED(cuMemAlloc_v2, &pointer, cap);
    DO(cuMemAlloc_v2, &pointer, cap / 3);
    DO(cuMemFree_v2, pointer);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    cuThreadExchangeStreamCaptureMode(&mode);
    if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL) problem("the program's capture mode is another one now");
}

void Program::release(const char *steps) {
    std::vector<curb::policy::Step> wanted;
    for (const curb::policy::Step step : curb::policy::all_steps())
        if (std::strstr(steps, (std::string("\"") + curb::policy::step_name(step) + "\"").c_str()))
            wanted.push_back(step);
    ask<control::ReleaseReport>(curb::policy::ReleaseRequest{{}, wanted});
}

bool Program::set_cap(const char *size) {
    return !ask<control::CapReport>(control::CapRequest{*curb::policy::parse_size(size), "*"}).gpus.empty();
}

std::string difference(const Trial &trial, const Report &clean, const Report &faulted) {
    // curb frees a block that it could not see finished, instead of keeping it. At the end it keeps none.
    const bool keeps = std::strstr(trial.way->policy, "cache") != nullptr;
    for (std::size_t i = keeps ? clean.books_read - 1 : 0; i < clean.books_read; ++i)
        if (!alike(clean.books[i], faulted.books[i]))
            return "reading " + std::to_string(i + 1) + " of the books: " + books_text(faulted.books[i]) +
                   "; without a fault: " + books_text(clean.books[i]);
    return "";
}

}  // namespace fault
