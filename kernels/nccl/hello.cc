#include "hello.h"

#include <stdlib.h>
#include <unistd.h>

#include <initializer_list>

namespace paceline::nccl {
namespace {

void add_field(const char* name, const char* value, Text<4096>* text) {
  text->add(",\"%s\":\"", name);
  text->add_json(value);
  text->add("\"");
}

}  // namespace

Text<4096> hello_text(const Identity& identity, uint64_t pid_start, uint32_t version) {
  Text<4096> made, *text = &made;
  text->add("{\"type\":\"hello\",\"protocol\":1,\"job\":\"");
  text->add_json(identity.job.get());
  text->add("\",\"job_source\":\"%s\",\"attempt\":\"", identity.job_source);
  text->add_json(identity.attempt.get());
  text->add("\",\"attempt_source\":\"%s\",\"rank\":%d,\"world_size\":%d,\"local_rank\":%d",
            identity.attempt_source, identity.rank, identity.world_size, identity.local_rank);
  text->add(",\"pid\":%d,\"pid_start\":%llu", static_cast<int>(getpid()),
            static_cast<unsigned long long>(pid_start));
  for (const char* name : {"name", "cluster", "tenant"}) {
    Text<32> variable;
    variable.add("PACELINE_");
    for (const char* at = name; *at != '\0'; at++) variable.add("%c", *at - 'a' + 'A');
    const char* value = getenv(variable.get());
    if (value != nullptr) add_field(name, value, text);
  }
  Text<512> log = nccl_log_path();
  if (log.size() > 0 && !log.is_cut()) add_field("nccl_log", log.get(), text);
  Dumps dumps = nccl_dumps();
  if (dumps.graph.size() > 0 && !dumps.graph.is_cut()) {
    add_field("nccl_graph", dumps.graph.get(), text);
    text->add(",\"nccl_dump_rank\":%d", dumps.rank);
  }
  if (dumps.topology.size() > 0 && !dumps.topology.is_cut()) add_field("nccl_topology", dumps.topology.get(), text);
  text->add(",\"versions\":{");
  if (version != 0) text->add("\"nccl\":\"%u.%u.%u\"", version / 10000, version / 100 % 100, version % 100);
  text->add("}}");
  return made;
}

}  // namespace paceline::nccl
