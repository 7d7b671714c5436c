// Result: a value or an error with a stable code. Errors are values at every border between parts, so that no part
// has to know how another one fails. Knows nothing of the protocol: the daemon prints codes, it does not define them.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace luce {

// The stable codes of PROTOCOL.md ("Errors"), one enumerator each. The text may change, the code may not.
enum class ErrorCode {
    bad_args,
    unknown_command,
    line_too_long,
    no_such_file,
    bad_prompt_file,
    empty_prompt,
    prompt_too_long,
    token_out_of_range,
    bad_slot,
    empty_slot,
    prefix_mismatch,
    unsupported,
    bad_grammar,
    no_draft,
    busy,
    queue_full,
    duplicate_id,
    unknown_id,
    no_stream_fd,
    parked,
    out_of_memory,
    no_room,
    io_error,
    bad_snapshot,
    bad_image,
    cancelled,
    start_failed,
    internal,
};

// The code as it stands on the wire.
std::string_view name_of(ErrorCode code);

// What went wrong, for a program (code) and for a person (text: one line, says what to do where it can).
struct Error {
    ErrorCode code = ErrorCode::internal;
    std::string text;
};

template <typename T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::move(value)) {}
    Result(Error error) : state_(std::move(error)) {}

    bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }

    // REQUIRES: ok()
    T& value() & {
        assert(ok());
        return *std::get_if<0>(&state_);
    }
    const T& value() const& {
        assert(ok());
        return *std::get_if<0>(&state_);
    }
    T&& value() && {
        assert(ok());
        return std::move(*std::get_if<0>(&state_));
    }

    // REQUIRES: !ok()
    const Error& error() const {
        assert(!ok());
        return *std::get_if<1>(&state_);
    }

private:
    std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}

    bool ok() const { return !error_; }
    explicit operator bool() const { return ok(); }

    // REQUIRES: !ok()
    const Error& error() const {
        assert(!ok());
        return *error_;
    }

private:
    std::optional<Error> error_;
};

}  // namespace luce
