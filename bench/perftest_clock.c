/* A library to preload into perftest, which cannot time itself in the rig (no clock frequency in /proc/cpuinfo): it says when the first
 * write was posted and when the last completion was found, as perftest takes its own times.
 *
 *     cc -O2 -shared -fPIC perftest_clock.c -o perftest_clock.so -ldl
 *
 * At the end one line goes to stdout: "clock BEGIN_NS END_NS", of CLOCK_MONOTONIC; none where nothing was posted. Environment:
 *
 *   PERFTEST_MEETING    FILE:N: the first write waits until N programs with this file are about to post. Programs on several NICs, which
 *                       take a second to start and connect on the one core of a machine, so begin together.
 *   PERFTEST_YIELDS=1   a poll that finds nothing gives the core up. Soft RoCE moves bytes on the core that polls: a program that polls
 *                       without a system call keeps it from running until the next tick of the clock, and its rate is that of the clock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
static int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
static void (*wr_start)(struct ibv_qp_ex *);
static long long begin_ns, end_ns;
static int yields;

static long long now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void meet(void) {
  char file[4096];
  int n = 0;
  const char *meeting = getenv("PERFTEST_MEETING");
  if (!meeting || sscanf(meeting, "%4095[^:]:%d", file, &n) != 2) return;
  const int fd = open(file, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(int)) != 0) abort();
  int *came = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (came == MAP_FAILED) abort();
  __atomic_add_fetch(came, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(came, __ATOMIC_SEQ_CST) < n) usleep(200);
}

static void about_to_post(void) {
  if (begin_ns) return;
  meet();
  begin_ns = now_ns();
}

static int clocked_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc) {
  const int found = poll_cq(cq, count, wc);
  if (found > 0) end_ns = now_ns();
  if (found == 0 && yields) sched_yield();
  return found;
}

static int clocked_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  about_to_post();
  return post_send(qp, wr, bad);
}

static void clocked_wr_start(struct ibv_qp_ex *qp) {
  about_to_post();
  wr_start(qp);
}

static struct ibv_qp *clocked_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attributes) {
  struct ibv_qp *qp = create_qp_ex(context, attributes);
  if (qp && attributes->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
    struct ibv_qp_ex *(*to_ex)(struct ibv_qp *) = (struct ibv_qp_ex * (*)(struct ibv_qp *)) dlsym(RTLD_NEXT, "ibv_qp_to_qp_ex");
    struct ibv_qp_ex *ex = to_ex(qp);
    wr_start = ex->wr_start;
    ex->wr_start = clocked_wr_start;
  }
  return qp;
}

struct ibv_context *ibv_open_device(struct ibv_device *device) {
  struct ibv_context *(*open_device)(struct ibv_device *) =
      (struct ibv_context * (*)(struct ibv_device *)) dlsym(RTLD_NEXT, "ibv_open_device");
  struct ibv_context *context = open_device(device);
  if (!context) return context;
  yields = getenv("PERFTEST_YIELDS") && !strcmp(getenv("PERFTEST_YIELDS"), "1");
  poll_cq = context->ops.poll_cq;
  context->ops.poll_cq = clocked_poll_cq;
  post_send = context->ops.post_send;
  context->ops.post_send = clocked_post_send;
  struct verbs_context *extended = verbs_get_ctx(context);
  if (extended && extended->create_qp_ex) {
    create_qp_ex = extended->create_qp_ex;
    extended->create_qp_ex = clocked_create_qp_ex;
  }
  return context;
}

__attribute__((destructor)) static void say(void) {
  if (!begin_ns || !end_ns) return;
  fflush(stdout);
  dprintf(1, "\nclock %lld %lld\n", begin_ns, end_ns);
}
