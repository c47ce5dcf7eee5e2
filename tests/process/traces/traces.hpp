// Reads traces with the parser that `curb report` uses.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "control/trace.hpp"
#include "running.hpp"

namespace trace = curb::control::trace;
using curb::policy::Kind;
using trace::Event;
using trace::What;

struct ReadTrace {
    std::optional<trace::Header> header;
    std::vector<Event> events;
    std::size_t counters = 0;
    std::string rest;  // after the last newline

    [[nodiscard]] std::vector<Event> of(What what) const {
        std::vector<Event> out;
        for (const Event &event : events)
            if (event.what == what) out.push_back(event);
        return out;
    }
    [[nodiscard]] std::vector<Event> of(What what, Kind kind) const {
        std::vector<Event> out;
        for (const Event &event : of(what))
            if (event.kind == kind) out.push_back(event);
        return out;
    }
    [[nodiscard]] std::uint64_t missing() const {
        std::uint64_t out = 0;
        for (const Event &event : of(What::dropped)) out += static_cast<std::uint64_t>(event.bytes);
        return out;
    }
};

// Reads a trace. The test fails if a whole line is invalid.
inline ReadTrace read_trace(const fs::path &file) {
    ReadTrace out;
    const std::string text = contents(file);
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        const std::string line = text.substr(begin, end - begin);
        const auto read = trace::parse(line);
        INFO(file.string() + ": " + line);
        REQUIRE(read);
        if (begin == 0) REQUIRE(line == "[");
        if (begin == 2) REQUIRE(read->header);
        if (begin > 2) REQUIRE_FALSE(read->header);
        if (read->header) out.header = read->header;
        if (read->event) out.events.push_back(*read->event);
        out.counters += line.starts_with(R"({"ph":"C")") ? 1 : 0;
    }
    out.rest = text.substr(begin);
    return out;
}

// The books of one device by the events so far.
struct Books {
    std::map<Kind, std::uint64_t> kinds;
    std::uint64_t held = 0;
    std::int64_t charges = 0;
    std::uint64_t peak = 0;

    [[nodiscard]] std::uint64_t sum() const {
        std::uint64_t out = 0;
        for (const auto &[kind, bytes] : kinds) out += bytes;
        return out;
    }
};

inline bool has_books(const Event &event) {
    return event.what == What::alloc || event.what == What::free || event.what == What::books;
}

// Returns the books by device ordinal. Calls `each` after each event that has books.
template <class Each>
std::map<int, Books> books_of(const ReadTrace &read, Each each) {
    std::map<int, Books> out;
    for (const Event &event : read.events) {
        if (!has_books(event)) continue;
        Books &books = out[event.gpu];
        books.kinds[event.kind] = event.of_kind;
        books.held = event.held;
        books.charges += event.charge;
        books.peak = std::max(books.peak, event.held);
        each(event, books);
    }
    return out;
}
inline std::map<int, Books> books_of(const ReadTrace &read) {
    return books_of(read, [](const Event &, const Books &) {});
}
