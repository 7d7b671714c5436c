// SlotCommands: serves the commands about slots, weights and caches. Most are answered at once; those that wait for a
// file when it is done, while the engine goes on. Knows neither ids' owners nor turns: the dispatcher does.
#pragma once

#include <functional>
#include <optional>
#include <variant>

#include "daemon/commands/disk_commands.h"
#include "engine/engine.h"
#include "memory/manager/kv_cache_manager.h"
#include "memory/tiers/io_worker.h"
#include "wire/command.h"
#include "wire/reply.h"

namespace luce::daemon {

using SlotCommand =
    std::variant<wire::Snapshot, wire::ThinSnapshot, wire::FreeSlot, wire::ListSlots, wire::SaveSlot, wire::LoadSlot,
                 wire::Park, wire::Unpark, wire::Clear, wire::ListTexts, wire::HoldText, wire::ForgetText,
                 wire::WatchPages, wire::AdoptFiles, wire::ListFiles, wire::WriteText, wire::ProbeText>;

template <typename T>
concept IsSlotCommand = requires(T command) { SlotCommand(command); };

// How to give the weights' memory back, and to take it again.
struct Parking {
    std::function<void()> unload;
    std::function<Result<void>()> reload;
    bool has_draft = false;  // a draft model goes and comes with the target
    // Gives back the memory of the small model that says what of a prompt is read, which takes it again by itself.
    // Whether there is one.
    std::function<bool()> free_scorer = [] { return false; };
};

class SlotCommands {
public:
    // All must outlive it; so must what `done` uses.
    SlotCommands(engine::Engine& engine, memory::KvCacheManager& memory, memory::IoWorker& files, std::string identity,
                 Parking parking);

    using Done = std::function<void(const wire::Reply&)>;

    // `of`: the request that a snapshot is taken of, which Snapshot and ThinSnapshot need. Calls `done` once, with the
    // command's final reply, now or later.
    void serve(const SlotCommand& command, std::optional<engine::RequestKey> of, Done done);

    bool is_parked() const { return is_parked_; }
    int n_pending() const { return n_pending_; }  // that wait for a file

private:
    Done counted(Done done);
    wire::Reply snapshot(const wire::Snapshot& command, engine::RequestKey of);
    wire::Reply thin(const wire::ThinSnapshot& command, engine::RequestKey of);
    wire::Reply free(const wire::FreeSlot& command);
    void save(const wire::SaveSlot& command, Done done);
    void load(const wire::LoadSlot& command, Done done);
    std::optional<Error> refuse_draft() const;
    wire::Reply park(const wire::Park& command);
    wire::Reply unpark(const wire::Unpark& command);
    wire::Reply clear(const wire::Clear& command);
    wire::Reply hold(const wire::HoldText& command);
    wire::Reply forget(const wire::ForgetText& command);
    wire::Reply watch(const wire::WatchPages& command);

    engine::Engine& engine_;
    memory::KvCacheManager& memory_;
    memory::IoWorker& files_;
    std::string identity_;
    Parking parking_;
    DiskCommands disk_;
    bool is_parked_ = false;
    int n_pending_ = 0;
};

}  // namespace luce::daemon
