// write_file_atomically: a reader sees the old file or the whole new one, also after a crash (temp, fsync, rename).
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace luce {

// A symbolic link to a file stays one: the file it points to is replaced. Errors: io_error with the path and the
// system's reason, also where something stands that is no regular file; the temporary file is removed then.
Result<void> write_file_atomically(const std::string& path, std::string_view bytes);

}  // namespace luce
