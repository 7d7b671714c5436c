#include "daemon/commands/slot_commands.h"

#include <memory>
#include <type_traits>
#include <utility>

#include "daemon/commands/text_fields.h"
#include "memory/pages/page_name.h"
#include "memory/snapshots/snapshot_file.h"

namespace luce::daemon {

SlotCommands::SlotCommands(engine::Engine& engine, memory::KvCacheManager& memory, memory::IoWorker& files,
                           std::string identity, Parking parking)
    : engine_(engine),
      memory_(memory),
      files_(files),
      identity_(std::move(identity)),
      parking_(std::move(parking)),
      disk_(memory) {}

void SlotCommands::serve(const SlotCommand& command, std::optional<engine::RequestKey> of, Done done) {
    std::visit(
        [&](const auto& which) {
            using T = std::decay_t<decltype(which)>;
            if constexpr (std::is_same_v<T, wire::Snapshot>)
                done(snapshot(which, *of));
            else if constexpr (std::is_same_v<T, wire::ThinSnapshot>)
                done(thin(which, *of));
            else if constexpr (std::is_same_v<T, wire::FreeSlot>)
                done(free(which));
            else if constexpr (std::is_same_v<T, wire::ListSlots>)
                done(wire::SlotList{which.id, memory_.slots().used()});
            else if constexpr (std::is_same_v<T, wire::SaveSlot>)
                save(which, std::move(done));
            else if constexpr (std::is_same_v<T, wire::LoadSlot>)
                load(which, std::move(done));
            else if constexpr (std::is_same_v<T, wire::Park>)
                done(park(which));
            else if constexpr (std::is_same_v<T, wire::Unpark>)
                done(unpark(which));
            else if constexpr (std::is_same_v<T, wire::Clear>)
                done(clear(which));
            else if constexpr (std::is_same_v<T, wire::ListTexts>)
                done(describe_texts(which, memory_.texts()));
            else if constexpr (std::is_same_v<T, wire::HoldText>)
                done(hold(which));
            else if constexpr (std::is_same_v<T, wire::ForgetText>)
                done(forget(which));
            else if constexpr (std::is_same_v<T, wire::WatchPages>)
                done(watch(which));
            else
                disk_.serve(which, counted(std::move(done)));
        },
        command);
}

// The command counts as one that waits for a file until it is answered.
SlotCommands::Done SlotCommands::counted(Done done) {
    ++n_pending_;
    return [this, done = std::move(done)](const wire::Reply& reply) {
        --n_pending_;
        done(reply);
    };
}

wire::Reply SlotCommands::snapshot(const wire::Snapshot& command, engine::RequestKey of) {
    const Result<Position> taken = engine_.snapshot(command.slot, of);
    if (!taken) return wire::Err{command.id, taken.error()};
    return wire::SnapshotTaken{command.id, command.slot, taken.value()};
}

wire::Reply SlotCommands::thin(const wire::ThinSnapshot& command, engine::RequestKey of) {
    // Rows are cut out of a page as the device lays them out, and it is gone.
    if (is_parked_) {
        return wire::Err{command.id, {ErrorCode::parked, "the model's memory was given back (park): unpark first"}};
    }
    const auto owner = static_cast<std::uint64_t>(of);
    const Result<void> taken = memory_.snapshots().thin_ended(command.slot, owner, command.begin, command.end);
    if (!taken) return wire::Err{command.id, taken.error()};
    return wire::ThinTaken{command.id, command.slot, command.begin, command.end};
}

wire::Reply SlotCommands::free(const wire::FreeSlot& command) {
    if (const Result<void> freed = memory_.slots().free(command.slot); !freed) {
        return wire::Err{command.id, freed.error()};
    }
    return wire::SlotFreed{command.id, command.slot};
}

void SlotCommands::save(const wire::SaveSlot& command, Done done) {
    Result<memory::SnapshotContents> contents = memory_.contents_of(command.slot);
    if (!contents) {
        done(wire::Err{command.id, contents.error()});
        return;
    }
    // Shared with the job and never changed: the slot may be freed meanwhile.
    auto shared = std::make_shared<const memory::SnapshotContents>(std::move(contents).value());
    files_.post_urgent([command, shared, done = counted(std::move(done)), limits = memory_.limits(),
                        identity = identity_]() -> memory::IoWorker::Completion {
        Result<std::uint64_t> written = memory::write_snapshot(command.path, identity, *shared, limits);
        return [command, done, written = std::move(written)] {
            if (written) {
                done(wire::SlotSaved{command.id, command.slot, written.value()});
            } else {
                done(wire::Err{command.id, written.error()});
            }
        };
    });
}

void SlotCommands::load(const wire::LoadSlot& command, Done done) {
    if (memory_.refusal()) {
        done(wire::Err{command.id, {ErrorCode::unsupported, *memory_.refusal()}});
        return;
    }
    if (const Result<void> checked = memory_.slots().check(command.slot); !checked) {
        done(wire::Err{command.id, checked.error()});
        return;
    }
    files_.post_urgent([this, command, done = counted(std::move(done)), limits = memory_.limits(),
                        identity = identity_]() -> memory::IoWorker::Completion {
        auto contents =
            std::make_shared<Result<memory::SnapshotContents>>(memory::read_snapshot(command.path, identity, limits));
        return [this, command, done, contents] {
            const Result<Position> adopted =
                *contents ? memory_.adopt(command.slot, contents->value()) : Result<Position>(contents->error());
            if (adopted) {
                done(wire::SnapshotTaken{command.id, command.slot, adopted.value()});
            } else {
                done(wire::Err{command.id, adopted.error()});
            }
        };
    });
}

// Pages hold the rows of a model and its draft, so that a text that one of them does not know would be nobody's. A
// small model that scores prompts has no rows there.
std::optional<Error> SlotCommands::refuse_draft() const {
    if (parking_.has_draft) {
        return Error{ErrorCode::unsupported, "the draft model is parked together with its target: park"};
    }
    if (parking_.free_scorer()) return std::nullopt;
    return Error{ErrorCode::no_draft, "there is no draft model"};
}

wire::Reply SlotCommands::park(const wire::Park& command) {
    if (command.what == wire::Park::What::draft) {
        if (const std::optional<Error> refused = refuse_draft()) return wire::Err{command.id, *refused};
        return wire::Parked{command.id, command.what};
    }
    if (is_parked_) return wire::Parked{command.id, command.what};
    if (memory_.refusal()) return wire::Err{command.id, {ErrorCode::unsupported, *memory_.refusal()}};
    if (!engine_.is_idle()) {
        return wire::Err{command.id, {ErrorCode::busy, "requests are running or waiting; park when they have ended"}};
    }
    engine_.pause_repairs(true);
    if (const Result<void> left = memory_.leave_device(); !left) {
        engine_.pause_repairs(false);
        return wire::Err{command.id, left.error()};
    }
    parking_.unload();
    is_parked_ = true;
    return wire::Parked{command.id, command.what};
}

wire::Reply SlotCommands::unpark(const wire::Unpark& command) {
    if (command.what == wire::Park::What::draft) {
        if (const std::optional<Error> refused = refuse_draft()) return wire::Err{command.id, *refused};
        return wire::Unparked{command.id, command.what};
    }
    if (is_parked_) {
        if (const Result<void> loaded = parking_.reload(); !loaded) return wire::Err{command.id, loaded.error()};
        is_parked_ = false;
        engine_.pause_repairs(false);
    }
    return wire::Unparked{command.id, command.what};
}

wire::Reply SlotCommands::clear(const wire::Clear& command) {
    engine_.forget_readings();
    memory_.clear(command.disk);
    return wire::PlainOk{command.id};
}

wire::Reply SlotCommands::hold(const wire::HoldText& command) {
    const std::optional<memory::PageName> page = memory::page_name_of(command.page);
    if (!page) return wire::Err{command.id, no_page_name()};
    if (const Result<void> held = memory_.texts().hold(*page, command.on); !held) {
        return wire::Err{command.id, held.error()};
    }
    return wire::PlainOk{command.id};
}

wire::Reply SlotCommands::forget(const wire::ForgetText& command) {
    const std::optional<memory::PageName> page = memory::page_name_of(command.page);
    if (!page) return wire::Err{command.id, no_page_name()};
    engine_.forget_readings();
    if (const Result<void> forgotten = memory_.texts().forget(*page); !forgotten) {
        return wire::Err{command.id, forgotten.error()};
    }
    return wire::PlainOk{command.id};
}

wire::Reply SlotCommands::watch(const wire::WatchPages& command) {
    memory_.watch_pages(command.on);
    return wire::PlainOk{command.id};
}

}  // namespace luce::daemon
