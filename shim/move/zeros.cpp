#include "move/zeros.hpp"

#include <algorithm>
#include <cstring>

#include "base/lifetime.hpp"
#include "driver/driver.hpp"
#include "move/behind_gate.hpp"
#include "policy/decisions/move.hpp"

namespace curb::shim::move {
namespace {

constexpr const char *kName = "curb_find_zeros";
constexpr unsigned kThreads = 256, kMostBlocks = 2048;

// For each page, which a block of 256 threads reads 16 KiB at a time: found[page] = 1 if it is zero. Text, which the
// driver compiles for any GPU: so curb is built without nvcc.
constexpr const char *kKernel = R"(.version 6.0
.target sm_52
.address_size 64
.visible .entry curb_find_zeros(.param .u64 memory, .param .u64 pages, .param .u64 found)
{
    .reg .pred %done, %any, %first;
    .reg .b32 %thread, %x, %left, %a<16>;
    .reg .b64 %memory, %pages, %found, %page, %blocks, %at, %lane;
    ld.param.u64 %memory, [memory];
    ld.param.u64 %pages, [pages];
    ld.param.u64 %found, [found];
    cvta.to.global.u64 %memory, %memory;
    cvta.to.global.u64 %found, %found;
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %lane, %thread, 16;
    setp.eq.u32 %first, %thread, 0;
    mov.u32 %x, %ctaid.x;
    cvt.u64.u32 %page, %x;
    mov.u32 %x, %nctaid.x;
    cvt.u64.u32 %blocks, %x;
$next:
    setp.ge.u64 %done, %page, %pages;
    @%done bra $end;
    shl.b64 %at, %page, 16;
    add.s64 %at, %at, %memory;
    add.s64 %at, %at, %lane;
    mov.u32 %left, 4;
$read:
    ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%at];
    ld.global.v4.u32 {%a4, %a5, %a6, %a7}, [%at+4096];
    ld.global.v4.u32 {%a8, %a9, %a10, %a11}, [%at+8192];
    ld.global.v4.u32 {%a12, %a13, %a14, %a15}, [%at+12288];
    or.b32 %a0, %a0, %a1;
    or.b32 %a2, %a2, %a3;
    or.b32 %a4, %a4, %a5;
    or.b32 %a6, %a6, %a7;
    or.b32 %a8, %a8, %a9;
    or.b32 %a10, %a10, %a11;
    or.b32 %a12, %a12, %a13;
    or.b32 %a14, %a14, %a15;
    or.b32 %a0, %a0, %a2;
    or.b32 %a4, %a4, %a6;
    or.b32 %a8, %a8, %a10;
    or.b32 %a12, %a12, %a14;
    or.b32 %a0, %a0, %a4;
    or.b32 %a8, %a8, %a12;
    or.b32 %a0, %a0, %a8;
    setp.ne.u32 %any, %a0, 0;
    bar.red.or.pred %any, 0, %any;
    @%any bra $advance;
    add.s64 %at, %at, 16384;
    sub.u32 %left, %left, 1;
    setp.ne.u32 %any, %left, 0;
    @%any bra $read;
    @!%first bra $advance;
    add.s64 %at, %found, %page;
    mov.u32 %x, 1;
    st.global.u8 [%at], %x;
$advance:
    add.s64 %page, %page, %blocks;
    bra $next;
$end:
    ret;
}
)";

// The kernel in a context, with a stream. Empty if the driver cannot load it.
class Finder : NoCopy {
  public:
    Finder() noexcept {
        const Driver &driver = driver_behind_gate();
        if (driver.cuModuleLoadData(&module_, kKernel) != CUDA_SUCCESS) module_ = nullptr;
        if (!module_ || driver.cuModuleGetFunction(&function_, module_, kName) != CUDA_SUCCESS) function_ = nullptr;
    }
    ~Finder() {
        if (module_) ask_twice([this] { return driver_behind_gate().cuModuleUnload(module_); });
    }
    explicit operator bool() const noexcept { return function_ && stream_; }

    // Writes a byte for each page, which is 0 before: 1 if the page is zero.
    bool begin(const Range &range, char *found) noexcept {
        CUdeviceptr memory = range.address, to = reinterpret_cast<CUdeviceptr>(found);
        std::uint64_t pages = range.bytes / policy::kZeroPage;
        if (pages == 0) return true;
        void *arguments[] = {&memory, &pages, &to};
        const auto blocks = static_cast<unsigned>(std::min<std::uint64_t>(pages, kMostBlocks));
        return driver_behind_gate().cuLaunchKernel(function_, blocks, 1, 1, kThreads, 1, 1, 0, stream_.get(), arguments,
                                                   nullptr) == CUDA_SUCCESS;
    }
    bool wait() noexcept { return stream_.synchronize(); }

  private:
    CUmodule module_ = nullptr;
    CUfunction function_ = nullptr;
    Stream stream_;
};

}  // namespace

std::vector<std::vector<bool>> zero_pages(CUcontext context, std::span<const Range> ranges) {
    std::vector<std::vector<bool>> out;
    std::size_t all = 0;
    for (const Range &range : ranges) {
        out.emplace_back((range.bytes + policy::kZeroPage - 1) / policy::kZeroPage, false);
        all += out.back().size();
    }
    const CurrentBehindGate current(context);
    const PinnedMemory found(current ? all : 0);
    Finder finder;
    if (!found || !finder) return out;
    std::memset(found.begin(), 0, all);
    char *at = found.begin();
    bool done = true;
    for (std::size_t i = 0; i < ranges.size() && done; at += out[i++].size()) done = finder.begin(ranges[i], at);
    if (!finder.wait() || !done) return out;
    at = found.begin();
    for (auto &pages : out)
        for (std::size_t page = 0; page < pages.size(); ++page) pages[page] = *at++ == 1;
    return out;
}

}  // namespace curb::shim::move
