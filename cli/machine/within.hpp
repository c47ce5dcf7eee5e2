// Runs calls on threads of their own: a call of the driver may never return if a GPU has fallen off the bus.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace curb::cli {

// cuInit with eight GPUs without persistence mode takes half of it.
inline constexpr std::chrono::seconds kDriverPatience{30};

// The calls that have not returned. While there are any, the program must end by _Exit: exit handlers of the driver
// would wait for them.
inline std::atomic<int> &calls_under_way() {
    static std::atomic<int> count{0};
    return count;
}

// Runs `call` on a thread. The future does not wait for it when it is destroyed.
template <class Call>
auto in_background(Call call) -> std::future<decltype(call())> {
    struct UnderWay {
        UnderWay() { ++calls_under_way(); }
        ~UnderWay() { --calls_under_way(); }
    };
    const auto task = std::make_shared<std::packaged_task<decltype(call())()>>(
        [call = std::move(call), count = std::make_unique<UnderWay>()]() mutable {
            const auto until_return = std::move(count);
            return call();
        });
    auto result = task->get_future();
    try {
        std::thread([task] { (*task)(); }).detach();
    } catch (const std::system_error &) {
        (*task)();  // no more threads
    }
    return result;
}

template <class Value>
bool is_ready(const std::future<Value> &result) {
    return result.valid() && result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// Runs `call` on a thread and returns its result. Returns nullopt if it takes longer than `time`; the thread goes on.
template <class Call>
auto within(std::chrono::milliseconds time, Call call) -> std::optional<decltype(call())> {
    auto result = in_background(std::move(call));
    if (result.wait_for(time) != std::future_status::ready) return std::nullopt;
    return result.get();
}

}  // namespace curb::cli
