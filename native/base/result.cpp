#include "base/result.h"

namespace luce {

std::string_view name_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::bad_args: return "bad_args";
        case ErrorCode::unknown_command: return "unknown_command";
        case ErrorCode::line_too_long: return "line_too_long";
        case ErrorCode::no_such_file: return "no_such_file";
        case ErrorCode::bad_prompt_file: return "bad_prompt_file";
        case ErrorCode::empty_prompt: return "empty_prompt";
        case ErrorCode::prompt_too_long: return "prompt_too_long";
        case ErrorCode::token_out_of_range: return "token_out_of_range";
        case ErrorCode::bad_slot: return "bad_slot";
        case ErrorCode::empty_slot: return "empty_slot";
        case ErrorCode::prefix_mismatch: return "prefix_mismatch";
        case ErrorCode::unsupported: return "unsupported";
        case ErrorCode::bad_grammar: return "bad_grammar";
        case ErrorCode::no_draft: return "no_draft";
        case ErrorCode::busy: return "busy";
        case ErrorCode::queue_full: return "queue_full";
        case ErrorCode::duplicate_id: return "duplicate_id";
        case ErrorCode::unknown_id: return "unknown_id";
        case ErrorCode::no_stream_fd: return "no_stream_fd";
        case ErrorCode::parked: return "parked";
        case ErrorCode::out_of_memory: return "out_of_memory";
        case ErrorCode::no_room: return "no_room";
        case ErrorCode::io_error: return "io_error";
        case ErrorCode::bad_snapshot: return "bad_snapshot";
        case ErrorCode::bad_image: return "bad_image";
        case ErrorCode::cancelled: return "cancelled";
        case ErrorCode::start_failed: return "start_failed";
        case ErrorCode::internal: return "internal";
    }
    return "internal";
}

}  // namespace luce
