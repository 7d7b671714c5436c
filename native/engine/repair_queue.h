// RepairQueue: texts that were read in parts and are to be read whole while nothing else wants the device: the next
// turn of a conversation then goes on from exact memory. Knows texts and what their requests said of
// memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <utility>

#include "base/token.h"
#include "memory/manager/kv_cache_types.h"

namespace luce::engine {

struct Repair {
    Tokens text;
    memory::MemoryRequest memory;  // where the text's next turn may depart from it
};

class RepairQueue {
public:
    static constexpr std::size_t kMostTexts = 16;  // the latest: who has not come back behind so many others

    bool is_empty() const { return repairs_.empty(); }
    std::size_t size() const { return repairs_.size(); }

    // In place of texts that this one goes on from.
    void add(Repair repair) {
        std::erase_if(repairs_, [&text = repair.text](const Repair& known) {
            return known.text.size() <= text.size() && std::equal(known.text.begin(), known.text.end(), text.begin());
        });
        repairs_.push_front(std::move(repair));
        if (repairs_.size() > kMostTexts) repairs_.pop_back();
    }

    // The latest one: its next turn comes soonest. REQUIRES: !is_empty().
    Repair take() {
        Repair repair = std::move(repairs_.front());
        repairs_.pop_front();
        return repair;
    }

    void clear() { repairs_.clear(); }

private:
    std::list<Repair> repairs_;
};

}  // namespace luce::engine
