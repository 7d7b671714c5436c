// Output: the daemon's two streams, replies on stdout and token records on the token fd, in the dialect that was
// chosen. The only place that turns replies and tokens into bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/loop/fd_writer.h"
#include "wire/reply.h"
#include "wire/token_record.h"

namespace luce::daemon {

class Output {
public:
    // `token_fd`: none if the daemon was started without --stream-fd.
    Output(int reply_fd, std::optional<int> token_fd, wire::Dialect dialect) : replies_(reply_fd), dialect_(dialect) {
        if (token_fd) tokens_.emplace(*token_fd);
    }

    wire::Dialect dialect() const { return dialect_; }
    bool is_multiplexed() const { return dialect_ == wire::Dialect::multiplexed; }

    bool has_token_reader() const { return tokens_ && !tokens_->is_closed(); }
    bool has_reply_reader() const { return !replies_.is_closed(); }

    // Why tokens cannot be written any more, if not for want of a reader.
    std::optional<std::string> token_failure() const { return tokens_ ? tokens_->failure() : std::nullopt; }

    // Nobody is left to talk to.
    bool is_deserted() const { return !has_token_reader() && !has_reply_reader(); }

    void send_reply(const wire::Reply& reply) { replies_.append(wire::format_reply(reply)); }

    void send_token(wire::RequestId id, std::int32_t value) {
        if (!tokens_) return;
        record_.clear();
        wire::append_record(record_, dialect_, id, value);
        tokens_->append(record_);
    }

    void send_sentinel(wire::RequestId id) { send_token(id, wire::kSentinel); }

    // Tokens go out before the replies that speak of them.
    void flush() {
        if (tokens_) tokens_->flush();
        replies_.flush();
    }

    std::size_t backlog_bytes() const { return replies_.backlog_bytes() + (tokens_ ? tokens_->backlog_bytes() : 0); }

    FdWriter& replies() { return replies_; }
    FdWriter* tokens() { return tokens_ ? &*tokens_ : nullptr; }

private:
    FdWriter replies_;
    std::optional<FdWriter> tokens_;
    wire::Dialect dialect_;
    std::string record_;
};

}  // namespace luce::daemon
