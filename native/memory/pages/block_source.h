// BlockSource: memory of another kind for blocks of one size, which is asked for before the usual memory (blob.h): the
// rows of pages lie in pinned memory so that a device can fetch them by itself. Callable from any thread.
#pragma once

#include <cstddef>

namespace luce::memory {

class BlockSource {
public:
    virtual ~BlockSource() = default;

    virtual std::size_t block_bytes() const = 0;

    // Null: none is left, or not yet.
    virtual void* take() = 0;

    virtual bool owns(const void* pointer) const = 0;

    // Asked where getting more would disturb nobody: whether there is a block, or never will be one more. False: one is
    // being got.
    virtual bool is_ready() = 0;

    // REQUIRES: owns(block).
    virtual void give_back(void* block) = 0;
};

// For the whole process, from now on; null: the usual memory alone. REQUIRES: no block of the one before is in use.
void use_blocks_of(BlockSource* source);

// Whether so many bytes may be asked for now, when getting more blocks would disturb nobody: they would lie in a block
// soon, if not.
bool prepare_block(std::size_t n_bytes);

// Whether the bytes lie in a block of it.
bool lies_in_block(const void* pointer);

}  // namespace luce::memory
