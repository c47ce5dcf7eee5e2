// A way for each family of memory (tests/families): allocates two blocks, is refused a third, and frees both.
#include <algorithm>

#include "families.hpp"
#include "ways.hpp"

namespace fault {
namespace {

constexpr const char *kRoomForContexts = R"({"version": 1, "gpu": {"*": {"cap": "4GiB"}}})";

// Judges each call, and tries it again after an error. `refusing` is the family of a block that the cap must refuse.
class Judged final : public families::Calls {
  public:
    explicit Judged(Program &program) : program_(program) {}
    CUresult make(const char *name, void *linked, const std::function<CUresult(void *)> &call) override {
        const bool refused = refusing && refusing->is_refused_by(name);
        return program_.call(name, refused ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS, [&] { return call(linked); });
    }

    const families::Family *refusing = nullptr;

  private:
    Program &program_;
};

void go_through(Program &p, const families::Family &family) {
    p.start();
    Judged calls(p);
    families::Place place = families::make_place(calls, 0, false);
    DO(cuDeviceGetDefaultMemPool, &place.pools[0], 0);
    std::fill(place.pools + 1, std::end(place.pools), place.pools[0]);
    // Both choose stream 1 and a free in it. With 1 handles and pools end before their blocks, with 6 after them: a
    // real driver of today may crash after the end of a pool whose block lives (docs/results/driver.md).
    const families::Use use{calls, place, slack() == 0 ? 1U : 6U};
    families::Block blocks[2], beyond;
    for (unsigned i : {0U, 1U}) {
        blocks[i].bytes = family.nth(i, i == 0 ? 20 * MiB : 100 * KiB);
        family.take(use, blocks[i]);
    }
    if (families::taken(family, 1) != 0) {
        calls.refusing = &family;
        beyond.bytes = 4 * GiB;
        family.take(use, beyond);
        calls.refusing = nullptr;
    }
    p.read_books();
    family.give(use, blocks[0]);
    p.end_fault();
    family.give(use, blocks[1]);
    DO(cuStreamDestroy_v2, place.streams[1]);
    DO(cuCtxSynchronize);
    p.read_books();
    p.cap_holds(4 * GiB);
}

// Without open captures: after an error the program has another capture. driver_ways.cpp has captures.
const bool kAdded = [] {
    for (const families::Family &family : families::families())
        if (family.memory.trait != families::Trait::open_capture)
            ways().push_back({family.name, kRoomForContexts, [&family](Program &p) { go_through(p, family); }});
    return true;
}();

}  // namespace
}  // namespace fault
