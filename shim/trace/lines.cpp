#include "trace/lines.hpp"

#include <algorithm>

#include "trace/stack.hpp"

namespace curb::shim::trace {
namespace {

using control::trace::Event;
using control::trace::What;

constexpr std::uint64_t kBetweenCounters = 1'000'000;

}  // namespace

// Completes a pool free with its allocation's data. If an address has several allocations, takes the newest one before
// the free: the record of the free may come after that of the next allocation at the address.
bool Lines::complete(Record &record) {
    const auto [first, last] = pool_blocks_.equal_range(record.pointer);
    auto found = last;
    for (auto block = first; block != last; ++block)
        if (block->second.ns <= record.ns && (found == last || block->second.ns > found->second.ns)) found = block;
    if (found == last) return false;
    const Block block = found->second;
    pool_blocks_.erase(found);
    const Gpu &gpu = gpus_[static_cast<std::size_t>(block.gpu)];
    record.what = What::free;
    record.kind = block.kind;
    record.gpu = block.gpu;
    record.bytes = block.bytes;
    record.of_kind = gpu.kinds[static_cast<std::size_t>(block.kind)];
    record.held = gpu.held;
    return true;
}

template <class Add>
void Lines::whole(Add add) {
    const std::size_t before = text_.size();
    try {
        add();
    } catch (...) {
        text_.resize(before);  // remove a partial line
        throw;
    }
}

void Lines::add(const Record &record) {
    whole([&] { add_line(record); });
}

void Lines::add_line(Record record) {
    if (record.mark == Record::Mark::pool_free && !complete(record)) return;
    Event event{since_began(record.ns), record.what, record.kind, record.why, record.step, record.reused};
    event.gpu = record.gpu;
    event.thread = record.thread;
    event.pointer = record.pointer;
    event.bytes = record.bytes;
    event.charge = record.charge;
    event.of_kind = record.of_kind;
    event.held = record.held;
    event.limit = record.limit;
    event.duration_ns = record.duration_ns;
    if (record.text) event.text = record.what == What::stack ? stack::names_of(*record.text) : *record.text;
    const bool is_pools = record.kind == policy::Kind::pools || record.kind == policy::Kind::graphs;
    if (record.what == What::alloc && is_pools && record.pointer != 0)
        pool_blocks_.emplace(record.pointer, Block{record.ns, record.bytes, record.gpu, record.kind});
    append(text_, event, pid_);
    if (!has_total_of_kind(record.what)) return;
    Gpu &gpu = gpus_[static_cast<std::size_t>(record.gpu)];
    gpu.kinds[static_cast<std::size_t>(record.kind)] = record.of_kind;
    gpu.held = record.held;
    gpu.changed_ns = std::max(gpu.changed_ns, event.ns);
    gpu.owed = true;
    if (gpu.changed_ns >= gpu.counted_ns + kBetweenCounters)
        count(static_cast<std::size_t>(record.gpu), gpu.changed_ns);
}

void Lines::add_dropped(std::uint64_t ns, std::uint64_t events) {
    Event event{since_began(ns), What::dropped};
    event.thread = pid_;
    event.bytes = static_cast<std::int64_t>(events);
    whole([&] { append(text_, event, pid_); });
}

void Lines::add_counters() {
    for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu)
        if (gpus_[gpu].owed) count(gpu, std::max(gpus_[gpu].changed_ns, gpus_[gpu].counted_ns + kBetweenCounters));
}

void Lines::count(std::size_t gpu, std::uint64_t ns) {
    whole([&] { control::trace::append_counters(text_, ns, static_cast<int>(gpu), gpus_[gpu].kinds, pid_); });
    gpus_[gpu].counted_ns = ns;
    gpus_[gpu].owed = false;
}

std::uint64_t events_in(std::string_view lines) noexcept {
    std::uint64_t events = 0;
    while (!lines.empty()) {
        const bool counters = lines.starts_with(R"({"ph":"C")");
        const bool dropped = lines.starts_with(R"({"ph":"i","s":"t","name":"dropped")");
        events += counters || dropped ? 0 : 1;
        const std::size_t newline = lines.find('\n');
        lines.remove_prefix(newline == std::string_view::npos ? lines.size() : newline + 1);
    }
    return events;
}

}  // namespace curb::shim::trace
