#include "trace/job.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

// Returns the ordinals of GPUs whose memory the process uses or asks for.
std::vector<int> used_gpus(const Recording &recording) {
    std::set<int> used;
    for (const Moment &moment : recording.events)
        if (moment.moves_memory() || moment.what == What::books || moment.what == What::refuse) used.insert(moment.gpu);
    return {used.begin(), used.end()};
}

// One recording, as together() reads it.
struct Reading {
    const Recording *recording = nullptr;
    std::uint64_t tag = 0;     // makes its addresses differ from those of other processes
    std::uint64_t offset = 0;  // when its trace began, on the clock of the job
    std::size_t next = 0;      // event
    std::map<int, std::pair<std::size_t, HeldByKind>> gpus{};  // by ordinal: the number in the job, and what is held

    [[nodiscard]] bool at_end() const noexcept { return next == recording->events.size(); }
    [[nodiscard]] std::uint64_t next_ns() const noexcept { return offset + recording->events[next].ns; }
};

std::int64_t first_unix_ns(std::span<const Recording> recordings) {
    std::int64_t first = recordings.front().header.unix_ns;
    for (const Recording &one : recordings) first = std::min(first, one.header.unix_ns);
    return std::max<std::int64_t>(first, 0);
}

// Puts the events of all processes in the order of their clocks, with the figures of the job.
class Together {
  public:
    Together(std::span<const Recording> recordings, std::span<const JobGpu> gpus) : held_(gpus.size()) {
        const std::int64_t began = first_unix_ns(recordings);
        out_.header.unix_ns = began;
        out_.header.version = recordings.front().header.version;
        const std::string &host = recordings.front().header.host;
        if (std::all_of(recordings.begin(), recordings.end(),
                        [&](const Recording &one) { return one.header.host == host; }))
            out_.header.host = host;
        out_.name = counted(recordings.size(), "process") + (recordings.size() == 1 ? "" : " together");
        std::size_t events = 0;
        for (const Recording &one : recordings) {
            Reading reading{&one, (readings_.size() + 1) << 48, 0};
            if (began > 0) reading.offset = static_cast<std::uint64_t>(one.header.unix_ns - began);
            for (const std::string &missing : one.missing) out_.missing.push_back(one.name + ": " + missing);
            events += one.events.size();
            readings_.push_back(std::move(reading));
        }
        for (std::size_t number = 0; number < gpus.size(); ++number) {
            out_.header.gpus.push_back(gpus[number]);
            for (std::size_t i = 0; i < gpus[number].of.size(); ++i)
                readings_[gpus[number].of[i]].gpus[gpus[number].ranks[i].gpu] = {number, {}};
        }
        out_.events.reserve(events);
    }

    Recording all() && {
        while (Reading *next = earliest()) {
            if (out_.events.empty()) out_.first_ns = now_ = next->next_ns();
            now_ = std::max(now_, next->next_ns());
            const Moment &moment = next->recording->events[next->next++];
            switch (moment.what) {
                case What::policy:
                case What::allowance:
                case What::out:
                case What::back: break;  // of one process
                case What::end: free_all(*next); break;
                default: add(*next, moment);
            }
        }
        out_.last_ns = now_;
        return std::move(out_);
    }

  private:
    // Returns the recording with the earliest event. null: all are at their ends.
    Reading *earliest() {
        Reading *next = nullptr;
        for (Reading &one : readings_)
            if (!one.at_end() && (!next || one.next_ns() < next->next_ns())) next = &one;
        return next;
    }

    // Adds the event with the figures of the job instead of those of its process.
    void add(Reading &reading, Moment moment) {
        moment.text = out_.texts.number_of(reading.recording->text(moment));
        moment.ns = now_;
        if (!moment.is_of_process()) {
            const auto found = reading.gpus.find(moment.gpu);
            if (found == reading.gpus.end()) return;
            auto &[number, own] = found->second;
            const auto kind = static_cast<std::size_t>(moment.kind);
            const policy::Bytes before = own.kinds[kind];
            if (own.take(moment)) {
                moment.of_kind = held_[number].kinds[kind] + own.kinds[kind] - before;
                held_[number].take(moment);
            }
            moment.held = held_[number].sum;
            moment.gpu = static_cast<std::uint16_t>(number);
            if ((moment.moves_memory() || moment.what == What::stack) && moment.pointer != 0)
                moment.pointer ^= reading.tag;
        }
        out_.events.push_back(moment);
    }

    // A process that has ended holds nothing more.
    void free_all(Reading &reading) {
        for (const auto &[gpu, of] : reading.gpus)
            for (std::size_t kind = 0; kind < policy::kKinds; ++kind) {
                if (of.second.kinds[kind] == 0) continue;
                Moment freed;
                freed.what = What::books;
                freed.kind = static_cast<policy::Kind>(kind);
                freed.gpu = static_cast<std::uint16_t>(gpu);
                add(reading, freed);
            }
    }

    Recording out_;
    std::vector<Reading> readings_;
    std::vector<HeldByKind> held_;  // of each GPU of the job
    std::uint64_t now_ = 0;
};

}  // namespace

std::vector<JobGpu> gpus_of_job(std::span<const Recording> recordings) {
    std::vector<JobGpu> out;
    for (std::size_t i = 0; i < recordings.size(); ++i)
        for (const int gpu : used_gpus(recordings[i])) {
            const control::trace::Gpu *known = recordings[i].gpu(gpu);
            const std::string key = known && !known->uuid.empty() ? known->uuid : "cuda:" + std::to_string(gpu);
            auto found = std::find_if(out.begin(), out.end(), [&](const JobGpu &one) { return one.key == key; });
            if (found == out.end()) {
                found = out.insert(out.end(), JobGpu{});
                if (known) static_cast<control::trace::Gpu &>(*found) = *known;
                found->gpu = static_cast<int>(out.size()) - 1;
                found->key = key;
            }
            Rank rank{&recordings[i], gpu, {}};
            rank.terms.total = found->total;
            found->of.push_back(i);
            found->ranks.push_back(rank);
        }
    return out;
}

Recording together(std::span<const Recording> recordings, std::span<const JobGpu> gpus) {
    return Together(recordings, gpus).all();
}

std::vector<std::string> what_they_lack(std::span<const Recording> recordings) {
    std::vector<std::string> out;
    const bool is_job = recordings.size() > 1;
    for (const Recording &one : recordings) {
        const auto has = [&](auto is) { return std::any_of(one.events.begin(), one.events.end(), is); };
        if (has([](const Moment &moment) {
                return moment.what == What::alloc && moment.kind == policy::Kind::contexts && moment.charge == 0;
            }))
            out.push_back(one.name +
                          ": does not count contexts, as older traces without a cap: each takes some 500 MiB "
                          "more. Record the run again.");
        if (is_job && one.header.unix_ns <= 0)
            out.push_back(one.name + ": has no time of day, so all processes are taken to begin together.");
        if (!has([](const Moment &moment) { return moment.what == What::end; }))
            out.push_back(
                one.name +
                ": does not show the end of its process, which runs on, was killed or could not write it. What "
                "it held counts to the last; what it took and was refused after its last event is missing.");
    }
    return out;
}

Summary summarise_with_caps(const Recording &recording) {
    Summary out = summarise(recording);
    const auto used = std::count_if(out.gpus.begin(), out.gpus.end(), is_used);
    for (GpuSummary &gpu : out.gpus) {
        if (!is_used(gpu)) continue;
        gpu.smallest_cap = smallest_cap(recording, gpu.gpu, gpu.total);
        if (gpu.smallest_cap) gpu.paste = paste_of("--cap", used == 1 ? "" : gpu_name(gpu.gpu), *gpu.smallest_cap);
    }
    return out;
}

std::string paste_of(const char *option, const std::string &key, policy::Bytes cap) {
    return std::string(option) + " " + (key.empty() ? "" : key + "=") + policy::format_up(cap);
}

}  // namespace curb::cli
