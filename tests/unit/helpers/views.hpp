// A machine of two GPUs for tests of `curb ps`: a capped training that was refused memory, a process without curb, and
// a stopped one.
#pragma once

#include <string>
#include <utility>

#include "machine/view.hpp"

namespace views {

using namespace curb;
using namespace curb::cli;
using policy::Bytes;
using policy::GiB;
using policy::MiB;

// 2026-11-21 12:31:04 UTC
constexpr control::UnixMs kNow = 1'795'264'264'000;

inline ViewProcess process(int pid, const std::string &user, const std::string &command) {
    ViewProcess out;
    out.pid = pid;
    out.user = user;
    out.command = command;
    out.name = command.substr(0, command.find(' '));
    return out;
}
inline ViewGpu gpu(int index, Bytes used) {
    ViewGpu out;
    out.index = index;
    out.uuid = "GPU-8f3a1b2c-0000-4000-8000-00000000000" + std::to_string(index);
    out.name = "NVIDIA H100 80GB HBM3";
    out.total = 80 * GiB;
    out.used = used;
    out.free = 80 * GiB - used;
    return out;
}
inline void give_books(ViewProcess &process, const ViewGpu &gpu, Bytes held, std::optional<Bytes> cap = {}) {
    if (!process.status) process.status.emplace().pid = process.pid;
    process.under_curb = true;
    process.status->version = "0.1.0";
    control::GpuStatus &books = process.status->gpus.emplace_back();
    books.ordinal = static_cast<int>(process.status->gpus.size()) - 1;
    books.uuid = gpu.uuid;
    books.total = gpu.total;
    books.held = held;
    books.cap = cap;
    books.contexts = 1;
}

// Adds a process of a container that only the board shows, with the pid that it has there.
inline void add_posted(View &view, std::uint64_t pid_namespace, int pid, Bytes held) {
    ViewGpu &gpu = view.gpus.at(0);
    ViewProcess one;
    one.pid = pid;
    one.user = "root";
    one.elsewhere = true;
    control::board::Entry &posted = one.posted.emplace();
    posted.process.pid = pid;
    posted.pid_namespace = pid_namespace;
    posted.gpus = {{gpu.uuid, held, 8 * GiB, 0, 0}};
    gpu.uses.push_back({view.processes.size(), std::nullopt, std::nullopt, 0, 0});
    view.processes.push_back(std::move(one));
}

inline View machine() {
    View out;
    ViewGpu first = gpu(0, 35 * GiB + 512 * MiB), second = gpu(1, 0);
    ViewProcess train = process(4711, "alice", "python3 train_bert.py --lr 1e-4 --batch-size 256");
    give_books(train, first, 7 * GiB + 512 * MiB, 8 * GiB);
    control::GpuStatus &books = train.status->gpus[0];
    books.allowance = 8 * GiB;
    books.cached = 512 * MiB;
    books.refused[0] = 12;
    books.released[static_cast<std::size_t>(policy::Step::pools)] = 3 * GiB;
    train.status->refusals.push_back({kNow - 60'000, 0, 2 * GiB, policy::Limit::cap, 7 * GiB + 512 * MiB, 8 * GiB});
    ViewProcess other = process(4712, "bob", "/opt/conda/bin/python3 -m notebook");
    ViewProcess stopped = process(4800, "alice", "python3 serve.py");
    stopped.under_curb = stopped.stopped = true;
    stopped.trouble = "has not answered for 300 ms: it is stopped; kill -CONT 4800";
    first.uses = {{1, std::nullopt, 20 * GiB}, {0, 0, 7 * GiB + 640 * MiB}, {2, std::nullopt, 7 * GiB}};
    out.processes = {std::move(train), std::move(other), std::move(stopped)};
    out.gpus = {std::move(first), std::move(second)};
    return out;
}

// The same machine, whose first process reports every figure.
inline View busy() {
    View view = machine();
    control::Status &status = *view.processes[0].status;
    status.since = kNow - (2 * 3600 + 180) * 1000;
    status.signal = "SIGUSR1";
    status.releasing = true;
    status.policy = {
        "/home/alice/job.json",           "8GiB", "/etc/curb/policy.json", "rule 2 \"bert\"", false, kNow - 30'000,
        "job.json:3:7: '8Gib' is no size"};
    status.trace = control::TraceStatus{"curb-4711.trace.json", 12'345, 6, ""};
    control::GpuStatus &books = status.gpus[0];
    books.kinds = {4 * GiB, 0, 3 * GiB, 0, 0, 0, 518 * MiB, 0, 18 * MiB + 512 * policy::KiB};
    books.pools = {2 * GiB, GiB};
    books.cap = 7 * GiB;
    books.live_cap = policy::Size{policy::Size::Unit::bytes, 7 * GiB};
    books.ceiling = true;
    books.waited = 3;
    books.waiting = 2;
    status.waits = {{0, 4720, kNow - 3'000, 800 * MiB, policy::Limit::allowance, kNow + 27'000, kNow + 5'000},
                    {0, 4711, kNow - 500, GiB, policy::Limit::cap, kNow + 29'500, {}}};
    books.refused[3] = 2;
    books.released[static_cast<std::size_t>(policy::Step::cache)] = 256 * MiB;
    control::ReleaseReport report{"SIGUSR1", {}, 44};
    report.steps = {{policy::Step::cache, 0, 0.2, "nothing cached"},
                    {policy::Step::pools, static_cast<std::int64_t>(3 * GiB), 40, ""}};
    status.releases = {{kNow - 120'000, report}};
    status.bypasses = {{"/opt/lib/libodd.so", "binds cuMemAlloc_v2 of the driver directly"}};
    return view;
}

}  // namespace views
