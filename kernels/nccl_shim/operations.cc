// Collectives and messages.
#include "call.h"

using namespace paceline::nccl;

namespace {

// ncclDataType_t; the pages have no unsigned 32- and 64-bit types.
uint8_t dtype_of(int type) {
  constexpr uint8_t kTypes[] = {
      PACELINE_DTYPE_INT8,    PACELINE_DTYPE_UINT8,   PACELINE_DTYPE_INT32,    PACELINE_DTYPE_INT32,
      PACELINE_DTYPE_INT64,   PACELINE_DTYPE_INT64,   PACELINE_DTYPE_FLOAT16,  PACELINE_DTYPE_FLOAT32,
      PACELINE_DTYPE_FLOAT64, PACELINE_DTYPE_BFLOAT16, PACELINE_DTYPE_FLOAT8_E4M3, PACELINE_DTYPE_FLOAT8_E5M2,
  };
  bool known = type >= 0 && static_cast<size_t>(type) < sizeof kTypes;
  return known ? kTypes[type] : uint8_t{0};
}

// ncclRedOp_t; what comes behind the built-in ones are the user's factors, made at run time.
uint8_t reduce_op_of(int op) {
  constexpr uint8_t kOps[] = {PACELINE_REDUCE_OP_SUM, PACELINE_REDUCE_OP_PRODUCT, PACELINE_REDUCE_OP_MAX,
                              PACELINE_REDUCE_OP_MIN, PACELINE_REDUCE_OP_AVG};
  if (op < 0) return PACELINE_REDUCE_OP_UNKNOWN;
  return static_cast<size_t>(op) < sizeof kOps ? kOps[op] : uint8_t{PACELINE_REDUCE_OP_PREMUL_SUM};
}

ApiCall rooted(uint8_t function, size_t count, int type, int root, uint8_t op = 0) {
  return ApiCall{count, root, function, dtype_of(type), op};
}

ApiCall plain(uint8_t function, size_t count, int type, uint8_t op = 0) {
  return rooted(function, count, type, -1, op);
}

// An all-to-all is as large as the group of messages that does the same.
size_t times_members(size_t count, Handle handle) {
  const Comm* comm = find_comm(handle);
  return comm != nullptr ? count * comm->nranks : count;
}

}  // namespace

PACELINE_EXPORT Result ncclAllReduce(const void* in, void* out, size_t count, int type, int op, Handle comm,
                                     Stream stream) {
  PACELINE_FIND(ncclAllReduce);
  return observe(comm, stream, plain(PACELINE_FUNCTION_ALL_REDUCE, count, type, reduce_op_of(op)),
                 [&] { return forward(in, out, count, type, op, comm, stream); });
}

PACELINE_EXPORT Result ncclBroadcast(const void* in, void* out, size_t count, int type, int root, Handle comm,
                                     Stream stream) {
  PACELINE_FIND(ncclBroadcast);
  return observe(comm, stream, rooted(PACELINE_FUNCTION_BROADCAST, count, type, root),
                 [&] { return forward(in, out, count, type, root, comm, stream); });
}

PACELINE_EXPORT Result ncclBcast(void* buffer, size_t count, int type, int root, Handle comm, Stream stream) {
  PACELINE_FIND(ncclBcast);
  return observe(comm, stream, rooted(PACELINE_FUNCTION_BROADCAST, count, type, root),
                 [&] { return forward(buffer, count, type, root, comm, stream); });
}

PACELINE_EXPORT Result ncclReduce(const void* in, void* out, size_t count, int type, int op, int root, Handle comm,
                                  Stream stream) {
  PACELINE_FIND(ncclReduce);
  return observe(comm, stream, rooted(PACELINE_FUNCTION_REDUCE, count, type, root, reduce_op_of(op)),
                 [&] { return forward(in, out, count, type, op, root, comm, stream); });
}

PACELINE_EXPORT Result ncclAllGather(const void* in, void* out, size_t count, int type, Handle comm, Stream stream) {
  PACELINE_FIND(ncclAllGather);
  return observe(comm, stream, plain(PACELINE_FUNCTION_ALL_GATHER, count, type),
                 [&] { return forward(in, out, count, type, comm, stream); });
}

PACELINE_EXPORT Result ncclReduceScatter(const void* in, void* out, size_t count, int type, int op, Handle comm,
                                         Stream stream) {
  PACELINE_FIND(ncclReduceScatter);
  return observe(comm, stream, plain(PACELINE_FUNCTION_REDUCE_SCATTER, count, type, reduce_op_of(op)),
                 [&] { return forward(in, out, count, type, op, comm, stream); });
}

PACELINE_EXPORT Result ncclAlltoAll(const void* in, void* out, size_t count, int type, Handle comm, Stream stream) {
  PACELINE_FIND(ncclAlltoAll);
  return observe(comm, stream, plain(PACELINE_FUNCTION_ALL_TO_ALL, times_members(count, comm), type),
                 [&] { return forward(in, out, count, type, comm, stream); });
}

PACELINE_EXPORT Result ncclGather(const void* in, void* out, size_t count, int type, int root, Handle comm,
                                  Stream stream) {
  PACELINE_FIND(ncclGather);
  return observe(comm, stream, rooted(PACELINE_FUNCTION_GATHER, count, type, root),
                 [&] { return forward(in, out, count, type, root, comm, stream); });
}

PACELINE_EXPORT Result ncclScatter(const void* in, void* out, size_t count, int type, int root, Handle comm,
                                   Stream stream) {
  PACELINE_FIND(ncclScatter);
  return observe(comm, stream, rooted(PACELINE_FUNCTION_SCATTER, count, type, root),
                 [&] { return forward(in, out, count, type, root, comm, stream); });
}

PACELINE_EXPORT Result ncclSend(const void* buffer, size_t count, int type, int peer, Handle comm, Stream stream) {
  PACELINE_FIND(ncclSend);
  return observe(comm, stream, rooted(PACELINE_FUNCTION_SEND, count, type, peer),
                 [&] { return forward(buffer, count, type, peer, comm, stream); });
}

PACELINE_EXPORT Result ncclRecv(void* buffer, size_t count, int type, int peer, Handle comm, Stream stream) {
  PACELINE_FIND(ncclRecv);
  return observe(comm, stream, rooted(PACELINE_FUNCTION_RECV, count, type, peer),
                 [&] { return forward(buffer, count, type, peer, comm, stream); });
}
