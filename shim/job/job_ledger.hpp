// The ledger of a job: the bytes that each of its processes holds of each GPU, so that one cap applies to all of them.
//
// It is a System V segment that every process of the job attaches: no daemon, no descriptor, no file that could be
// truncated, no lock. Each process has a slot and writes that slot alone. To reserve, it adds the bytes to its slot and
// sums the slots of all living processes; over the cap, it takes them back. Of two processes at once the later one sees
// the other's bytes, so the cap is never exceeded, and a process that is stopped or killed at any instruction blocks no
// other one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/lifetime.hpp"
#include "policy/values/size.hpp"

namespace curb::shim::job {

using policy::Bytes;

struct Row;

// The bytes that this process holds of one device, as the others of its job see them. Without a job every function does
// nothing. Thread-safe; takes no lock.
class Share : NoCopy {
  public:
    // True once the process has joined a job.
    [[nodiscard]] bool joined() const noexcept { return row_.load() != nullptr; }
    // Adds to the bytes held; negative numbers modulo 2^64.
    void add(Bytes bytes) noexcept {
        if (joined()) [[unlikely]]
            add_joined(bytes);
    }
    // Sets the bytes that this process keeps free for code that the driver loads.
    void keep(Bytes bytes) const noexcept;

    enum class Answer : std::uint8_t {
        reserved,
        over,       // the job would exceed its cap
        contended,  // only because others ask at this moment
    };
    // Adds `bytes` if all processes together then hold and keep at most `cap`.
    [[nodiscard]] Answer reserve(Bytes bytes, Bytes cap) noexcept;
    // The cost of a process's first context, which one process of the job finds out for the others. 0: not known yet.
    [[nodiscard]] Bytes context_cost() const noexcept;
    void note_context_cost(Bytes bytes) const noexcept;
    // Returns the cap that `curb cap --job` has set for the job; nullopt: none.
    [[nodiscard]] std::optional<Bytes> live_cap() const noexcept;
    // Sets it in all processes of the job. nullopt: the cap of each one's policy applies again.
    void set_live_cap(std::optional<Bytes> cap) const noexcept;
    // False for a while after the others had nothing to give: a tenth of a second, or ten seconds if one of them did
    // not answer.
    [[nodiscard]] bool may_ask_others() const noexcept;
    // Asks the other processes of the job to release `bytes` of this device, and waits until all that hold some have
    // done so, or until that is free; half a second at most. Waits for another thread that asks already.
    void ask_others(Bytes bytes) noexcept;
    // Waits a moment before another try. Processes with a lower slot wait less, so that one of two goes first.
    void let_others_pass(int tries) const noexcept;
    // Returns the bytes that the other living processes hold and keep.
    [[nodiscard]] Bytes others() const noexcept;
    // Returns the bytes that all living processes hold. As others() and holders(), includes the memory that they have
    // imported from processes that have ended (exports.hpp).
    [[nodiscard]] Bytes held_by_all() const noexcept;
    // Returns the bytes that all living processes keep free for code that the driver loads.
    [[nodiscard]] Bytes kept_by_all() const noexcept;

    // One living process of the job.
    struct Holder {
        std::uint32_t pid = 0;  // as it sees itself
        std::array<char, 16> name{};
        Bytes held = 0;
        bool self = false;
    };
    // Returns the processes that hold memory of this device, the largest first. Throws std::bad_alloc.
    [[nodiscard]] std::vector<Holder> holders() const;

    // Returns the row of the GPU in the ledger; nullopt: it is not open.
    [[nodiscard]] std::optional<std::uint32_t> row() const noexcept;

    // Opens the share of the GPU `uuid` in the job that the process has joined. `held`: the bytes that the process
    // holds already. False if the ledger has no row left for the GPU.
    bool open(std::string_view uuid, Bytes held) noexcept;

  private:
    void add_joined(Bytes bytes) noexcept;
    std::atomic<Row *> row_{nullptr};
    std::atomic<std::uint64_t> may_ask_at_ms_{0};
    std::atomic<bool> asking_{false};
};

// The functions that the thread curb-job calls.
struct Events {
    // Another process of the job lacks `bytes`. Releases them, now or later, and then calls answered(request).
    void (*wanted)(Bytes bytes, std::uint64_t request) noexcept = nullptr;
    // A live cap of the job has been set or removed.
    void (*caps_changed)() noexcept = nullptr;
};
// Reports that the process has released what it can for a request of Events::wanted. Thread-safe.
void answered(std::uint64_t request) noexcept;

// Joins the job of this name, once in the life of a process; later calls return the first one's result. Returns why the
// ledger cannot be used; empty: joined. Starts the thread curb-job. Throws std::bad_alloc.
std::string join(std::string_view name, const Events &events);
// Returns the name of the job. Empty if the process has joined none.
std::string name();
// Returns a short word for it, of letters and digits. Throws std::bad_alloc.
std::string key();

}  // namespace curb::shim::job
