// PageReports: tells the reader of stdout which pages come and go, once it has asked (`pages`). Never more than it
// reads: what it has not been told yet waits in the journal, which knows each page once.
#pragma once

#include "daemon/loop/output.h"
#include "memory/pages/page_journal.h"

namespace luce::daemon {

class PageReports {
public:
    // Both must outlive it.
    PageReports(memory::PageJournal& journal, Output& output) : journal_(journal), output_(output) {}

    // As much as there is, or as the reader takes for now.
    void send();

private:
    memory::PageJournal& journal_;
    Output& output_;
};

}  // namespace luce::daemon
