// The remembered texts as the words of a `[texts]` line.
#pragma once

#include "base/result.h"
#include "memory/manager/text_board.h"
#include "wire/command.h"
#include "wire/reply.h"

namespace luce::daemon {

wire::TextsLine describe_texts(const wire::ListTexts& command, memory::TextBoard& texts);

// What a word that names no page is told.
Error no_page_name();

}  // namespace luce::daemon
