// The first message to the agent: who this process is.
#pragma once

#include "identity.h"

namespace paceline::nccl {

// As `contracts/agent_socket.py` has it; cut where it does not fit. `version` of NCCL, 0 = unknown.
Text<4096> hello_text(const Identity& identity, uint64_t pid_start, uint32_t version);

}  // namespace paceline::nccl
