#include "page/picture.hpp"

#include <algorithm>
#include <array>

#include "terminal/format.hpp"

namespace curb::cli {
namespace {

// The layers from bottom to top: the driver's own memory is below the program's.
constexpr std::array kStack = {policy::Kind::contexts, policy::Kind::overhead, policy::Kind::stack,
                               policy::Kind::plain,    policy::Kind::pools,    policy::Kind::vmm,
                               policy::Kind::arrays,   policy::Kind::graphs,   policy::Kind::managed};
static_assert(kStack.size() == policy::kKinds);

struct Columns {
    std::uint64_t begin_ns, span_ns;
    std::size_t count;
    [[nodiscard]] std::size_t of(std::uint64_t ns) const noexcept {
        const double part = static_cast<double>(ns - std::min(ns, begin_ns)) / static_cast<double>(span_ns);
        return std::min(static_cast<std::size_t>(part * static_cast<double>(count)), count - 1);
    }
};

// Keeps the first, last, highest and lowest sample of each column, in their order.
template <class One, auto height>
class Thinned {
  public:
    Thinned(const Columns &columns, std::vector<One> &out) : columns_(columns), out_(out) {}
    ~Thinned() { flush(); }
    Thinned(const Thinned &) = delete;
    Thinned &operator=(const Thinned &) = delete;

    void take(One one) {
        one.ns = std::max(one.ns, last_ns_);  // events of several threads may not be in the order of their times
        last_ns_ = one.ns;
        const std::size_t column = columns_.of(one.ns);
        if (count_ != 0 && column != column_) flush();
        column_ = column;
        const Kept kept{count_, one};
        if (count_ == 0) kept_ = {kept, kept, kept, kept};
        if (one.*height < kept_[1].one.*height) kept_[1] = kept;
        if (one.*height > kept_[2].one.*height) kept_[2] = kept;
        kept_[3] = kept;
        ++count_;
    }

  private:
    struct Kept {
        std::size_t index = 0;
        One one{};
    };
    void flush() {
        if (count_ == 0) return;
        std::sort(kept_.begin(), kept_.end(), [](const Kept &a, const Kept &b) { return a.index < b.index; });
        for (std::size_t i = 0; i < kept_.size(); ++i)
            if (i == 0 || kept_[i].index != kept_[i - 1].index) out_.push_back(kept_[i].one);
        count_ = 0;
    }

    const Columns &columns_;
    std::vector<One> &out_;
    std::array<Kept, 4> kept_{};
    std::size_t column_ = 0, count_ = 0;
    std::uint64_t last_ns_ = 0;
};

// Adds a mark. Marks of one column become one, with the text of the largest.
void add(std::vector<Mark> &marks, Mark mark, std::int64_t &largest, const Columns &columns) {
    if (marks.empty() || columns.of(marks.back().ns) != columns.of(mark.ns)) {
        largest = mark.bytes;
        marks.push_back(std::move(mark));
        return;
    }
    Mark &there = marks.back();
    const std::uint64_t ended = std::max(there.ended_ns, mark.ended_ns);
    const bool is_larger = mark.bytes > largest;
    largest = std::max(largest, mark.bytes);
    mark.count += there.count;
    mark.bytes = policy::plus(mark.bytes, there.bytes);
    if (is_larger) {
        there = std::move(mark);
    } else {
        there.count = mark.count;
        there.bytes = mark.bytes;
    }
    there.ended_ns = ended;
}

std::string request_text(const Moment &moment) {
    return control::size_text(moment.bytes) + " of " + policy::kind_text(moment.kind);
}

void mark(Chart &chart, const Recording &recording, const GpuSummary &gpu, const Summary &summary,
          const Columns &columns) {
    std::int64_t largest = 0;
    for (const Moment *one : gpu.refusals)
        add(chart.refusals,
            {one->ns, one->ns, 1, one->bytes, one->held,
             fmt::format("{} refused {}: {}, {} held", clock_text(recording, one->ns), request_text(*one),
                         policy::limit_text(one->why()), policy::format_human(one->held))},
            largest, columns);
    for (const Waited &wait : gpu.waits) {
        const char *end = wait.end == Waited::End::granted   ? "granted"
                          : wait.end == Waited::End::refused ? "refused"
                                                             : "not known how it ended";
        add(chart.waits,
            {wait.began_ns, wait.ended_ns, 1, wait.moment->bytes, wait.moment->held,
             fmt::format("{} waited {} for {}: {}", clock_text(recording, wait.began_ns),
                         span_text(wait.ended_ns - wait.began_ns), request_text(*wait.moment), end)},
            largest, columns);
    }
    for (const Release &release : summary.releases)
        add(chart.releases,
            {release.ended_ns, release.ended_ns, 1, release.bytes, 0,
             fmt::format("{} released {}{}{}", clock_text(recording, release.ended_ns),
                         control::size_text(release.bytes), release.trigger.empty() ? "" : " on ", release.trigger)},
            largest, columns);
    for (const Absence &one : summary.absences)
        add(chart.absences,
            {one.began_ns, one.ended_ns, 1, static_cast<std::int64_t>(one.bytes), 0,
             fmt::format("{} out of its GPUs{}{} for {}: {} in host memory{}", clock_text(recording, one.began_ns),
                         one.how.empty() ? "" : " by ", cause_text(one), span_text(one.ended_ns - one.began_ns),
                         policy::format_human(one.bytes),
                         one.wake_ns.value_or(0) == 0 ? "" : "; " + way_back_text(one))},
            largest, columns);
    const auto say_how_many = [](std::vector<Mark> &marks, const char *what) {
        for (Mark &mark : marks)
            if (mark.count > 1)
                mark.text = fmt::format("{} {}, {} together; the largest: {}", mark.count, what,
                                        control::size_text(mark.bytes), mark.text);
    };
    say_how_many(chart.refusals, "refusals");
    say_how_many(chart.waits, "waits");
    say_how_many(chart.releases, "releases");
    say_how_many(chart.absences, "times out of its GPUs");
}

policy::Bytes highest(const std::vector<LimitSample> &limits) {
    policy::Bytes out = 0;
    for (const LimitSample &one : limits)
        if (one.limit != policy::kUnbounded) out = std::max(out, one.limit);
    return out;
}

// Returns the height up to which something is drawn. Leaves out limits far above the peak, which would flatten the
// picture.
policy::Bytes top_of(Chart &chart, policy::Bytes peak) {
    constexpr policy::Bytes kFar = 4;
    policy::Bytes top = std::max<policy::Bytes>(peak, 1);
    const policy::Bytes cap = highest(chart.cap), allowed = highest(chart.allowance);
    chart.cap_above = cap / kFar > peak;
    if (cap == 0 || chart.cap_above)
        chart.cap.clear();
    else
        top = std::max(top, cap);
    if (allowed == 0 || allowed / kFar > peak)
        chart.allowance.clear();
    else
        top = std::max(top, allowed);
    return top;
}

}  // namespace

Picture draw(const Recording &recording, const Summary &summary, std::size_t columns) {
    Picture out;
    out.begin_ns = recording.first_ns;
    out.end_ns = std::max(recording.last_ns, recording.first_ns + 1'000);
    const Columns grid{out.begin_ns, out.end_ns - out.begin_ns, columns};
    for (const GpuSummary &gpu : summary.gpus) {
        if (!is_used(gpu)) continue;
        Chart chart;
        chart.gpu = gpu.gpu;
        policy::ByKind present{};
        {
            Thinned<HeldSample, &HeldSample::held> held(grid, chart.samples);
            Thinned<LimitSample, &LimitSample::limit> cap(grid, chart.cap), allowance(grid, chart.allowance);
            HeldByKind sum;
            for (const Moment &moment : recording.events) {
                if (moment.gpu != gpu.gpu || moment.is_of_process()) continue;
                if (sum.take(moment)) {
                    const auto kind = static_cast<std::size_t>(moment.kind);
                    present[kind] = std::max(present[kind], moment.of_kind);
                }
                held.take({moment.ns, sum.sum, sum.kinds});
                if (moment.what == What::policy) cap.take({moment.ns, moment.limit()});
                if (moment.what == What::policy) allowance.take({moment.ns, moment.of_kind});
                if (moment.what == What::allowance) allowance.take({moment.ns, moment.limit()});
            }
        }
        for (const policy::Kind kind : kStack)
            if (present[static_cast<std::size_t>(kind)] != 0) chart.kinds.push_back(kind);
        mark(chart, recording, gpu, summary, grid);
        const policy::Bytes top = top_of(chart, gpu.peak);
        chart.top = top + top / 16;
        out.charts.push_back(std::move(chart));
    }
    return out;
}

std::vector<Chart> draw_part(const Recording &recording, const Summary &summary, std::size_t columns,
                             std::uint64_t offset_ns) {
    std::vector<Chart> out = draw(recording, summary, columns).charts;
    const auto later = [=](auto &all) {
        for (auto &one : all) one.ns += offset_ns;
    };
    for (Chart &chart : out) {
        // Nothing is known of it behind its last event.
        if (!chart.samples.empty()) chart.samples.push_back({recording.last_ns, 0, {}});
        for (auto *limits : {&chart.cap, &chart.allowance}) {
            if (!limits->empty()) limits->push_back({recording.last_ns, policy::kUnbounded});
            later(*limits);
        }
        later(chart.samples);
        for (auto *marks : {&chart.refusals, &chart.waits, &chart.releases, &chart.absences}) {
            later(*marks);
            for (Mark &one : *marks) one.ended_ns += offset_ns;
        }
    }
    return out;
}

double Canvas::x(std::uint64_t ns) const noexcept {
    const double part = static_cast<double>(ns - std::min(ns, begin_ns)) / static_cast<double>(end_ns - begin_ns);
    return left + width * std::clamp(part, 0.0, 1.0);
}

std::string Canvas::path(char command, double value) const {
    return fmt::format("{}{:.{}f}", command, value, decimals);
}

double Canvas::y(policy::Bytes bytes) const noexcept {
    return upper + height * (1 - std::min(static_cast<double>(bytes) / static_cast<double>(top), 1.0));
}

std::string area(const Chart &chart, std::size_t layers, const Canvas &canvas) {
    if (chart.samples.empty()) return {};
    std::string out = canvas.path('M', canvas.x(chart.samples.front().ns)) + canvas.path(' ', canvas.y(0));
    for (const HeldSample &sample : chart.samples) {
        policy::Bytes sum = 0;
        for (std::size_t i = 0; i < layers; ++i) sum += sample.kinds[static_cast<std::size_t>(chart.kinds[i])];
        out += canvas.path('H', canvas.x(sample.ns)) + canvas.path('V', canvas.y(sum));
    }
    return out + canvas.path('H', canvas.x(canvas.end_ns)) + canvas.path('V', canvas.y(0)) + 'Z';
}

std::string bands(const std::vector<Mark> &absences, const Canvas &canvas) {
    std::string out;
    for (const Mark &one : absences)
        out += canvas.path('M', canvas.x(one.ns)) + canvas.path(' ', canvas.upper) +
               canvas.path('H', canvas.x(one.ended_ns)) + canvas.path('V', canvas.upper + canvas.height) +
               canvas.path('H', canvas.x(one.ns)) + 'Z';
    return out;
}

std::string line(const std::vector<LimitSample> &samples, const Canvas &canvas) {
    std::string out;
    bool drawing = false;
    for (const LimitSample &sample : samples) {
        const bool there = sample.limit != policy::kUnbounded;
        if (there || drawing) out += canvas.path(drawing ? 'H' : 'M', canvas.x(sample.ns));
        if (there) out += canvas.path(drawing ? 'V' : ' ', canvas.y(sample.limit));
        drawing = there;
    }
    if (drawing) out += canvas.path('H', canvas.x(canvas.end_ns));
    return out;
}

std::vector<policy::Bytes> height_ticks(policy::Bytes top) {
    constexpr policy::Bytes kMost = 6;
    policy::Bytes step = 1;
    while (top / step > kMost) step *= 2;
    std::vector<policy::Bytes> out;
    for (policy::Bytes at = 0; at <= top; at += step) out.push_back(at);
    return out;
}

std::vector<std::pair<std::uint64_t, std::string>> time_ticks(std::uint64_t begin_ns, std::uint64_t end_ns,
                                                              std::size_t most, std::int64_t local_ns, bool days) {
    constexpr std::array<std::uint64_t, 9> kWide = {60, 120, 300, 600, 1800, 3600, 7200, 21'600, 43'200};
    const std::uint64_t span_ns = end_ns - begin_ns;
    std::uint64_t step = 1'000;
    for (int i = 0; span_ns / step >= most && step < 60 * kSecond; ++i) step = i % 3 == 1 ? step / 2 * 5 : step * 2;
    if (step > 30 * kSecond) {
        const auto wide = std::find_if(kWide.begin(), kWide.end(),
                                       [=](std::uint64_t seconds) { return span_ns / (seconds * kSecond) < most; });
        step = (wide == kWide.end() ? 86'400 : *wide) * kSecond;
        while (span_ns / step >= most) step *= 2;
    }
    std::vector<std::pair<std::uint64_t, std::string>> out;
    const auto local = static_cast<std::uint64_t>(local_ns);
    for (std::uint64_t at = (local + begin_ns + step - 1) / step * step; at <= local + end_ns; at += step)
        out.emplace_back(at - local, time_of_day(static_cast<std::int64_t>(at), step, days));
    return out;
}

const char *colour_of(policy::Kind kind) noexcept {
    switch (kind) {
        case policy::Kind::plain: return "#0072b2";
        case policy::Kind::arrays: return "#e69f00";
        case policy::Kind::pools: return "#009e73";
        case policy::Kind::graphs: return "#f0e442";
        case policy::Kind::vmm: return "#56b4e9";
        case policy::Kind::managed: return "#cc79a7";
        case policy::Kind::contexts: return "#595959";
        case policy::Kind::stack: return "#dcdcdc";
        case policy::Kind::overhead: return "#a6a6a6";
    }
    return "#000000";
}

}  // namespace curb::cli
