// What the program believes to be in force for a signal.
//
// Read in signal handlers, and in fork children whose writer is gone, so a reader waits for nobody: the newer of two
// copies is always whole. One writer at a time.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace curb::shim {

using Action = struct sigaction;

inline bool has_handler(const Action &action) noexcept {
    return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;  // whatever SA_SIGINFO says, as in the kernel
}

class ProgramAction {
  public:
    [[nodiscard]] Action read() const noexcept {
        for (;;) {
            const unsigned version = version_.load(std::memory_order_acquire);
            Words copy{};
            // acquire and, below, release: a word of a later version is not seen before that version's number.
            for (std::size_t i = 0; i < copy.size(); ++i)
                copy[i] = copies_[version % 2][i].load(std::memory_order_acquire);
            if (version != version_.load(std::memory_order_relaxed)) continue;
            Action action{};
            std::memcpy(&action, copy.data(), sizeof action);
            return action;
        }
    }

    void write(const Action &action) noexcept {
        Words copy{};
        std::memcpy(copy.data(), &action, sizeof action);
        const unsigned next = version_.load(std::memory_order_relaxed) + 1;
        for (std::size_t i = 0; i < copy.size(); ++i) copies_[next % 2][i].store(copy[i], std::memory_order_release);
        version_.store(next, std::memory_order_release);
    }

  private:
    static constexpr std::size_t kWords = (sizeof(Action) + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t);
    using Words = std::array<std::uint64_t, kWords>;

    std::atomic<unsigned> version_{0};
    std::array<std::array<std::atomic<std::uint64_t>, kWords>, 2> copies_{};
};

}  // namespace curb::shim
