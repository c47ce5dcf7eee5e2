#include "policy/decisions/move.hpp"

#include <numeric>
#include <utility>

namespace curb::policy {

std::vector<std::size_t> leaving(const std::vector<Leaver> &blocks, Bytes budget) {
    std::vector<std::size_t> order(blocks.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const auto share = [&](std::size_t i) {
            return static_cast<double>(blocks[i].copied) / static_cast<double>(std::max<Bytes>(blocks[i].bytes, 1));
        };
        return share(a) != share(b) ? share(a) < share(b) : blocks[a].bytes > blocks[b].bytes;
    });
    std::erase_if(order, [&](std::size_t i) {
        if (blocks[i].copied > budget) return true;
        budget -= blocks[i].copied;
        return false;
    });
    return order;
}

std::vector<Part> runs(std::size_t block, Bytes bytes, const std::vector<bool> &zero, bool of_zeros) {
    std::vector<Part> out;
    bool continues = false;
    for (std::size_t page = 0; page < zero.size(); ++page) {
        const Bytes offset = page * kZeroPage, size = std::min(kZeroPage, bytes - offset);
        if (zero[page] != of_zeros)
            continues = false;
        else if (std::exchange(continues, true))
            out.back().bytes += size;
        else
            out.push_back({block, offset, size});
    }
    return out;
}

std::vector<std::vector<Part>> chunks(const std::vector<Part> &parts) {
    std::vector<std::vector<Part>> out;
    Bytes room = 0;  // of the last chunk
    for (Part rest : parts) {
        while (rest.bytes != 0) {
            if (room == 0) {
                out.emplace_back();
                room = kChunk;
            }
            const Bytes size = std::min(room, rest.bytes);
            out.back().push_back({rest.block, rest.offset, size});
            rest.offset += size;
            rest.bytes -= size;
            room -= size;
        }
    }
    return out;
}

std::size_t cut_to_whole_blocks(std::vector<std::vector<Part>> &chunks, std::size_t copied, std::size_t blocks) {
    if (copied >= chunks.size()) return blocks;
    const std::size_t whole = chunks[copied].front().block;
    chunks.resize(copied);
    for (; !chunks.empty(); chunks.pop_back()) {
        auto &last = chunks.back();
        while (!last.empty() && last.back().block >= whole) last.pop_back();
        if (!last.empty()) break;
    }
    return whole;
}

}  // namespace curb::policy
