#include "server/server.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/guarded.hpp"
#include "base/keep_errno.hpp"
#include "base/lifetime.hpp"
#include "base/waiting.hpp"
#include "blocks/ipc.hpp"
#include "control/runtime_dir.hpp"
#include "device/devices.hpp"
#include "device/wait_queue.hpp"
#include "driver/bypass.hpp"
#include "driver/gate.hpp"
#include "driver/thunks/thunks.hpp"
#include "host/log.hpp"
#include "nap/nap.hpp"
#include "nap/turns.hpp"
#include "release/release.hpp"
#include "runtime/runtime.hpp"
#include "runtime/worker_queue.hpp"
#include "server/connection.hpp"
#include "server/lending.hpp"
#include "server/socket_file.hpp"
#include "server/status.hpp"
#include "threads/own_socket.hpp"
#include "threads/own_thread.hpp"

namespace curb::shim::server {
namespace {

using Clock = Connection::Clock;
using policy::LogLevel;

constexpr std::size_t kClients = 16;
constexpr std::size_t kMaxPending = 64;        // answers due from other threads
constexpr std::chrono::seconds kPause{1};      // after accept found no free descriptor
constexpr std::chrono::seconds kLookPause{5};  // between looks whether the socket's file is there
// How long a client waits for a fresh measurement, mostly for NVML's start (9 ms). Then it gets the last figures.
constexpr std::chrono::milliseconds kMeasureWait{20};
constexpr std::uint64_t kLongestLeaseMs = 60'000;

// Answers from other threads, and requests to them.
struct Inbox {
    struct Answer {
        std::uint64_t client;
        std::optional<control::Reply> reply;  // nullopt if host memory was exhausted
        control::Descriptor beside{};
    };
    std::vector<Answer> answers;
    std::size_t asked = 0;  // answers due from other threads
    struct Cap {
        std::uint64_t client;
        policy::GpuKey key;
        std::optional<policy::Size> cap;
        bool of_job;
    };
    std::list<Cap> caps;             // in order; they wait for NVML or for an earlier one
    bool setting_caps = false;       // the worker sets them
    std::uint64_t measurements = 0;  // completed
    bool pending = false;            // there is content that the thread has not begun to read
    // The socket that wakes the thread. Never closed by curb: another thread may be about to use it.
    const OwnSocket *waker = nullptr;
};
// Never destroyed: threads may use it until the process ends.
Guarded<Inbox> &inbox() noexcept { return leaked<Guarded<Inbox>>(); }

// Changes the inbox by `change`, and makes the control thread read it. Keeps errno.
template <class Change>
void post(Change change) noexcept {
    const KeepErrno keep_errno;
    const OwnSocket *waker = inbox().locked([&](Inbox &now) {
        change(now);
        return std::exchange(now.pending, true) ? nullptr : now.waker;
    });
    if (waker) waker->wake();
}

// Reserves room for an answer that another thread posts. May throw std::bad_alloc.
class AnswerSlot : NoCopy {
  public:
    AnswerSlot() {
        reserved_ = inbox().locked([](Inbox &now) {
            if (now.asked == kMaxPending) return false;
            now.answers.reserve(now.answers.size() + now.asked + 1);
            ++now.asked;
            return true;
        });
    }
    ~AnswerSlot() {
        if (reserved_) inbox().locked([](Inbox &now) { --now.asked; });
    }
    // False if too many answers are pending.
    explicit operator bool() const noexcept { return reserved_; }
    // The answer will come, or has come: post_answer() frees the room.
    void hand_over() noexcept { reserved_ = false; }

  private:
    bool reserved_ = false;
};
// Posts the answer to the room that an AnswerSlot has reserved.
void post_answer(Inbox::Answer one) noexcept {
    post([&](Inbox &now) {
        --now.asked;
        now.answers.push_back(std::move(one));  // room was reserved
    });
}
template <class Report>
void post_answer(std::uint64_t client, const Report &report) noexcept {
    Inbox::Answer one{client, std::nullopt};
    try {
        one.reply = report;
    } catch (...) {
        one.reply.reset();
    }
    post_answer(std::move(one));
}

// Called on the worker once the devices are reconciled (worker::measure).
void note_measurement() noexcept {
    post([](Inbox &now) { ++now.measurements; });
}

// Sets the caps that wait. On the worker, because it asks NVML: that takes milliseconds, or seconds if NVML does not
// answer.
void set_waiting_caps() noexcept {
    in_force::find_indexes();
    for (;;) {
        std::list<Inbox::Cap> next;
        inbox().locked([&](Inbox &now) {
            now.setting_caps = !now.caps.empty();
            if (now.setting_caps) next.splice(next.begin(), now.caps, now.caps.begin());
        });
        if (next.empty()) return;
        const Inbox::Cap &one = next.front();
        post_answer(one.client, runtime::enforce(one.key, one.cap, one.of_job));
    }
}

class Server {
  public:
    // Creates the socket, or logs why it could not.
    void open(const control::Places &places);
    [[nodiscard]] bool is_open() const { return static_cast<bool>(listening_); }
    // Serves until the socket is gone.
    void run();

  private:
    void stop(const std::string &why);
    // Makes the socket anew, if its file is gone: a logout deletes the folders in $XDG_RUNTIME_DIR.
    void renew_if_deleted(Clock::time_point now);
    void wait();
    void serve_clients(Clock::time_point now);
    [[nodiscard]] int timeout(Clock::time_point now) const;
    void accept_clients(Clock::time_point now);
    void answer(Connection &client, const std::string &line, Clock::time_point now);
    // Each serves one kind of request. Returns nullopt if the answer comes later.
    using Immediate = std::optional<control::Reply>;
    Immediate on(const control::StatusRequest &asked, std::uint64_t client, Clock::time_point now);
    Immediate on(const policy::ReleaseRequest &asked, std::uint64_t client, Clock::time_point now);
    Immediate on(const control::CapRequest &asked, std::uint64_t client, Clock::time_point now);
    Immediate on(const control::GateRequest &asked, std::uint64_t client, Clock::time_point now);
    Immediate on(const control::MemoryRequest &asked, std::uint64_t client, Clock::time_point now);
    Immediate measured(std::uint64_t client, Clock::time_point now, std::function<control::Reply()> reply);
    void deliver_answers(Clock::time_point now);
    Connection *find(std::uint64_t client);
    void drop_idle_client();

    const control::Places *places_ = nullptr;
    Clock::time_point looked_{};  // whether the file is there
    OwnSocket listening_;
    OwnSocket woken_;
    const OwnSocket *waker_ = nullptr;  // Inbox::waker
    std::vector<Connection> clients_;
    // Answers that wait for a measurement.
    struct Deferred {
        std::uint64_t client;
        Clock::time_point until;
        std::uint64_t seen;  // Inbox::measurements at the request
        std::function<control::Reply()> reply;
    };
    std::vector<Deferred> deferred_;
    std::uint64_t last_id_ = 0;
    Clock::time_point paused_until_{};
};

void Server::open(const control::Places &places) {
    const auto none = [](const std::string &why) {
        if (!why.empty())
            log::write(LogLevel::info, "no control socket, so curb release does not reach this process: " + why);
    };
    places_ = &places;
    looked_ = Clock::now();
    if (!OwnSocket::may_be_opened()) return none("the process may have few descriptors open, and is left them all");
    const auto folder = control::runtime_directory(places, geteuid());
    if (!folder) return none(folder.error());
    auto wakes = std::make_unique<OwnSocket>();
    OwnSocket woken;
    if (!OwnSocket::pair(woken, *wakes)) return none(std::strerror(errno));
    std::string why;
    OwnSocket listening = socket_file::listen(*folder, why);
    if (!listening) return none(why);
    woken_ = std::move(woken);
    listening_ = std::move(listening);
    waker_ = wakes.release();
    inbox().locked([this](Inbox &now) { now.waker = waker_; });
    control::remove_stale(*folder);
}

void Server::run() {
    while (listening_) {
        inbox().locked([](Inbox &now) { now.pending = false; });
        try {
            deliver_answers(Clock::now());
            wait();
        } catch (...) {
            deferred_.clear();
            clients_.clear();  // out of host memory: clients may try again
            sleep_ms(10);
        }
    }
}

// Closes the socket, after which the thread ends.
void Server::stop(const std::string &why) {
    clients_.clear();
    listening_ = {};
    woken_ = {};
    socket_file::withdraw();
    log::write(LogLevel::warning, why + ": curb release no longer reaches this process");
}

// Answers the clients' requests, and drops those that have gone or have taken too long.
void Server::serve_clients(Clock::time_point now) {
    for (Connection &client : clients_)
        while (const auto line = client.line(now)) answer(client, *line, now);
    std::erase_if(clients_, [&](const Connection &client) {
        return client.done() || client.until().value_or(Clock::time_point::max()) <= now;
    });
}

void Server::renew_if_deleted(Clock::time_point now) {
    if (now < looked_ + kLookPause) return;
    looked_ = now;
    if (socket_file::is_there()) return;
    const auto folder = control::runtime_directory(*places_, geteuid());
    std::string why;
    OwnSocket fresh = folder ? socket_file::listen(*folder, why) : OwnSocket();
    if (!fresh) return;
    listening_ = std::move(fresh);
    log::write(LogLevel::info,
               "the file of the control socket was deleted, perhaps by a logout; there is another in " + folder->path);
}

// Returns the milliseconds until something is due without an event.
int Server::timeout(Clock::time_point now) const {
    Clock::time_point until = looked_ + kLookPause;
    if (now < paused_until_) until = paused_until_;
    for (const Deferred &one : deferred_) until = std::min(until, one.until);
    for (const Connection &client : clients_) until = std::min(until, client.until().value_or(until));
    return static_cast<int>(
        std::max<std::int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(until - now).count()));
}

void Server::wait() {
    if (!listening_.ours() || !woken_.ours() || !waker_->ours()) return stop("the program closed curb's descriptors");
    const Clock::time_point now = Clock::now();
    renew_if_deleted(now);
    serve_clients(now);
    std::array<pollfd, 2 + kClients> polled{};
    polled[0] = {woken_.number(), POLLIN, 0};
    polled[1] = {now < paused_until_ ? -1 : listening_.number(), POLLIN, 0};
    for (std::size_t i = 0; i < clients_.size(); ++i) polled[2 + i] = {clients_[i].number(), clients_[i].events(), 0};
    const auto wait_for_any = [&] {
        const own_thread::Asleep asleep;
        return poll(polled.data(), 2 + clients_.size(), timeout(now));
    };
    if (wait_for_any() < 0) {
        if (errno != EINTR) sleep_ms(1);  // the kernel has no memory: do not loop without a pause
        return;
    }
    const Clock::time_point then = Clock::now();
    for (std::size_t i = 0; i < clients_.size(); ++i)
        if (polled[2 + i].revents != 0) clients_[i].on(polled[2 + i].revents, then);
    // If drain() finds the other end closed, wait() notices it before the next poll.
    if (polled[0].revents != 0 && woken_.ours()) static_cast<void>(woken_.drain());
    if (polled[1].revents != 0) accept_clients(then);
}

// If all slots are taken, drops the client that has been idle longest. Never one that waits for an answer.
void Server::drop_idle_client() {
    if (clients_.size() < kClients) return;
    const auto longest =
        std::min_element(clients_.begin(), clients_.end(), [](const Connection &a, const Connection &b) {
            return a.until().value_or(Clock::time_point::max()) < b.until().value_or(Clock::time_point::max());
        });
    if (longest->until()) clients_.erase(longest);
}

void Server::accept_clients(Clock::time_point now) {
    for (std::size_t taken = 0; taken < kClients; ++taken) {  // limited, so that present clients are served in between
        if (!listening_.ours()) return;
        OwnSocket socket(accept4(listening_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!socket) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) paused_until_ = now + kPause;
            return;
        }
        ucred peer{};
        socklen_t size = sizeof peer;
        if (getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
            (peer.uid != geteuid() && peer.uid != 0))
            continue;
        drop_idle_client();
        Connection client(std::move(socket), ++last_id_, peer.pid, now);
        if (clients_.size() < kClients)
            clients_.push_back(std::move(client));
        else
            client.answer(control::Failure{control::kTooManyClients}, now, true);
    }
}

void Server::answer(Connection &client, const std::string &line, Clock::time_point now) {
    const auto request = control::parse_request(line);
    if (!request) return client.answer(control::Failure{request.error()}, now, true);
    const auto reply = std::visit([&](const auto &asked) { return on(asked, client.id(), now); }, *request);
    if (reply) client.answer(*reply, now);
}

Server::Immediate Server::on(const control::StatusRequest &asked, std::uint64_t client, Clock::time_point now) {
    if (!devices::any_stale()) return status::now(asked);
    return measured(client, now, [asked]() -> control::Reply { return status::now(asked); });
}

Server::Immediate Server::on(const policy::ReleaseRequest &asked, std::uint64_t client, Clock::time_point /*now*/) {
    AnswerSlot slot;
    if (!slot) return control::Failure{"too many releases are pending; try again"};
    if (!release::ask(
            {"curb release", asked, [client](const control::ReleaseReport &report) { post_answer(client, report); }}))
        return control::Failure{"no host memory"};  // short enough to need none
    slot.hand_over();
    return std::nullopt;
}

// Sets the cap at once, and answers after a measurement: without a cap the ledger may lack memory that the driver took
// by itself.
Server::Immediate Server::on(const control::CapRequest &asked, std::uint64_t client, Clock::time_point now) {
    const auto key = policy::parse_gpu_key(asked.gpu);
    if (!key) return control::Failure{"--gpu: " + key.error()};
    const auto setting_caps = [] { return inbox().locked([](const Inbox &in) { return in.setting_caps; }); };
    if (in_force::needs_indexes(*key) || setting_caps()) {
        AnswerSlot slot;
        if (!slot) return control::Failure{"too much has been asked for that is not done yet; try again"};
        const bool is_set_already = inbox().locked([&](Inbox &in) {
            in.caps.push_back({client, *key, asked.cap, asked.job});
            return std::exchange(in.setting_caps, true);
        });
        slot.hand_over();
        if (!is_set_already) worker::set_caps(set_waiting_caps);
        return std::nullopt;
    }
    control::Reply reply = runtime::enforce(*key, asked.cap, asked.job);
    auto *report = std::get_if<control::CapReport>(&reply);
    if (!report || asked.job || !devices::any_stale()) return reply;
    return measured(client, now, [report = std::move(*report)]() mutable -> control::Reply {
        for (control::CapChange &gpu : report.gpus) gpu.held = devices::at(gpu.ordinal).ledger.held();
        return report;
    });
}

// Opens or closes the gate, or begins a nap. After a close the client asks again until no call is under way.
Server::Immediate Server::on(const control::GateRequest &asked, std::uint64_t /*client*/, Clock::time_point /*now*/) {
    control::GateReport out;
    if (asked.nap) {
        if (!asked.close_for)
            out.why = nap::begin_soon();
        else if (const auto is_out = nap::leave_lightly(*asked.close_for))
            out.closed = *is_out;
        else
            out.why = is_out.error();
        return out;
    }
    if (!asked.close_for) {
        nap::end_soon();
        gate::open(gate::For::client, asked.took_ms);
        return out;
    }
    if (!gate::is_closed()) {
        out.bypasses = bypasses();
        if (!thunks::all_gated())
            out.bypasses.push_back(
                {"the program", "it looked up more of the driver's functions than curb has thunks for"});
    }
    const std::uint64_t lease_ms = std::min<std::uint64_t>(*asked.close_for, kLongestLeaseMs);
    if (nap::keep_out(lease_ms, asked.stays, asked.moved)) {
        out.closed = true;
        if (!asked.stays) out.stays = nap::why_not();
        return out;
    }
    if (nap::stay_out()) {
        out.closed = out.napped = true;
        return out;
    }
    const bool was_open = !gate::is_closed();
    const gate::Closing closing = gate::close(gate::For::client, std::chrono::milliseconds(lease_ms));
    out.closed = closing != gate::Closing::uncounted;
    if (closing == gate::Closing::taken) {  // soon the process runs again, or its nap can become a suspend
        out.waits_for = "cuCheckpointProcessLock, by which a nap begins,";
        return out;
    }
    if (was_open && out.closed) out.stays = nap::why_not();
    if (!out.stays.empty()) {
        gate::open(gate::For::client);
        out.closed = false;
        return out;
    }
    if (!out.closed) out.why = "the kernel has no membarrier, so it is not known which calls are under way";
    if (out.closed && asked.moved != 0) nap::moved_out_by_command(asked.moved);
    if (const void *slot = out.closed ? gate::call_under_way() : nullptr) out.waits_for = name_of_slot(slot);
    return out;
}

// The answer waits while this process is out of its GPUs: then it comes back first.
Server::Immediate Server::on(const control::MemoryRequest &asked, std::uint64_t client, Clock::time_point /*now*/) {
    if (asked.closed) return blocks::take_back(asked);
    AnswerSlot slot;
    if (!slot) return control::Failure{control::kTooManyClients};
    lending::ask(asked, find(client)->peer(), [client](control::MemoryAnswer given) {
        post_answer({client, std::move(given.reply), std::move(given.memory)});
    });
    slot.hand_over();
    return std::nullopt;
}

Server::Immediate Server::measured(std::uint64_t client, Clock::time_point now, std::function<control::Reply()> reply) {
    const std::uint64_t seen = inbox().locked([](const Inbox &in) { return in.measurements; });
    deferred_.push_back({client, now + kMeasureWait, seen, std::move(reply)});
    worker::measure(note_measurement);
    return std::nullopt;
}

Connection *Server::find(std::uint64_t client) {
    const auto found =
        std::find_if(clients_.begin(), clients_.end(), [&](const Connection &each) { return each.id() == client; });
    return found == clients_.end() ? nullptr : &*found;
}

// Sends the finished answers to the clients that still wait.
void Server::deliver_answers(Clock::time_point now) {
    std::vector<Inbox::Answer> done;
    const std::uint64_t measurements = inbox().locked([&](Inbox &in) {
        done.reserve(in.asked);  // keeps the slots of pending answers reserved
        done.swap(in.answers);
        return in.measurements;
    });
    for (Inbox::Answer &one : done) {
        Connection *client = find(one.client);
        if (!client) continue;
        if (one.reply)
            client->answer(*one.reply, std::move(one.beside), now);
        else
            client->answer(control::Failure{"it is done, but there was no memory for the report"}, now);
    }
    for (std::size_t i = 0; i < deferred_.size();) {
        if (deferred_[i].seen == measurements && deferred_[i].until > now) {
            ++i;
            continue;
        }
        const Deferred one = std::move(deferred_[i]);
        deferred_.erase(deferred_.begin() + static_cast<std::ptrdiff_t>(i));
        if (Connection *client = find(one.client)) client->answer(one.reply(), now);
    }
}

const control::Places *socket_places = nullptr;

void serve() {
    const own_thread::Awake awake;
    Server server;  // the thread is never joined: it ends with the process
    // Try again if out of host memory, perhaps only for a moment, unless the socket is already open.
    constexpr int kTries = 40;
    for (int tries = 1;; ++tries) {
        try {
            server.open(*socket_places);
            break;
        } catch (...) {
            if (server.is_open()) break;
        }
        if (tries == kTries) {
            log::write(LogLevel::info, "out of host memory: no control socket");
            break;
        }
        sleep_ms(50);
    }
    server.run();
}

}  // namespace

void start() noexcept try {
    // Read here, because the program's other threads may change the environment later.
    socket_places = new control::Places(control::places());
    wait_queue::use(
        *socket_places,
        {[]() noexcept { return in_force::snapshot()->policy.share != policy::Share::none; }, turns::in_turns});
    blocks::use(*socket_places);
    socket_file::until_exit();
    inbox();
    own_thread::start(serve, "curb-control");
} catch (...) {
    log::write(LogLevel::info, "out of host memory: no control socket");
}

}  // namespace curb::shim::server
