#include "control/memory.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "connect.hpp"
#include "control/lines.hpp"
#include "control/proc.hpp"
#include "exchange.hpp"

namespace curb::control {
namespace {

using std::chrono::milliseconds;

// Returns the descriptor that came with a message; empty if none did.
Descriptor descriptor_in(msghdr &message) {
    Descriptor out;
    for (cmsghdr *part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
        out = Descriptor(above_standard(fd));
    }
    return out;
}

// One connection, its request and its answer.
class Asking {
  public:
    Asking(const Places &places, const Exporter &exporter, const std::string &line)
        : places_(places), exporter_(exporter), line_(line) {}

    // True once there is a connection. Else why() says why there cannot be one; empty: another attempt may succeed.
    bool connect() {
        why_.clear();
        const std::string process = process_text(exporter_.process.pid), name = socket_name(exporter_.process);
        bool is_busy = false;
        for (const Folder &folder : folders_of(places_, exporter_.user)) {
            int error = 0;
            connection_ = connect_to(folder.path + "/" + name, folder.owner, error);
            const auto who = connection_ ? peer(connection_) : std::nullopt;
            if (who && speaks_for(*who, folder)) return true;
            connection_ = {};
            is_busy |= error == EAGAIN || error == EMFILE || error == ENFILE;
        }
        if (is_busy) return false;
        if (exporter_.user != ::geteuid() && ::geteuid() != 0)
            why_ = process + " belongs to user " + std::to_string(exporter_.user) +
                   ": only that user's processes, and root's, can open its memory";
        else
            why_ = process + " has ended, or has no control socket in the runtime directory of this process";
        return false;
    }
    [[nodiscard]] const std::string &why() const { return why_; }

    // Sends and reads what it can within `ms`. Returns the answer once it is complete. hung_up(): there will be none.
    std::optional<Reply> go_on(int ms) {
        pollfd polled{connection_.number(), static_cast<short>(sent_ < line_.size() ? POLLOUT : POLLIN), 0};
        if (::poll(&polled, 1, ms) <= 0) return std::nullopt;
        if (sent_ < line_.size()) {
            const ssize_t sent =
                ::send(connection_.number(), line_.data() + sent_, line_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent > 0) sent_ += static_cast<std::size_t>(sent);
            has_hung_up_ = sent < 0 && errno != EAGAIN && errno != EINTR;
            return std::nullopt;
        }
        return read();
    }
    [[nodiscard]] bool hung_up() const { return has_hung_up_; }
    Descriptor take_memory() { return std::move(memory_); }
    // Sends another request, and waits for no answer: by this connection, since another one takes descriptors, of which
    // the program may have none left.
    void send_last(const std::string &line) const {
        static_cast<void>(::send(connection_.number(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    }

  private:
    std::optional<Reply> read() {
        std::array<char, 1024> block;
        alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
        iovec into{block.data(), block.size()};
        msghdr message{};
        message.msg_iov = &into;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        const ssize_t got = ::recvmsg(connection_.number(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
        has_hung_up_ = got <= 0;
        if (has_hung_up_) return std::nullopt;
        if (Descriptor memory = descriptor_in(message)) memory_ = std::move(memory);
        lines_.take({block.data(), static_cast<std::size_t>(got)});
        const auto line = lines_.next();
        has_hung_up_ = !line && lines_.too_long();
        if (!line) return std::nullopt;
        auto reply = parse_reply(*line);
        return reply ? std::move(reply).value() : Failure{reply.error()};
    }

    const Places &places_;
    const Exporter &exporter_;
    const std::string &line_;
    Descriptor connection_;
    std::size_t sent_ = 0;
    bool has_hung_up_ = false;
    std::string why_;
    Lines lines_{kLongestRequest};
    Descriptor memory_;
};

}  // namespace

MemoryAnswer ask_for_memory(const Places &places, const Exporter &exporter, const MemoryRequest &request,
                            milliseconds patience, const std::function<void()> &is_late) {
    constexpr milliseconds kLate{5000};
    const std::string line = text(request) + "\n";
    const int pid = exporter.process.pid;
    const Deadline until(patience), late(kLate);
    bool said_late = false;
    for (;;) {
        Asking asking(places, exporter, line);
        const bool is_connected = asking.connect();
        if (!is_connected && !asking.why().empty()) return {Failure{asking.why()}};
        while (is_connected && !asking.hung_up()) {
            auto reply = asking.go_on(kAgain * 20);
            const auto *failure = reply ? std::get_if<Failure>(&*reply) : nullptr;
            if (failure && failure->message == kTooManyClients) break;
            if (reply) {
                Descriptor memory = asking.take_memory();
                const auto *report = std::get_if<MemoryReport>(&*reply);
                if (report && !request.closed && !memory.ours())
                    asking.send_last(text(MemoryRequest{request.handle, report->opening}) + "\n");
                return {std::move(*reply), std::move(memory)};
            }
            if (until.passed()) return {Failure{late_text(pid, patience)}};
            if (late.passed() && !std::exchange(said_late, true)) is_late();
        }
        if (until.passed()) return {Failure{late_text(pid, patience)}};
        ::poll(nullptr, 0, kAgain);  // it serves as many as it can, or has dropped this connection
    }
}

}  // namespace curb::control
