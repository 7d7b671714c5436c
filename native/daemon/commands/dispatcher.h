// Dispatcher: every command gets exactly one final reply, and here is where. Translates between the wire's words and
// the engine's, and keeps what belongs to neither: which request id is whose, and whose turn it is.
//
// Turns. In the plain dialect tokens carry no id, so commands are answered in order, one generation at a time; only
// ping, status, cancel and quit are answered at once. In the multiplexed dialect every command is served at once but
// the positional ones, which all run as request 0 and so wait for each other.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "daemon/commands/image_commands.h"
#include "daemon/commands/request_builder.h"
#include "daemon/commands/slot_commands.h"
#include "daemon/loop/output.h"
#include "engine/engine.h"
#include "wire/command.h"
#include "wire/command_parser.h"
#include "wire/line_decoder.h"

namespace luce::daemon {

// The small model that says what of a prompt is read: to give its memory back, and to take another one.
struct ScorerControl {
    std::function<void()> free;
    std::function<Result<void>(const std::string& path)> open;
};

using StatusFields = std::vector<std::pair<std::string, std::string>>;

class Dispatcher {
public:
    // `describe` adds what the engine does not know to a status reply. All must outlive the dispatcher.
    Dispatcher(engine::Engine& engine, SlotCommands& slots, ImageCommands& images, ScorerControl scorer, Output& output,
               const Clock& clock, RequestBuilder& requests, std::size_t n_max_turns,
               std::function<StatusFields()> describe);

    void on_line(const wire::DecodedLine& line);
    // take_turns() has to follow, once the engine has let go of what has ended.
    void on_events(const std::vector<engine::Event>& events);
    void take_turns();

    // A reader is gone: end what was written for it.
    void on_reader_gone();

    // Whether more lines may come: not while too many wait for their turn in the plain dialect, or too much output
    // waits for its readers.
    bool wants_lines() const;

    // `quit` was read: nothing more is served.
    bool has_quit() const { return has_quit_; }

    // Ends everything, each command with its reply; for quit and for signals.
    void quit();

    // The reply to quit() is the last one: it waits for what is being saved or loaded. Called when that may be done.
    void take_leave();

    // As quit, but everybody is told the error: the engine is beyond use.
    void give_up(const Error& error);

    bool is_idle() const {
        return running_.empty() && turns_.empty() && slots_.n_pending() == 0 && images_.n_pending() == 0;
    }

private:
    struct Running {
        wire::RequestId id = 0;
        wire::Generate::Form form = wire::Generate::Form::positional;
        std::optional<std::string> output_path;
        Tokens output;          // file form: what goes into the file
        double progress_s = 0;  // when its last [prefill] line was sent
        bool takes_turns = false;
        std::vector<std::int32_t> snapshots;  // slots of snap= that nothing was said about yet

        // Replies name the id only of commands that brought one.
        std::optional<wire::RequestId> reply_id() const {
            return form == wire::Generate::Form::named ? std::optional(id) : std::nullopt;
        }
    };
    struct Turn {
        std::variant<GeneratingCommand, SlotCommand, wire::FreeScorer, wire::ParseError> what;
        std::size_t n_bytes = 0;
        bool is_cancelled = false;
    };

    void on_command(wire::Command command, std::size_t n_bytes);
    void on_generate(GeneratingCommand command, std::size_t n_bytes);
    void on_parse_error(wire::ParseError error, std::size_t n_bytes);
    void on_cancel(const wire::Cancel& command);
    void on_status(const wire::Status& command);
    void on_slot_command(SlotCommand command, std::size_t n_bytes);
    void serve_slot_command(const SlotCommand& command, bool takes_turns);
    Result<std::optional<engine::RequestKey>> named_request(const SlotCommand& command) const;
    void on_snapshot(const engine::SnapshotEvent& event);
    void report_missing_snapshots(const Running& running);
    void wait_for_turn(Turn turn);
    void start(const GeneratingCommand& command, bool takes_turns);
    Result<void> submit(const GeneratingCommand& command, engine::RequestKey key);
    void end_before_start(const GeneratingCommand& command);
    void refuse(const GeneratingCommand& command, const Error& error, bool owns_id);
    void finish(engine::RequestKey key, const engine::GenerationStats& stats);
    void fail(engine::RequestKey key, const Error& error);
    void forget(std::map<engine::RequestKey, Running>::iterator it);
    void end_all();
    bool is_turn_taken() const { return turn_taken_.has_value() || is_serving_turn_; }

    void on_token(const engine::TokenEvent& event);
    void on_prompt_logprobs(const engine::PromptLogprobsEvent& event);
    void on_prefill(const engine::PrefillEvent& event);
    void on_chosen(const engine::ChosenEvent& event);

    engine::Engine& engine_;
    SlotCommands& slots_;
    ImageCommands& images_;
    ScorerControl scorer_;
    Output& output_;
    const Clock& clock_;
    RequestBuilder& requests_;
    std::size_t n_max_turns_;
    std::function<StatusFields()> describe_;
    std::uint64_t n_requests_ = 0;
    std::map<engine::RequestKey, Running> running_;
    std::map<wire::RequestId, engine::RequestKey> keys_;
    std::deque<Turn> turns_;
    std::size_t n_turn_bytes_ = 0;
    std::optional<engine::RequestKey> turn_taken_;
    bool is_serving_turn_ = false;  // a slot command has the turn and waits for a file
    std::deque<std::pair<wire::RequestId, engine::RequestKey>> ended_;  // the last ones, for snapshot of=
    std::optional<engine::RequestKey> last_turn_;                       // the last generation that took a turn
    bool has_quit_ = false;
    bool owes_ok_ = false;  // quit() is not answered yet
};

}  // namespace luce::daemon
