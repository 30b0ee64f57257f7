#include "identity.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <initializer_list>

#include "paceline/page_v1.h"

namespace paceline::nccl {
namespace {

const char* variable(const char* name) {
  const char* text = getenv(name);
  return text != nullptr && text[0] != '\0' ? text : nullptr;
}

int32_t number(int32_t otherwise, const char* one, const char* two, const char* three) {
  for (const char* name : {one, two, three}) {
    const char* text = variable(name);
    if (text != nullptr && isdigit(static_cast<unsigned char>(text[0]))) return static_cast<int32_t>(atol(text));
  }
  return otherwise;
}

uint64_t hash_text(uint64_t hash, const char* text) {
  for (; text != nullptr && *text != '\0'; text++) hash = paceline_mix64_v1(hash ^ static_cast<unsigned char>(*text));
  return paceline_mix64_v1(hash ^ 0x1fu);
}

// A colon separates the parts of record keys; the agent refuses an id that has one.
void add_clean(Text<128>* job, const char* text) {
  for (; *text != '\0'; text++) {
    bool odd = *text == ':' || !isprint(static_cast<unsigned char>(*text));
    job->add("%c", odd ? '_' : *text);
  }
}

const char* name_job(Text<128>* job) {
  if (const char* declared = variable("PACELINE_JOB_ID")) {
    add_clean(job, declared);
    return "declared";
  }
  if (const char* slurm = variable("SLURM_JOB_ID")) {
    const char *array = variable("SLURM_ARRAY_JOB_ID"), *task = variable("SLURM_ARRAY_TASK_ID");
    if (array != nullptr && task != nullptr) job->add("slurm-%.40s_%.40s", array, task);
    else job->add("slurm-%.80s", slurm);
    return "slurm";
  }
  const char* run = variable("TORCHELASTIC_RUN_ID");
  if (run != nullptr && strcmp(run, "none") != 0) {
    add_clean(job, run);
    return "torchrun";
  }
  // The same on every rank without talking to any: from where the ranks meet. Not the trainer's: it is not here.
  uint64_t hash = 1;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"}) hash = hash_text(hash, variable(name));
  job->add("nccl-%012llx", static_cast<unsigned long long>(hash >> 16));
  return "generated";
}

const char* name_attempt(Text<64>* attempt) {
  if (const char* declared = variable("PACELINE_ATTEMPT")) {
    attempt->add("%s", declared);
    return "declared";
  }
  attempt->add("r%d", number(0, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", "SLURM_RESTART_COUNT"));
  return "restart_count";
}

}  // namespace

Identity read_identity() {
  Identity identity{};
  identity.job_source = name_job(&identity.job);
  identity.attempt_source = name_attempt(&identity.attempt);
  identity.rank = number(-1, "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK");
  identity.world_size = number(0, "WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE");
  identity.local_rank = number(-1, "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK");
  return identity;
}

Text<108> agent_socket() {
  Text<108> path;
  if (const char* declared = variable("PACELINE_AGENT_SOCKET")) path.add("%s", declared);
  else if (const char* runtime = variable("XDG_RUNTIME_DIR")) path.add("%s/paceline-agent.sock", runtime);
  else path.add("/tmp/paceline-%u/agent.sock", static_cast<unsigned>(getuid()));
  return path;
}

// NCCL's own pattern: %h the host name up to its first dot, %p the process, all else as it stands.
Text<512> nccl_log_path() {
  Text<512> path;
  const char* pattern = variable("NCCL_DEBUG_FILE");
  for (const char* at = pattern; at != nullptr && *at != '\0'; at++) {
    if (*at != '%' || at[1] == '\0') {
      path.add("%c", *at);
      continue;
    }
    at++;
    if (*at == 'p') path.add("%d", static_cast<int>(getpid()));
    else if (*at == '%') path.add("%%");
    else if (*at != 'h') path.add("%%%c", *at);
    else {
      char host[256] = {};
      if (gethostname(host, sizeof host - 1) == 0) path.add("%.*s", static_cast<int>(strcspn(host, ".")), host);
    }
  }
  return path;
}

Dumps nccl_dumps() {
  Dumps dumps{};
  auto rank_of = [](const char* name) {
    const char* text = variable(name);
    long rank = text != nullptr ? strtol(text, nullptr, 0) : 0;
    return rank > 0 && rank < INT32_MAX ? static_cast<int32_t>(rank) : 0;
  };
  dumps.rank = rank_of("NCCL_GRAPH_DUMP_FILE_RANK");
  if (const char* graph = variable("NCCL_GRAPH_DUMP_FILE")) dumps.graph.add("%s", graph);
  const char* topology = variable("NCCL_TOPO_DUMP_FILE");
  if (topology != nullptr && rank_of("NCCL_TOPO_DUMP_FILE_RANK") == dumps.rank) dumps.topology.add("%s", topology);
  return dumps;
}

bool is_disabled() {
  const char* text = variable("PACELINE_DISABLED");
  return text != nullptr && strcmp(text, "0") != 0;
}

}  // namespace paceline::nccl
