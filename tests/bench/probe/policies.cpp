// Measures how long an edit of the policy CURB_POLICY takes to be in force.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "driver.hpp"
#include "probe.hpp"

namespace bench {

namespace {

constexpr std::size_t kPiece = 2 << 20;

// Two versions of the policy, which differ in one word.
class Policy {
  public:
    Policy(std::string word, std::string other) {
        const char *named = std::getenv("CURB_POLICY");
        if (!named) throw Cannot("there is no policy to edit");
        path_ = named;
        std::ifstream file(path_);
        std::stringstream read;
        read << file.rdbuf();
        texts_[0] = texts_[1] = read.str();
        const std::size_t at = texts_[0].find(word);
        if (at == std::string::npos) throw Cannot(path_ + " does not contain " + word);
        texts_[1].replace(at, word.size(), other);
    }

    // Replaces the file by a rename, as editors do. `edited`: by the version with the other word.
    void put(bool edited) const {
        const std::string fresh = path_ + ".new";
        std::ofstream(fresh) << texts_[edited];
        if (std::rename(fresh.c_str(), path_.c_str()) != 0) throw Cannot(path_ + " cannot be replaced");
    }

  private:
    std::string path_;
    std::string texts_[2];
};

// The time from an edit until the answer to a request changes: one version refuses it, the other grants it.
Sample edits(Words words) {
    const Policy policy(words[0], words[1]);
    const auto until = [&cuda = driver()](bool granted) {
        const auto start = Clock::now();
        for (;;) {
            CUdeviceptr block = 0;
            const bool got = cuda.cuMemAlloc_v2(&block, kPiece) == CUDA_SUCCESS;
            if (got) must(cuda.cuMemFree_v2(block), "cuMemFree_v2");
            if (got == granted) return;
            if (nanoseconds_since(start) > 5e9) throw Cannot("the edit was not in force after 5 s");
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    };
    return [policy, until, refusing = false](long count) mutable {
        const auto start = Clock::now();
        for (long i = 0; i < count; ++i) {
            refusing = !refusing;
            policy.put(refusing);
            until(!refusing);
        }
        return nanoseconds_since(start) / static_cast<double>(count);
    };
}

constexpr Probe kProbes[] = {{"edits", 2, edits}};

}  // namespace

std::span<const Probe> policy_probes() { return kProbes; }

}  // namespace bench
