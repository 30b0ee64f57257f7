// Where the page comes from: the trainer's, if its hook is in this process, else one of the plugin's own with its
// own connection to the agent. A process never shows two pages.
#pragma once

#include "comm.h"

namespace paceline::nccl {

// nullptr where there is none: memory refused, Paceline disabled, or a hook that has not made its page yet.
paceline_page_v1* find_page(const Opening& opening);
// Tell the agent what the plugin knows of the members of a communicator; only where the page is its own.
void announce_comm(Comm* comm, const Opening& opening);
void retract_comm(Comm* comm);

}  // namespace paceline::nccl
