#include "llama/model/rpc_workers.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include <ggml-backend.h>
#include <ggml-rpc.h>

#include "base/unique_fd.h"

namespace luce::llama {
namespace {

constexpr int kConnectMs = 10'000;
constexpr int kAnswerS = 10;

struct Endpoint {
    std::string host;
    std::string port;
};

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::size_t begin = 0;
    while (begin <= text.size()) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        if (end > begin) parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

std::optional<Endpoint> parse(const std::string& text) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) return std::nullopt;
    const std::string port = text.substr(colon + 1);
    if (port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos || std::stoi(port) > 65535) {
        return std::nullopt;
    }
    return Endpoint{text.substr(0, colon), port};
}

Error not_an_endpoint(const char* option, const std::string& text) {
    return {ErrorCode::bad_args, std::string(option) + " " + text + ": it must be HOST:PORT"};
}

std::string refusal_of(const addrinfo& address) {
    const UniqueFd fd(::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.is_open()) return std::strerror(errno);
    if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return "";
    if (errno != EINPROGRESS) return std::strerror(errno);
    pollfd waits{fd.get(), POLLOUT, 0};
    if (::poll(&waits, 1, kConnectMs) != 1) return "it does not answer";
    int status = 0;
    socklen_t size = sizeof status;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &status, &size);
    return status == 0 ? "" : std::strerror(status);
}

// ggml would end the process where nobody listens.
Result<void> reach(const std::string& text, const Endpoint& endpoint) {
    const auto refused = [&text](const std::string& why) {
        return Error{ErrorCode::io_error, "the RPC worker " + text + " cannot be reached: " + why +
                                              " (start it there with luce rpc-worker)"};
    };
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int status = ::getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &found); status != 0) {
        return refused(::gai_strerror(status));
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
    std::string why;
    for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
        why = refusal_of(*address);
        if (why.empty()) return {};
    }
    return refused(why);
}

template <typename Function>
Result<Function> rpc_function(const char* name) {
    ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
    void* found = rpc != nullptr ? ggml_backend_reg_get_proc_address(rpc, name) : nullptr;
    if (found == nullptr) return Error{ErrorCode::bad_args, "this build has no RPC (GGML_RPC)"};
    return reinterpret_cast<Function>(found);
}

std::vector<ggml_backend_dev_t> all_of(enum ggml_backend_dev_type type) {
    std::vector<ggml_backend_dev_t> devices;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        if (ggml_backend_dev_type(ggml_backend_dev_get(i)) == type) devices.push_back(ggml_backend_dev_get(i));
    }
    return devices;
}

Result<std::vector<ggml_backend_dev_t>> devices_of(const std::optional<std::string>& names) {
    if (!names) {
        std::vector<ggml_backend_dev_t> gpus = all_of(GGML_BACKEND_DEVICE_TYPE_GPU);
        return gpus.empty() ? all_of(GGML_BACKEND_DEVICE_TYPE_CPU) : gpus;
    }
    std::vector<ggml_backend_dev_t> devices;
    for (const std::string& name : split(*names)) {
        ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str());
        if (device == nullptr) return Error{ErrorCode::bad_args, "--device " + name + ": there is no such device"};
        devices.push_back(device);
    }
    return devices;
}

}  // namespace

Result<void> add_rpc_workers(const std::string& endpoints, LoadGuardOptions guard) {
    const auto add = rpc_function<decltype(&ggml_backend_rpc_add_server)>("ggml_backend_rpc_add_server");
    if (!add) return add.error();
    const std::vector<std::string> named = split(endpoints);
    if (named.empty()) return not_an_endpoint("--rpc", endpoints);
    guard.seconds = kAnswerS;
    guard.lateness =
        "it takes the connection and does not answer: it is busy with another engine, or no luce rpc-worker";
    guard.refusal = "it is no luce rpc-worker of this version: ";
    for (const std::string& text : named) {
        const std::optional<Endpoint> endpoint = parse(text);
        if (!endpoint) return not_an_endpoint("--rpc", text);
        if (Result<void> reached = reach(text, *endpoint); !reached) return reached;
        const std::string prefix = "err start_failed the RPC worker " + text + ": ";
        guard.prefix = prefix;
        const LoadGuard guarded(guard);
        ggml_backend_reg_t worker = add.value()(text.c_str());
        if (worker == nullptr) {
            return Error{ErrorCode::io_error, "the RPC worker " + text + " has no devices"};
        }
        ggml_backend_register(worker);
    }
    return {};
}

Error lend_devices(const RpcWorkerOptions& options) {
    const auto start = rpc_function<decltype(&ggml_backend_rpc_start_server)>("ggml_backend_rpc_start_server");
    if (!start) return start.error();
    if (!parse(options.endpoint)) return not_an_endpoint("--rpc-worker", options.endpoint);
    Result<std::vector<ggml_backend_dev_t>> devices = devices_of(options.devices);
    if (!devices) return devices.error();
    const char* cache = options.tensor_cache ? options.tensor_cache->c_str() : nullptr;
    start.value()(options.endpoint.c_str(), cache, static_cast<std::size_t>(options.n_threads), devices.value().size(),
                  devices.value().data());
    return {ErrorCode::start_failed, "the RPC worker cannot listen at " + options.endpoint};
}

}  // namespace luce::llama
