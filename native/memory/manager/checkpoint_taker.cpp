#include "memory/manager/checkpoint_taker.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <new>
#include <utility>

#include "base/log.h"

namespace luce::memory {
namespace {

// Of the host's bytes, for one text's checkpoints before they are thinned.
constexpr std::size_t kCheckpointsShare = 16;

constexpr Position kLeastDistance = 32;  // about what reading the weights once more costs, in prompt tokens

// Where texts depart, or are likely to, it is saved again and again.
constexpr Position kLeastDistanceOfDeparture = 8;

// What is planned shortly before the departure stands for it: what it is good for is kept, and the other is spared.
void add_departure(std::vector<PlannedCheckpoint>& planned, Position departure) {
    for (PlannedCheckpoint& checkpoint : planned) {
        if (checkpoint.position > departure || checkpoint.position <= departure - kLeastDistanceOfDeparture) continue;
        checkpoint.kind = CheckpointKind::departure;
        return;
    }
    planned.push_back({departure, CheckpointKind::departure});
}

}  // namespace

void CheckpointTaker::plan(Lane& lane, const PrefixMatch& prefix_match, std::span<const Token> text,
                           const MemoryRequest& request) const {
    const bool has_state = device_.traits().has_state();
    if (!has_state && !has_disk_) return;
    const Position n_known = prefix_match.n;
    lane.checkpoints = plan_checkpoints(n_known, lane.n_prompt, request.marks, request.turn);
    if (request.turn) keep_turn(*lane.page, text, *request.turn);
    // An answer's end most often has its mark a token or two behind the checkpoint that was taken there: another
    // checkpoint would cost a computation of its own and save those few tokens.
    if (n_known > 0) {
        std::erase_if(lane.checkpoints, [n_known](const PlannedCheckpoint& checkpoint) {
            const bool is_mark = checkpoint.kind == CheckpointKind::mark;
            return checkpoint.position < n_known + (is_mark ? kLeastDistanceOfDeparture : kLeastDistance);
        });
    }
    const Position departure = prefix_match.n_known;
    const Position least = n_known > 0 ? n_known + kLeastDistanceOfDeparture : kLeastDistance;
    if (departure >= least && departure < lane.n_prompt) add_departure(lane.checkpoints, departure);
    if (!has_state) {
        std::erase_if(lane.checkpoints, [](const PlannedCheckpoint& checkpoint) {
            return checkpoint.kind == CheckpointKind::interval || checkpoint.position % kPageSize == 0;
        });
    }
    for (const SnapshotPoint& point : request.snapshots) {
        if (has_state && point.position > n_known) lane.checkpoints.push_back({point.position, CheckpointKind::mark});
    }
    std::sort(lane.checkpoints.begin(), lane.checkpoints.end(),
              [](const PlannedCheckpoint& a, const PlannedCheckpoint& b) { return a.position < b.position; });
}

void CheckpointTaker::advance(LaneId id, std::span<const Token> text, Position n_computed,
                              std::span<const float> logits) {
    Lane& lane = lanes_.at(id);
    while (!lane.checkpoints.empty() && lane.checkpoints.front().position <= n_computed) {
        const PlannedCheckpoint planned = lane.checkpoints.front();
        lane.checkpoints.erase(lane.checkpoints.begin());
        if (planned.position == n_computed) {
            take_here(id, text, n_computed, planned.kind, {});
            if (planned.kind == CheckpointKind::turn) keep_turn(*lane.page, text, planned.position);
        } else if (!device_.traits().has_state()) {
            take_rows(id, text, n_computed, planned);
        }
    }
    if (n_computed == lane.n_prompt && !logits.empty()) {
        take_here(id, text, n_computed, CheckpointKind::prompt_end, logits);
    }
}

// What stands at the end of the user's last message, or so shortly before that nothing is planned there, stays while
// the text goes on: once the user writes again, the template may leave out of it what the model has reasoned since, and
// the next prompt departs there. Where the user had written before, it need not stay any longer.
void CheckpointTaker::keep_turn(Page& last, std::span<const Token> text, Position turn) const {
    if (!device_.traits().has_state()) return;
    Checkpoint* found = nullptr;
    const auto visit = [&](Page& page) {
        for (Checkpoint& checkpoint : page.checkpoints) {
            const Position position = checkpoint.position();
            if (position > static_cast<Position>(text.size())) continue;
            const auto here = part(text, page.end(), position);
            if (!std::equal(here.begin(), here.end(), checkpoint.rest.begin())) continue;
            if (checkpoint.kind == CheckpointKind::turn) checkpoint.kind = CheckpointKind::mark;
            if (position <= turn && (found == nullptr || position > found->position())) found = &checkpoint;
        }
    };
    visit(tree_.root());
    for (Page* page : path_to(last)) visit(*page);
    if (found == nullptr || found->position() <= turn - kLeastDistance) return;
    if (found->kind != CheckpointKind::departure) found->kind = CheckpointKind::turn;
}

// Of a position that has been passed: the rows between the last whole page and it. A text that departs there needs no
// more, and after a restart nobody knows how far it agrees with a page that it departs from.
void CheckpointTaker::take_rows(LaneId id, std::span<const Token> text, Position n_computed,
                                const PlannedCheckpoint& planned) {
    const Lane& lane = lanes_.at(id);
    const auto n_pages = static_cast<std::size_t>(planned.position / kPageSize);
    if (lane.is_lost || lane.n_out > 0 || n_pages > lane.pages.size()) return;
    Page& page = n_pages == 0 ? tree_.root() : *lane.pages[n_pages - 1].page;
    keep_or_warn(take(id, page, text, n_computed, planned.position, planned.kind, {}));
}

bool CheckpointTaker::keep_or_warn(const Result<Checkpoint*>& checkpoint) {
    if (checkpoint) return true;
    if (!has_warned_) log_warn("a checkpoint was not kept: " + checkpoint.error().text + " (said once)");
    has_warned_ = true;
    return false;
}

void CheckpointTaker::save_late(Lane& lane) {
    if (const std::optional<LateCheckpoint> checkpoint = std::exchange(lane.late_checkpoint, std::nullopt)) {
        cache_.save_checkpoint(*checkpoint->page, checkpoint->rest, checkpoint->data);
    }
}

Result<Checkpoint*> CheckpointTaker::take(LaneId id, Page& page, std::span<const Token> text, Position n_computed,
                                          Position position, CheckpointKind kind, std::span<const float> logits) {
    const auto rest = part(text, page.end(), position);
    auto data = std::make_shared<CheckpointData>();
    try {
        if (has_cells(device_) && !rest.empty()) {
            std::array<Cell, kPageSize> buffer{};
            const auto cells = std::span(buffer).first(rest.size());
            if (Result<void> found = device_.find(id, page.end(), cells); !found) return found.error();
            data->rows.resize(rest.size() * device_.traits().row_bytes);
            if (Result<void> read = device_.read(cells, data->rows, data); !read) return read.error();
        }
        if (device_.traits().has_state()) {
            assert(position == n_computed);
            if (Result<void> saved = device_.save_state(id, data->state, data); !saved) return saved.error();
        }
        data->logits.assign(logits.begin(), logits.end());
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "no memory for a checkpoint"};
    }
    // A mark is where the next turn's text departs from this one, most often, and what matters is not known before the
    // prompt's end: the newest mark's file waits for it.
    Lane& lane = lanes_.at(id);
    const bool waits = has_disk_ && kind == CheckpointKind::mark && selector_.awaits_choice(lane, n_computed);
    Checkpoint* checkpoint = cache_.keep_checkpoint(page, rest, kind, std::move(data), lane.conversation, !waits);
    if (checkpoint == nullptr) {
        return Error{ErrorCode::no_room,
                     "--host-cache has no room for the state at position " + std::to_string(position)};
    }
    if (waits) {
        save_late(lane);
        lane.late_checkpoint = LateCheckpoint{&page, checkpoint->rest, checkpoint->data};
    }
    return checkpoint;
}

// A checkpoint is a help for later, never a reason to fail now.
void CheckpointTaker::take_here(LaneId id, std::span<const Token> text, Position n_computed, CheckpointKind kind,
                                std::span<const float> logits) {
    Lane& lane = lanes_.at(id);
    if (lane.is_lost || n_computed == 0) return;
    // On pure attention the pages say it all, but for the rows behind them and the logits.
    if (!device_.traits().has_state() && n_computed == lane.page->end() && logits.empty()) return;
    // What was reused may end where its checkpoint still stands: the same state need not be copied again.
    const Checkpoint* known = tree_.find_checkpoint(*lane.page, part(text, lane.page->end(), n_computed));
    if (known != nullptr && (logits.empty() || !known->data->logits.empty())) return;
    if (keep_or_warn(take(id, *lane.page, text, n_computed, n_computed, kind, logits))) thin(*lane.page, n_computed);
}

// Along the text that ends at `last`, give up the checkpoints that stand too close for their distance from the end.
void CheckpointTaker::thin(Page& last, Position end) {
    std::vector<Checkpoint*> checkpoints;
    std::vector<ExistingCheckpoint> standing;
    const std::vector<Page*> path = path_to(last);
    const auto collect = [&](Page& page) {
        // Where texts branch, more than one will come back: to what stands there, or else to the last before.
        const bool is_fork = page.children.size() > 1;
        if (is_fork && page.checkpoints.empty() && !standing.empty()) standing.back().is_fixed = true;
        for (Checkpoint& checkpoint : page.checkpoints) {
            if (checkpoint.position() > end) continue;
            const bool is_fixed = checkpoint.n_pins > 0 || is_fork || checkpoint.kind == CheckpointKind::departure ||
                                  checkpoint.kind == CheckpointKind::turn;
            checkpoints.push_back(&checkpoint);
            standing.push_back({checkpoint.position(), checkpoint.kind, is_fixed});
        }
    };
    collect(tree_.root());
    for (Page* page : path) collect(*page);
    // While there is room for them all may stand: a text may be edited anywhere.
    std::size_t n_bytes = 0;
    for (const Checkpoint* checkpoint : checkpoints) n_bytes += checkpoint->data->n_bytes();
    if (n_bytes <= cache_.host_budget() / kCheckpointsShare) return;
    if (cache_.usage().host_bytes <= cache_.host_budget() / 2) return;
    for (const std::size_t i : thin_checkpoints(standing, end)) cache_.drop(*checkpoints[i]);
}

}  // namespace luce::memory
