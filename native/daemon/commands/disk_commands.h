// DiskCommands: serves the commands about the disk cache's files: those that others bring, those that they take, and
// how far a text is known. Each is answered once, now or when the disk is done.
#pragma once

#include <functional>

#include "memory/manager/kv_cache_manager.h"
#include "wire/command.h"
#include "wire/reply.h"

namespace luce::daemon {

class DiskCommands {
public:
    // It must outlive the commands; so must what `done` uses.
    explicit DiskCommands(memory::KvCacheManager& memory) : memory_(memory) {}

    using Done = std::function<void(const wire::Reply&)>;

    void serve(const wire::AdoptFiles& command, const Done& done);
    void serve(const wire::ListFiles& command, const Done& done);
    void serve(const wire::WriteText& command, const Done& done);
    void serve(const wire::ProbeText& command, const Done& done);

private:
    memory::KvCacheManager& memory_;
};

}  // namespace luce::daemon
