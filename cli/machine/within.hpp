// Limits the time of driver calls, which may never return if a GPU has fallen off the bus.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace curb::cli {

inline constexpr std::chrono::seconds kNvmlPatience{10};

// True once a call did not return. Its thread is still in the driver, so the program must end by _Exit.
inline std::atomic<bool> &a_call_hangs() {
    static std::atomic<bool> hangs{false};
    return hangs;
}

// Runs `call` on a thread and returns its result. Returns nullopt if it takes longer than `time`; the thread goes on.
template <class Call>
auto within(std::chrono::milliseconds time, Call call) -> std::optional<decltype(call())> {
    struct Shared {
        std::mutex mutex;
        std::condition_variable done;
        std::optional<decltype(call())> value;
    };
    const auto shared = std::make_shared<Shared>();
    std::thread([shared, call = std::move(call)] {
        auto value = call();
        const std::scoped_lock lock(shared->mutex);
        shared->value.emplace(std::move(value));
        shared->done.notify_all();
    }).detach();
    std::unique_lock lock(shared->mutex);
    if (!shared->done.wait_for(lock, time, [&] { return shared->value.has_value(); })) {
        a_call_hangs() = true;
        return std::nullopt;
    }
    return std::move(shared->value);
}

}  // namespace curb::cli
