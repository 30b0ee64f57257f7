// Who this process is, from its environment, by the rules of docs/adr/0009-job-identity.md as far as they need no
// Python. Only used where the trainer's hook is not in the process.
#pragma once

#include <cstdint>

#include "text.h"

namespace paceline::nccl {

struct Identity {
  Text<128> job;
  const char* job_source;
  Text<64> attempt;
  const char* attempt_source;
  int32_t rank, world_size, local_rank;  // -1, 0, -1 while unknown
};

Identity read_identity();
// Where the agent listens.
Text<108> agent_socket();
// The file that NCCL writes its log into, empty where it is none.
Text<512> nccl_log_path();
// Where NCCL dumps its graphs and the machine, and which rank of each communicator does. `topology` is empty where
// another rank writes it.
struct Dumps {
  Text<512> graph, topology;
  int32_t rank;
};
Dumps nccl_dumps();
bool is_disabled();

}  // namespace paceline::nccl
