// The program's own action for a signal, which curb's handler hides.
//
// Signal handlers read it, and so do fork children whose writing thread does not exist. So readers never wait: the
// newer of two copies is always complete. One writer at a time.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace curb::shim {

using Action = struct sigaction;

inline bool has_handler(const Action &action) noexcept {
    return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;  // the kernel ignores SA_SIGINFO here, too
}

class ProgramAction {
  public:
    [[nodiscard]] Action read() const noexcept {
        for (;;) {
            const unsigned version = version_;
            Words copy{};
            // A reader that sees a word of a later write also sees that `version_` has changed since, and reads again.
            for (std::size_t i = 0; i < copy.size(); ++i) copy[i] = copies_[version % 2][i];
            if (version != version_) continue;
            Action action{};
            std::memcpy(&action, copy.data(), sizeof action);
            return action;
        }
    }

    void write(const Action &action) noexcept {
        Words copy{};
        std::memcpy(copy.data(), &action, sizeof action);
        const unsigned next = version_ + 1;
        for (std::size_t i = 0; i < copy.size(); ++i) copies_[next % 2][i] = copy[i];
        version_ = next;
    }

  private:
    static constexpr std::size_t kWords = (sizeof(Action) + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t);
    using Words = std::array<std::uint64_t, kWords>;

    std::atomic<unsigned> version_{0};
    std::array<std::array<std::atomic<std::uint64_t>, kWords>, 2> copies_{};
};

}  // namespace curb::shim
