// Invariant: whatever bytes a model file holds, the check before loading passes them or refuses them with one line that
// says why, and what passes has a vocabulary that libllama loads or refuses: nothing crashes, hangs or allocates beyond
// what the file can hold. Knows the check's public header and libllama's; the file lies in memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "llama.h"
#include "llama/gguf_check/gguf_preflight.h"

namespace {

// Not assert: the invariant has to hold in builds without assertions too.
void require(bool holds) {
    if (!holds) std::abort();
}

class MemoryFile {
public:
    MemoryFile(const std::uint8_t* data, std::size_t size) : fd_(memfd_create("fuzz.gguf", MFD_CLOEXEC)) {
        require(fd_ >= 0);
        for (std::size_t written = 0; written < size;) {
            const ssize_t n = write(fd_, data + written, size - written);
            require(n > 0);
            written += static_cast<std::size_t>(n);
        }
    }
    ~MemoryFile() { close(fd_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;

    std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

private:
    int fd_;
};

// As the HTTP side does in its own process, which no LoadGuard watches.
void load_vocabulary(const std::string& path) {
    static const bool is_quiet = [] {
        llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
        return true;
    }();
    (void)is_quiet;
    ggml_backend_dev_t no_devices[] = {nullptr};
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    params.devices = no_devices;
    params.n_gpu_layers = 0;
    llama_model_free(llama_model_load_from_file(path.c_str(), params));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const MemoryFile file(data, size);
    const luce::Result<void> checked = luce::llama::preflight_gguf(file.path());
    if (checked) {
        load_vocabulary(file.path());
    } else {
        require(checked.error().code == luce::ErrorCode::start_failed && !checked.error().text.empty());
        require(checked.error().text.find('\n') == std::string::npos);
    }
    return 0;
}
