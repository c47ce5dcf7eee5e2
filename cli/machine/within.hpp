// Limits the time of calls that may never return: those of a driver whose GPU has fallen off the bus.
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

// True once a call did not return. It still blocks its thread, so the program must end by _Exit.
inline std::atomic<bool> &a_call_hangs() {
    static std::atomic<bool> hangs{false};
    return hangs;
}

// Returns the result of `call`. nullopt if it did not return in `time`; it then goes on in a thread of its own.
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
