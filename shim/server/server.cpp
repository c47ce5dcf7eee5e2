#include "server.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "connection.hpp"
#include "control/runtime_dir.hpp"
#include "devices.hpp"
#include "keep_errno.hpp"
#include "leaked.hpp"
#include "log.hpp"
#include "own_socket.hpp"
#include "own_thread.hpp"
#include "policy_watcher.hpp"
#include "process.hpp"
#include "queue.hpp"
#include "socket_file.hpp"
#include "status.hpp"
#include "worker.hpp"

namespace curb::shim::server {
// The devices are reconciled, as worker::measure() was asked.
void measured() noexcept;

namespace {

using Clock = Connection::Clock;
using policy::LogLevel;

constexpr std::size_t kClients = 16;
constexpr std::size_t kQuestions = 64;     // that others are to answer and have not yet
constexpr std::chrono::seconds kPause{1};  // when the process has no descriptor left for another client
// How long a client may wait for the books to be held against the devices. As they are he is told at once; most of it
// is NVML's start (9 ms).
constexpr std::chrono::milliseconds kLook{20};

// What other threads tell the control thread. Leaked: they may until the process is gone.
struct Told {
    std::mutex mutex;
    struct Answer {
        std::uint64_t client;
        std::optional<control::Reply> reply;  // none: no memory was left for it
    };
    std::vector<Answer> answers;
    std::size_t asked = 0;  // questions that have not been answered
    struct Cap {
        std::uint64_t client;
        policy::GpuKey key;
        std::optional<policy::Size> cap;
    };
    std::list<Cap> caps;  // that wait for NVML, or behind one that does: in the order in which they were asked for
    bool setting_caps = false;  // a thread takes them
};
Told &told() noexcept { return leaked<Told>(); }

// Set: something is told and the thread has not begun to look yet.
constinit std::atomic<bool> pending{false};
// How often the books have been held against the devices for us.
constinit std::atomic<std::uint64_t> measurements{0};
// The socket that wakes the thread, and never closed by us: another thread may be about to use it.
constinit std::atomic<const OwnSocket *> waker{nullptr};

// Makes the thread look at what it was told. Leaves errno.
void wake() noexcept {
    if (pending.exchange(true, std::memory_order_seq_cst)) return;
    const KeepErrno keep_errno;
    if (const OwnSocket *socket = waker.load(std::memory_order_acquire)) socket->wake();
}

// Whoever answers elsewhere: room for the answer is there before it is asked. False: too many are.
bool begin_question() {
    const std::scoped_lock lock(told().mutex);
    if (told().asked == kQuestions) return false;
    told().answers.reserve(told().answers.size() + told().asked + 1);
    ++told().asked;
    return true;
}
// What came of it.
template <class Report>
void answered(std::uint64_t client, const Report &report) noexcept {
    {
        const std::scoped_lock lock(told().mutex);
        --told().asked;
        Told::Answer &one = told().answers.emplace_back();  // room was reserved
        one.client = client;
        try {
            one.reply = report;
        } catch (...) {
            one.reply.reset();
        }
    }
    wake();
}
// It could not be asked after all.
void drop_question() noexcept {
    const std::scoped_lock lock(told().mutex);
    --told().asked;
}

// In a thread of its own: NVML's start takes milliseconds, and may wait for a driver that is stuck.
void set_waiting_caps() {
    in_force::find_indexes();
    for (;;) {
        Told::Cap one;
        {
            const std::scoped_lock lock(told().mutex);
            told().setting_caps = !told().caps.empty();
            if (!told().setting_caps) return;
            one = std::move(told().caps.front());
            told().caps.pop_front();
        }
        answered(one.client, process::enforce(one.key, one.cap));
    }
}

class Server {
  public:
    // Makes the socket, or says why there is none.
    void open(const control::Places &places);
    [[nodiscard]] bool is_open() const { return static_cast<bool>(listening_); }
    // As long as there is a socket.
    void run();

  private:
    void stop(const std::string &why);
    void wait();
    void take_in(Clock::time_point now);
    void answer(Connection &client, const std::string &line, Clock::time_point now);
    // The answer to each kind of request; none: it comes later.
    using Now = std::optional<control::Reply>;
    Now on(const control::StatusRequest &asked, std::uint64_t client, Clock::time_point now);
    Now on(const policy::ReleaseRequest &asked, std::uint64_t client, Clock::time_point now);
    Now on(const control::CapRequest &asked, std::uint64_t client, Clock::time_point now);
    Now on(const control::ReloadRequest &asked, std::uint64_t client, Clock::time_point now);
    Now measured(std::uint64_t client, Clock::time_point now, std::function<control::Reply()> reply);
    void hand_back(Clock::time_point now);
    Connection *find(std::uint64_t client);
    void make_room();

    OwnSocket listening_;
    OwnSocket woken_;
    std::vector<Connection> clients_;
    // Answers that are held for a look at the devices.
    struct Held {
        std::uint64_t client;
        Clock::time_point until;
        std::uint64_t seen;  // measurements, when it was asked for
        std::function<control::Reply()> reply;
    };
    std::vector<Held> held_;
    std::uint64_t last_id_ = 0;
    Clock::time_point paused_until_{};
};

void Server::open(const control::Places &places) {
    const auto none = [](const std::string &why) {
        if (!why.empty())
            log::write(LogLevel::info, "no control socket, so curb release does not reach this process: " + why);
    };
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
    waker.store(wakes.release(), std::memory_order_release);
    control::remove_stale(*folder);
}

void Server::run() {
    while (listening_) {
        pending.store(false, std::memory_order_seq_cst);
        try {
            hand_back(Clock::now());
            wait();
        } catch (...) {
            held_.clear();
            clients_.clear();  // out of host memory: whoever asks again may be luckier
            usleep(10'000);
        }
    }
}

// The socket is given up, and the thread ends.
void Server::stop(const std::string &why) {
    clients_.clear();
    listening_ = {};
    woken_ = {};
    socket_file::withdraw();
    log::write(LogLevel::warning, why + ": curb release no longer reaches this process");
}

void Server::wait() {
    if (!listening_.ours() || !woken_.ours() || !waker.load(std::memory_order_relaxed)->ours())
        return stop("the program closed curb's descriptors");
    const Clock::time_point now = Clock::now();
    for (Connection &client : clients_)
        while (const auto line = client.line(now)) answer(client, *line, now);
    std::erase_if(clients_, [&](const Connection &client) {
        return client.done() || client.until().value_or(Clock::time_point::max()) <= now;
    });

    std::optional<Clock::time_point> until;
    const auto no_later_than = [&](Clock::time_point time) { until = std::min(until.value_or(time), time); };
    const bool paused = now < paused_until_;
    if (paused) no_later_than(paused_until_);
    for (const Held &one : held_) no_later_than(one.until);
    for (const Connection &client : clients_)
        if (const auto idle = client.until()) no_later_than(*idle);

    std::array<pollfd, 2 + kClients> polled{};
    polled[0] = {woken_.number(), POLLIN, 0};
    polled[1] = {paused ? -1 : listening_.number(), POLLIN, 0};
    for (std::size_t i = 0; i < clients_.size(); ++i) polled[2 + i] = {clients_[i].number(), clients_[i].events(), 0};
    int timeout = -1;
    if (until)
        timeout = static_cast<int>(
            std::max<std::int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(*until - now).count()));
    const auto wait_for_any = [&] {
        const own_thread::Asleep asleep;
        return poll(polled.data(), 2 + clients_.size(), timeout);
    };
    if (wait_for_any() < 0) {
        if (errno != EINTR) usleep(1000);  // no memory in the kernel: do not turn that into a loop
        return;
    }
    const Clock::time_point then = Clock::now();
    for (std::size_t i = 0; i < clients_.size(); ++i)
        if (polled[2 + i].revents != 0) clients_[i].on(polled[2 + i].revents, then);
    // That the other end is closed is seen before the next sleep.
    if (polled[0].revents != 0 && woken_.ours()) static_cast<void>(woken_.drain());
    if (polled[1].revents != 0) take_in(then);
}

// Room for one more client: that of the one that has been asking for the longest time, not of one that waits for us.
void Server::make_room() {
    if (clients_.size() < kClients) return;
    const auto longest =
        std::min_element(clients_.begin(), clients_.end(), [](const Connection &a, const Connection &b) {
            return a.until().value_or(Clock::time_point::max()) < b.until().value_or(Clock::time_point::max());
        });
    if (longest->until()) clients_.erase(longest);
}

void Server::take_in(Clock::time_point now) {
    for (std::size_t taken = 0; taken < kClients; ++taken) {  // those that are here are served in between
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
        make_room();
        Connection client(std::move(socket), ++last_id_, now);
        if (clients_.size() < kClients)
            clients_.push_back(std::move(client));
        else
            client.answer(control::Failure{"too many others wait for an answer of this process; try again"}, now, true);
    }
}

void Server::answer(Connection &client, const std::string &line, Clock::time_point now) {
    const auto request = control::parse_request(line);
    if (!request) return client.answer(control::Failure{request.error()}, now, true);
    const auto reply = std::visit([&](const auto &asked) { return on(asked, client.id(), now); }, *request);
    if (reply) client.answer(*reply, now);
}

Server::Now Server::on(const control::StatusRequest &asked, std::uint64_t client, Clock::time_point now) {
    if (!devices::any_stale()) return status::now(asked);
    return measured(client, now, [asked]() -> control::Reply { return status::now(asked); });
}

Server::Now Server::on(const policy::ReleaseRequest &asked, std::uint64_t client, Clock::time_point /*now*/) {
    if (!begin_question())
        return control::Failure{"too many releases have been asked for that are not done yet; try again"};
    if (release::ask(
            {"curb release", asked, [client](const control::ReleaseReport &report) { answered(client, report); }}))
        return std::nullopt;
    drop_question();
    return control::Failure{"no host memory"};  // short enough to need none
}

// In force before anything else is done, and told once it is known how much is held: without a cap the books may lack
// what the driver takes of its own.
Server::Now Server::on(const control::CapRequest &asked, std::uint64_t client, Clock::time_point now) {
    const auto key = policy::parse_gpu_key(asked.gpu);
    if (!key) return control::Failure{"--gpu: " + key.error()};
    const auto setting_caps = [] {
        const std::scoped_lock lock(told().mutex);
        return told().setting_caps;
    };
    if (in_force::needs_indexes(*key) || setting_caps()) {
        if (!begin_question()) return control::Failure{"too much has been asked for that is not done yet; try again"};
        {
            const std::scoped_lock lock(told().mutex);
            told().caps.push_back({client, *key, asked.cap});
            if (std::exchange(told().setting_caps, true)) return std::nullopt;
        }
        if (own_thread::start(set_waiting_caps, "curb-nvml")) return std::nullopt;
        {
            const std::scoped_lock lock(told().mutex);
            told().caps.clear();  // this one alone: only this thread adds any
            told().setting_caps = false;
        }
        drop_question();
        return control::Failure{"no thread could be started to ask NVML which GPU is meant; try again"};
    }
    control::Reply reply = process::enforce(*key, asked.cap);
    auto *report = std::get_if<control::CapReport>(&reply);
    if (!report || !devices::any_stale()) return reply;
    return measured(client, now, [report = std::move(*report)]() mutable -> control::Reply {
        for (control::CapChange &gpu : report.gpus) gpu.held = devices::at(gpu.ordinal).ledger.held();
        return report;
    });
}

Server::Now Server::on(const control::ReloadRequest & /*asked*/, std::uint64_t client, Clock::time_point /*now*/) {
    if (!begin_question()) return control::Failure{"too much has been asked for that is not done yet; try again"};
    if (policy_watcher::reload([client](const control::Reply &reply) { answered(client, reply); })) return std::nullopt;
    drop_question();
    return control::Failure{policy_watcher::nothing_to_read()};
}

Server::Now Server::measured(std::uint64_t client, Clock::time_point now, std::function<control::Reply()> reply) {
    held_.push_back({client, now + kLook, measurements.load(std::memory_order_seq_cst), std::move(reply)});
    worker::measure(server::measured);
    return std::nullopt;
}

Connection *Server::find(std::uint64_t client) {
    const auto found =
        std::find_if(clients_.begin(), clients_.end(), [&](const Connection &each) { return each.id() == client; });
    return found == clients_.end() ? nullptr : &*found;
}

// To those who still wait for it.
void Server::hand_back(Clock::time_point now) {
    std::vector<Told::Answer> done;
    {
        const std::scoped_lock lock(told().mutex);
        done.reserve(told().asked);  // what is swapped in must hold what is still to come
        done.swap(told().answers);
    }
    for (const Told::Answer &one : done) {
        Connection *client = find(one.client);
        if (!client) continue;
        if (one.reply)
            client->answer(*one.reply, now);
        else
            client->answer(control::Failure{"it is done, but there is no memory to say what came of it"}, now);
    }
    const std::uint64_t count = measurements.load(std::memory_order_seq_cst);
    for (std::size_t i = 0; i < held_.size();) {
        if (held_[i].seen == count && held_[i].until > now) {
            ++i;
            continue;
        }
        const Held one = std::move(held_[i]);
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
        if (Connection *client = find(one.client)) client->answer(one.reply(), now);
    }
}

const control::Places *around = nullptr;

void serve() {
    const own_thread::Awake awake;
    Server server;  // on a thread that nobody joins: at exit it goes with the process
    // Out of host memory, perhaps for a moment. What has been opened when that happens stays.
    constexpr int kTries = 40;
    for (int tries = 1;; ++tries) {
        try {
            server.open(*around);
            break;
        } catch (...) {
            if (server.is_open()) break;
        }
        if (tries == kTries) {
            log::write(LogLevel::info, "out of host memory: no control socket");
            break;
        }
        constexpr timespec kMoment{0, 50'000'000};
        nanosleep(&kMoment, nullptr);
    }
    server.run();
}

}  // namespace

void measured() noexcept {
    measurements.fetch_add(1, std::memory_order_seq_cst);
    wake();
}

void start() noexcept try {
    // Here, because the program's other threads may change the environment later.
    around = new control::Places(control::places());
    socket_file::until_exit();
    told();
    own_thread::start(serve, "curb-control");
} catch (...) {
    log::write(LogLevel::info, "out of host memory: no control socket");
}

void in_fork_child() noexcept {
    socket_file::in_fork_child();
    OwnSocket::close_in_fork_child();
}

}  // namespace curb::shim::server
