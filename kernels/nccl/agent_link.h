// The connection to the agent where no trainer hook keeps one: one thread, which connects, hands over the pages and
// says what was opened, again after each loss. Nobody waits for it.
#pragma once

#include <cstdint>

#include "identity.h"
#include "paceline/page_v1.h"

namespace paceline::nccl {

// Starts the thread once. The page must live as long as the process.
void start_link(paceline_page_v1* page);
// What the process says of itself; said again whenever it has changed.
void say_hello(const Identity& identity, uint32_t nccl_version);
// Remembered for the next agent; at most 64 at a time, more are not announced.
void say_opened(uint64_t comm, uint32_t nranks, uint32_t instance, int slot);
void say_closed(uint64_t comm);

}  // namespace paceline::nccl
