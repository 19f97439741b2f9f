/* A library to preload into perftest: a poll of a completion queue that finds nothing gives the core up.
 *
 * Why: soft RoCE moves bytes on the core that polls. A program that polls without a system call keeps it from running until the next tick of
 * the clock, and a rate so measured is that of the clock. With this the peer is at its best (bench/rdma.py times it with and without).
 *
 *     cc -O2 -shared -fPIC yielding_poll.c -o yielding_poll.so -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <sched.h>

static int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);

static int yielding_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc) {
  const int found = poll_cq(cq, count, wc);
  if (found == 0) sched_yield();
  return found;
}

struct ibv_context *ibv_open_device(struct ibv_device *device) {
  struct ibv_context *(*open_device)(struct ibv_device *) =
      (struct ibv_context * (*)(struct ibv_device *)) dlsym(RTLD_NEXT, "ibv_open_device");
  struct ibv_context *context = open_device(device);
  if (context) {
    poll_cq = context->ops.poll_cq;
    context->ops.poll_cq = yielding_poll_cq;
  }
  return context;
}
