#include "daemon/commands/dispatcher.h"

#include <memory>
#include <new>
#include <type_traits>

#include "base/atomic_file.h"
#include "base/log.h"
#include "daemon/commands/prompt_file.h"
#include "daemon/commands/reply_builder.h"

namespace luce::daemon {
namespace {

constexpr double kProgressInterval_s = 0.1;
constexpr std::size_t kMaxEnded = 64;  // whose numbers are remembered for snapshot of=
constexpr std::size_t kMaxTurnBytes = 64u << 20;
constexpr std::size_t kMaxBacklogBytes = 64u << 20;

bool needs_token_reader(const GeneratingCommand& command) { return command.form != wire::Generate::Form::file; }

}  // namespace

Dispatcher::Dispatcher(engine::Engine& engine, SlotCommands& slots, ImageCommands& images, ScorerControl scorer,
                       Output& output, const Clock& clock, RequestBuilder& requests, std::size_t n_max_turns,
                       std::function<StatusFields()> describe)
    : engine_(engine),
      slots_(slots),
      images_(images),
      scorer_(std::move(scorer)),
      output_(output),
      clock_(clock),
      requests_(requests),
      n_max_turns_(n_max_turns),
      describe_(std::move(describe)) {}

bool Dispatcher::wants_lines() const {
    if (has_quit_ || output_.backlog_bytes() > kMaxBacklogBytes) return false;
    const bool full = turns_.size() >= n_max_turns_ || n_turn_bytes_ > kMaxTurnBytes;
    return output_.is_multiplexed() || !full;
}

void Dispatcher::on_line(const wire::DecodedLine& line) {
    if (line.too_long) {
        const std::string limit = std::to_string(wire::kMaxLineBytes);
        on_parse_error({{ErrorCode::line_too_long, "a line may have " + limit + " bytes; pass the prompt as a file"},
                        std::nullopt,
                        true},
                       0);
        return;
    }
    auto parsed = wire::parse_command(line.text);
    if (auto* error = std::get_if<wire::ParseError>(&parsed)) {
        on_parse_error(std::move(*error), line.text.size());
    } else {
        on_command(std::move(std::get<wire::Command>(parsed)), line.text.size());
    }
}

void Dispatcher::on_command(wire::Command command, std::size_t n_bytes) {
    std::visit(
        [&](auto& which) {
            using T = std::decay_t<decltype(which)>;
            if constexpr (std::is_same_v<T, wire::Generate> || std::is_same_v<T, wire::Compress>) {
                on_generate(GeneratingCommand(std::move(which)), n_bytes);
            }
            if constexpr (std::is_same_v<T, wire::FreeScorer>) wait_for_turn({which, n_bytes});
            if constexpr (std::is_same_v<T, wire::Embed>) {
                output_.send_reply(wire::Err{
                    which.id, {ErrorCode::unsupported, "this daemon gives no vectors: start one with --embedding"}});
            }
            if constexpr (std::is_same_v<T, wire::Cancel>) on_cancel(which);
            if constexpr (std::is_same_v<T, wire::Status>) on_status(which);
            if constexpr (std::is_same_v<T, wire::Ping>) output_.send_reply(wire::Pong{which.word});
            if constexpr (std::is_same_v<T, wire::Quit>) quit();
            if constexpr (std::is_same_v<T, wire::DescribeImage>) {
                images_.describe(which, [this](const wire::Reply& reply) { output_.send_reply(reply); });
            }
            if constexpr (IsSlotCommand<T>) on_slot_command(std::move(which), n_bytes);
        },
        command);
}

void Dispatcher::on_parse_error(wire::ParseError error, std::size_t n_bytes) {
    if (output_.is_multiplexed()) {
        output_.send_reply(wire::Err{error.id, error.error});
    } else {
        wait_for_turn({std::move(error), n_bytes});
    }
}

void Dispatcher::on_generate(GeneratingCommand command, std::size_t n_bytes) {
    const bool is_named = command.form == wire::Generate::Form::named;
    if (!output_.is_multiplexed()) {
        wait_for_turn({std::move(command), n_bytes});
        return;
    }
    if (is_named) {
        start(command, false);
        return;
    }
    if (turns_.size() >= n_max_turns_ || n_turn_bytes_ > kMaxTurnBytes) {
        refuse(command, {ErrorCode::queue_full, "too many positional commands are waiting for their turn"}, true);
        return;
    }
    wait_for_turn({std::move(command), n_bytes});
}

// Those with an id are answered out of turn, under --mux; the positional ones and all of the plain dialect in turn.
void Dispatcher::on_slot_command(SlotCommand command, std::size_t n_bytes) {
    const bool has_id = std::visit([](const auto& which) { return which.id.has_value(); }, command);
    if (output_.is_multiplexed() && has_id) {
        serve_slot_command(command, false);
    } else if (output_.is_multiplexed() && (turns_.size() >= n_max_turns_ || n_turn_bytes_ > kMaxTurnBytes)) {
        output_.send_reply(wire::Err{
            std::nullopt, {ErrorCode::queue_full, "too many positional commands are waiting for their turn"}});
    } else {
        wait_for_turn({std::move(command), n_bytes});
    }
}

void Dispatcher::serve_slot_command(const SlotCommand& command, bool takes_turns) {
    const Result<std::optional<engine::RequestKey>> of = named_request(command);
    if (!of) {
        const auto id = std::visit([](const auto& which) { return which.id; }, command);
        output_.send_reply(wire::Err{id, of.error()});
        return;
    }
    is_serving_turn_ = takes_turns || is_serving_turn_;
    auto is_over = std::make_shared<bool>(false);
    slots_.serve(command, of.value(), [this, takes_turns, is_over](const wire::Reply& reply) {
        output_.send_reply(reply);
        if (!takes_turns) return;
        is_serving_turn_ = false;
        // Answered within the call: who gives out the turns goes on by itself.
        if (*is_over) this->take_turns();
    });
    *is_over = true;
}

// The request that a snapshot is to be taken of; without of= the last one that took a turn.
Result<std::optional<engine::RequestKey>> Dispatcher::named_request(const SlotCommand& command) const {
    std::optional<wire::RequestId> of;
    if (const auto* snapshot = std::get_if<wire::Snapshot>(&command)) {
        of = snapshot->of;
    } else if (const auto* thin = std::get_if<wire::ThinSnapshot>(&command)) {
        of = thin->of;
    } else {
        return std::optional<engine::RequestKey>();
    }
    if (!of) {
        if (last_turn_) return last_turn_;
        return Error{ErrorCode::unknown_id, "nothing was generated yet whose state could be kept"};
    }
    if (const auto it = keys_.find(*of); it != keys_.end()) return std::optional(it->second);
    for (auto it = ended_.rbegin(); it != ended_.rend(); ++it) {
        if (it->first == *of) return std::optional(it->second);
    }
    return Error{ErrorCode::unknown_id, "there is no request " + std::to_string(*of) + " whose state could be kept"};
}

void Dispatcher::on_snapshot(const engine::SnapshotEvent& event) {
    Running& running = running_.at(event.key);
    const memory::SnapshotPoint& point = event.outcome.point;
    std::erase(running.snapshots, point.slot);
    if (event.outcome.error) {
        log_warn("snap= into slot " + std::to_string(point.slot) + " failed: " + event.outcome.error->text);
        output_.send_reply(wire::InlineSnapshotFailed{running.reply_id(), point.slot, event.outcome.error->code});
    } else {
        output_.send_reply(wire::InlineSnapshot{running.reply_id(), point.slot, point.position});
    }
}

// Each snap= gets its line, also when the request ended before it got there.
void Dispatcher::report_missing_snapshots(const Running& running) {
    for (const std::int32_t slot : running.snapshots) {
        output_.send_reply(wire::InlineSnapshotFailed{running.reply_id(), slot, ErrorCode::cancelled});
    }
}

void Dispatcher::wait_for_turn(Turn turn) {
    n_turn_bytes_ += turn.n_bytes;
    turns_.push_back(std::move(turn));
    take_turns();
}

void Dispatcher::take_turns() {
    while (!is_turn_taken() && !turns_.empty()) {
        const Turn turn = std::move(turns_.front());
        turns_.pop_front();
        n_turn_bytes_ -= turn.n_bytes;
        if (const auto* error = std::get_if<wire::ParseError>(&turn.what)) {
            if (error->generating) output_.send_sentinel(error->id.value_or(0));
            output_.send_reply(wire::Err{error->id, error->error});
            continue;
        }
        if (const auto* slot_command = std::get_if<SlotCommand>(&turn.what)) {
            serve_slot_command(*slot_command, true);
            continue;
        }
        if (std::holds_alternative<wire::FreeScorer>(turn.what)) {
            scorer_.free();
            output_.send_reply(wire::PlainOk{});
            continue;
        }
        const auto& command = std::get<GeneratingCommand>(turn.what);
        if (turn.is_cancelled) {
            end_before_start(command);
        } else {
            start(command, true);
        }
    }
}

// Cancelled while it waited for its turn: it ends like any cancelled request, with nothing done.
void Dispatcher::end_before_start(const GeneratingCommand& command) {
    wire::GenerateOk ok;
    if (command.form == wire::Generate::Form::named) ok.id = command.id;
    ok.stats.n_prompt = static_cast<std::int32_t>(command.prompt.size());
    ok.stats.stop = wire::StopReason::cancel;
    ok.output_path = command.output_path;
    for (const wire::SnapshotPoint& point : command.memory.snapshots) {
        output_.send_reply(wire::InlineSnapshotFailed{ok.id, point.slot, ErrorCode::cancelled});
    }
    output_.send_sentinel(command.id);
    output_.send_reply(ok);
}

// A refusal that owns its id ends with a sentinel like any accepted request.
void Dispatcher::refuse(const GeneratingCommand& command, const Error& error, bool owns_id) {
    const bool is_named = command.form == wire::Generate::Form::named;
    if (owns_id || !output_.is_multiplexed()) output_.send_sentinel(command.id);
    output_.send_reply(wire::Err{is_named ? std::optional(command.id) : std::nullopt, error});
}

void Dispatcher::start(const GeneratingCommand& command, bool takes_turns) {
    if (keys_.contains(command.id)) {
        const std::string id = std::to_string(command.id);
        refuse(command, {ErrorCode::duplicate_id, "request " + id + " is still running"}, false);
        return;
    }
    if (needs_token_reader(command) && !output_.has_token_reader()) {
        refuse(command,
               {ErrorCode::no_stream_fd,
                output_.token_failure().value_or(
                    "there is nobody to send tokens to: start with --stream-fd N and keep it open")},
               true);
        return;
    }
    if (slots_.is_parked()) {
        refuse(command, {ErrorCode::parked, "the model's memory was given back (park); unpark takes it again"}, true);
        return;
    }
    const auto key = static_cast<engine::RequestKey>(++n_requests_);
    if (const Result<void> submitted = submit(command, key); !submitted) {
        refuse(command, submitted.error(), true);
        return;
    }
    Running running{command.id, command.form, command.output_path, {}, clock_.now_s(), takes_turns, {}};
    for (const wire::SnapshotPoint& point : command.memory.snapshots) running.snapshots.push_back(point.slot);
    running_.emplace(key, std::move(running));
    keys_.emplace(command.id, key);
    if (takes_turns) turn_taken_ = key;
}

// Where memory is short, one request fails and not the daemon: nothing holds a part of it yet.
Result<void> Dispatcher::submit(const GeneratingCommand& command, engine::RequestKey key) try {
    if (command.scorer) {
        if (Result<void> opened = scorer_.open(*command.scorer); !opened) return opened;
    }
    Result<engine::Request> request = requests_.build(command, key);
    if (!request) return request.error();
    return engine_.submit(std::move(request).value());
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "no memory for the request"};
}

void Dispatcher::on_cancel(const wire::Cancel& command) {
    if (const auto it = keys_.find(command.id); it != keys_.end()) {
        const engine::RequestKey key = it->second;
        output_.send_reply(wire::Cancelled{command.id});
        if (const auto stats = engine_.cancel(key)) finish(key, *stats);
        take_turns();
        return;
    }
    for (Turn& turn : turns_) {
        const auto* waiting = std::get_if<GeneratingCommand>(&turn.what);
        if (waiting == nullptr || waiting->id != command.id || turn.is_cancelled) continue;
        turn.is_cancelled = true;
        output_.send_reply(wire::Cancelled{command.id});
        return;
    }
    output_.send_reply(wire::Err{command.id, {ErrorCode::unknown_id, "no such request is running or waiting"}});
}

void Dispatcher::on_status(const wire::Status& command) {
    wire::StatusLine line;
    if (command.id) line.fields.emplace_back("id", std::to_string(*command.id));
    const engine::EngineStatus status = engine_.status();
    const auto add = [&line](const char* key, auto value) { line.fields.emplace_back(key, std::to_string(value)); };
    add("lanes_busy", status.n_lanes_busy);
    add("queued", status.n_queued + static_cast<std::int64_t>(turns_.size()));
    add("suspended", status.n_suspended);
    add("cells_used", status.n_cells_used);
    add("tokens_in", status.n_prompt_tokens);
    add("tokens_reused", status.n_reused_tokens);
    add("tokens_out", status.n_generated_tokens);
    add("suspensions", status.n_suspensions);
    add("prefill_sparse", status.reading.n_prompts);
    add("prefill_sparse_tokens", status.reading.n_tokens);
    add("prefill_left_out", status.reading.n_left_out);
    add("prefill_repaired", status.n_repaired_tokens);
    add("prefill_repairs", status.n_repairs);
    if (status.speculation) wire::append_speculation(line, *status.speculation);
    add("backlog_bytes", output_.backlog_bytes());
    for (auto& field : describe_()) line.fields.push_back(std::move(field));
    if (command.check) line.fields.emplace_back("integrity", engine_.check_integrity().value_or("ok"));
    output_.send_reply(line);
}

void Dispatcher::on_events(const std::vector<engine::Event>& events) {
    for (const engine::Event& event : events) {
        std::visit(
            [&](const auto& which) {
                using T = std::decay_t<decltype(which)>;
                if constexpr (std::is_same_v<T, engine::TokenEvent>) on_token(which);
                if constexpr (std::is_same_v<T, engine::PromptLogprobsEvent>) on_prompt_logprobs(which);
                if constexpr (std::is_same_v<T, engine::PrefillEvent>) on_prefill(which);
                if constexpr (std::is_same_v<T, engine::SnapshotEvent>) on_snapshot(which);
                if constexpr (std::is_same_v<T, engine::FinishedEvent>) finish(which.key, which.stats);
                if constexpr (std::is_same_v<T, engine::FailedEvent>) fail(which.key, which.error);
                if constexpr (std::is_same_v<T, engine::ChosenEvent>) on_chosen(which);
                if constexpr (std::is_same_v<T, engine::PoolEvent>) output_.send_reply(wire::PoolSize{which.n_tokens});
            },
            event);
    }
}

void Dispatcher::on_token(const engine::TokenEvent& event) {
    Running& running = running_.at(event.key);
    if (running.output_path) {
        running.output.push_back(event.token);
    } else {
        output_.send_token(running.id, event.token);
    }
    if (!event.logprobs.empty()) {
        output_.send_reply(wire::Logprobs{running.reply_id(), event.index, to_wire(event.logprobs)});
    }
}

void Dispatcher::on_prompt_logprobs(const engine::PromptLogprobsEvent& event) {
    const Running& running = running_.at(event.key);
    output_.send_reply(wire::PromptLogprobs{running.reply_id(), event.position, to_wire(event.logprobs)});
}

void Dispatcher::on_prefill(const engine::PrefillEvent& event) {
    Running& running = running_.at(event.key);
    if (clock_.now_s() - running.progress_s < kProgressInterval_s) return;
    running.progress_s = clock_.now_s();
    output_.send_reply(wire::PrefillProgress{running.reply_id(), event.n_done, event.n_total});
}

void Dispatcher::on_chosen(const engine::ChosenEvent& event) {
    const auto it = running_.find(event.key);
    wire::CompressOk ok{it->second.reply_id(), 0, 0, {}};
    ok.n_in = static_cast<std::int32_t>(event.parts->prompt().size());
    ok.n_out = static_cast<std::int32_t>(event.parts->tokens().size());
    for (const PositionSpan& part : event.parts->parts()) ok.parts.push_back({part.begin, part.end});
    for (const Token token : event.parts->tokens()) output_.send_token(it->second.id, token);
    output_.send_sentinel(it->second.id);
    output_.send_reply(ok);
    forget(it);
}

void Dispatcher::finish(engine::RequestKey key, const engine::GenerationStats& stats) {
    const auto it = running_.find(key);
    const Running& running = it->second;
    report_missing_snapshots(running);
    output_.send_sentinel(running.id);
    wire::Reply reply = wire::GenerateOk{running.reply_id(), stats, running.output_path};
    if (running.output_path) {
        const Result<void> written = write_file_atomically(*running.output_path, to_counted_bytes(running.output));
        if (!written) reply = wire::Err{running.reply_id(), written.error()};
    }
    output_.send_reply(reply);
    forget(it);
}

void Dispatcher::fail(engine::RequestKey key, const Error& error) {
    const auto it = running_.find(key);
    report_missing_snapshots(it->second);
    output_.send_sentinel(it->second.id);
    output_.send_reply(wire::Err{it->second.reply_id(), error});
    forget(it);
}

void Dispatcher::forget(std::map<engine::RequestKey, Running>::iterator it) {
    if (turn_taken_ == it->first) turn_taken_.reset();
    if (it->second.takes_turns) last_turn_ = it->first;
    ended_.emplace_back(it->second.id, it->first);
    if (ended_.size() > kMaxEnded) ended_.pop_front();
    keys_.erase(it->second.id);
    running_.erase(it);
}

void Dispatcher::on_reader_gone() {
    std::vector<engine::RequestKey> ended;
    for (const auto& [key, running] : running_) {
        // A file generation writes no tokens to the fd: only its reply has lost its reader then.
        if (!output_.has_reply_reader() || !running.output_path) ended.push_back(key);
    }
    const std::optional<std::string> failure = output_.token_failure();
    for (const engine::RequestKey key : ended) {
        const auto stats = engine_.cancel(key);
        if (failure) {
            fail(key, {ErrorCode::io_error, *failure});
        } else if (stats) {
            finish(key, *stats);
        }
    }
    take_turns();
}

void Dispatcher::end_all() {
    for (Turn& turn : turns_) turn.is_cancelled = true;
    while (!running_.empty()) {
        const engine::RequestKey key = running_.begin()->first;
        const auto stats = engine_.cancel(key);
        finish(key, stats.value_or(engine::cancelled_early({})));
    }
    take_turns();
}

void Dispatcher::give_up(const Error& error) {
    has_quit_ = true;
    while (!running_.empty()) {
        const engine::RequestKey key = running_.begin()->first;
        engine_.cancel(key);
        fail(key, error);
    }
    end_all();
}

void Dispatcher::quit() {
    if (has_quit_) return;
    has_quit_ = true;
    end_all();
    owes_ok_ = true;
    take_leave();
}

void Dispatcher::take_leave() {
    if (!owes_ok_ || !is_idle()) return;
    owes_ok_ = false;
    output_.send_reply(wire::PlainOk{});
}

}  // namespace luce::daemon
