// The part of PageCache that checks its own books: every count and queue against the tree as it stands.
#include <set>

#include "memory/pages/page_cache.h"

namespace luce::memory {

std::optional<std::string> PageCache::check_integrity() const {
    CacheUsage seen;
    std::int64_t n_idle = 0;
    std::optional<std::string> wrong;
    const auto expect = [&wrong](bool holds, const char* what) {
        if (!holds && !wrong) wrong = what;
    };
    std::set<Cell> cells;
    std::size_t n_checkpoints = 0;
    std::size_t n_in_pool = 0;
    std::size_t n_in_host = 0;
    std::size_t n_uncopied = 0;
    tree_.for_each([&](Page& page) {
        std::int32_t n_resident = 0;
        std::int32_t n_kept = 0;
        for (const auto& [hash, child] : page.children) {
            n_resident += child->is_resident() ? 1 : 0;
            n_kept += child->is_kept() ? 1 : 0;
            expect(child->parent == &page && child->index == page.index + 1, "a page hangs in the wrong place");
        }
        expect(n_resident == page.n_resident, "a page miscounts its resident children");
        expect(n_kept == page.n_kept, "a page miscounts its kept children");
        for (const Checkpoint& checkpoint : page.checkpoints) {
            seen.host_bytes += checkpoint.data->n_bytes();
            ++seen.n_host_checkpoints;
            if (checkpoint.n_pins > 0) seen.pinned_bytes += checkpoint.data->n_bytes();
            const bool leaves = checkpoint.n_pins == 0 && checkpoint.n_waiting == 0;
            expect(leaves == checkpoint.is_queued, "a checkpoint's place in the queue is wrong");
            expect(checkpoints_.is_in_order(checkpoint), "a checkpoint's links are wrong");
            n_checkpoints += leaves ? 1 : 0;
        }
        if (page.is_root()) return;
        if (page.is_resident()) {
            ++seen.n_resident;
            if (page.n_lanes == 0) ++n_idle;
            for (const Cell cell : page.cells) expect(cells.insert(cell).second, "two pages share a cell");
        }
        if (page.host != nullptr) {
            ++seen.n_host;
            seen.host_bytes += page_bytes_;
        }
        if (page.n_pins > 0) {
            seen.pinned_bytes += page_bytes_;
            expect(page.is_kept(), "a pinned page is in no memory");
        }
        expect(page.n_lanes == 0 || page.is_resident() || page_bytes_ == 0,
               "a lane uses a page that is not in the pool");
        expect(page.n_lanes >= 0 && page.n_pins >= page.n_out && page.n_out >= 0 && page.n_waiting >= 0,
               "a page has negative references");
        if (page.keys != nullptr) {
            seen.keys_bytes += page.keys->size();
            expect(page.is_kept(), "a page in no memory has keys");
        }
        const auto queues_right = [&](const PageQueue& queue, bool leaves) {
            return queue.conversation_of(page) == (leaves ? &conversation_of(page) : nullptr);
        };
        expect(queues_right(in_pool_, leaves_pool(page)), "the pool's queue is wrong");
        expect(queues_right(in_host_, leaves_host(page)), "the host's queue is wrong");
        expect(queues_right(uncopied_, needs_copy(page)), "the queue of pages without a copy is wrong");
        n_in_pool += leaves_pool(page) ? 1 : 0;
        n_in_host += leaves_host(page) ? 1 : 0;
        n_uncopied += needs_copy(page) ? 1 : 0;
        expect((page.is_resident() && page.host != nullptr) == doubles_.contains(&page), "the doubles are wrong");
        expect(is_awaited(page) == awaited_.contains(&page), "the awaited pages are wrong");
    });
    expect(n_checkpoints == checkpoints_.size(), "the checkpoints' queue is miscounted");
    expect(n_in_pool == in_pool_.size(), "the pool's queue is miscounted");
    expect(n_in_host == in_host_.size(), "the host's queue is miscounted");
    expect(n_uncopied == uncopied_.size(), "the pages without a copy are miscounted");
    expect(seen.n_resident == usage_.n_resident, "the resident pages are miscounted");
    expect(seen.n_host == usage_.n_host, "the host's pages are miscounted");
    expect(seen.n_host_checkpoints == usage_.n_host_checkpoints, "the host's checkpoints are miscounted");
    expect(seen.host_bytes == usage_.host_bytes, "the host's bytes are miscounted");
    expect(seen.pinned_bytes == usage_.pinned_bytes, "the pinned bytes are miscounted");
    expect(seen.keys_bytes == usage_.keys_bytes, "the pages' keys are miscounted");
    expect(are_idle_pages_right(), "the idle pages are noted in the wrong places");
    expect(n_idle == n_idle_, "the idle pages are miscounted");
    expect(usage_.host_bytes <= host_budget_, "the host holds more than its budget");
    return wrong;
}

}  // namespace luce::memory
