// KvOverrides: values that libllama reads in place of those in a model's file, and whether it has read them all.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "llama/model/weights.h"

struct llama_model_kv_override;

namespace luce::llama {

class KvOverrides {
public:
    // Of texts KEY=TYPE:VALUE. Errors: bad_args, naming what is wrong.
    static Result<KvOverrides> parse(std::span<const std::string> texts);

    KvOverrides();
    KvOverrides(KvOverrides&&) noexcept;
    KvOverrides& operator=(KvOverrides&&) noexcept;
    ~KvOverrides();

    // These must outlive the loading.
    void apply(llama_model_params& params) const;

    // The same for equal overrides in any order, and empty without any.
    const std::string& text() const { return text_; }

    // While it lives, libllama's log is read for what becomes of them. The log is the process's: nothing else may load
    // a model at the same time.
    class Watch {
    public:
        explicit Watch(const KvOverrides& overrides);
        ~Watch();
        Watch(const Watch&) = delete;
        Watch& operator=(const Watch&) = delete;

        // Once the model is loaded. Errors: bad_args where one was not read, or is of another type.
        Result<void> check() const;

    private:
        struct State;
        std::unique_ptr<State> state_;
    };

private:
    std::vector<llama_model_kv_override> all_;  // one without a key ends them
    std::string text_;
};

// The model as it is with them. Errors: as read_weights() and Watch::check(): with one that is not read the model would
// be another one than was asked for, and nobody knew.
Result<Weights> read_overridden(const std::string& path, llama_model_params params, const KvOverrides& overrides);

}  // namespace luce::llama
