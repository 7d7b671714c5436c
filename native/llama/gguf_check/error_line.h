// What libllama and its GGUF reader say of a file only in their log, as one line for a reply. Must not know which file.
#pragma once

#include <string>
#include <string_view>

#include "ggml.h"

namespace luce::llama {

// A string from a file as it may stand in a one-line message: printable, and not too long.
std::string printable(std::string_view raw);

// While it lives, the first error line is kept: it is the cause, what follows says which stage failed. The log is the
// process's: nothing else may load a model at the same time.
class FirstErrorLine {
public:
    // `is_told`: of libllama, and the log gets the lines as well; else of ggml alone, and nobody does.
    explicit FirstErrorLine(bool is_told);
    ~FirstErrorLine();
    FirstErrorLine(const FirstErrorLine&) = delete;
    FirstErrorLine& operator=(const FirstErrorLine&) = delete;

    // "key 'x' ..." without the name of the function that says it; empty: there was none.
    std::string text() const;

private:
    static void keep(ggml_log_level level, const char* text, void* self);

    bool is_told_;
    ggml_log_callback callback_ = nullptr;
    void* user_data_ = nullptr;
    std::string line_;
};

}  // namespace luce::llama
