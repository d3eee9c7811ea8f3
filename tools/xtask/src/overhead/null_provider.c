// A no-op libibverbs: its only device, null0, completes every request at once, so a measurement shows the caller's
// cost. It is built as libibverbs.so.1 and loaded instead of the real one.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_query_port
#undef ibv_reg_mr

#define DEPTH 4096 // a power of two

static struct ibv_device device = {
    .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "null0", .dev_name = "null0"};
static struct ibv_device *devices[] = {&device, NULL};

// The requests that were posted and not yet polled. One queue is enough, because everything completes in order.
static struct { uint64_t wr_id; uint32_t qp_num; enum ibv_wc_opcode opcode; } posted[DEPTH];
static unsigned next_posted, next_polled;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  for (; wr; wr = wr->next) {
    if (!(wr->send_flags & IBV_SEND_SIGNALED)) continue;
    unsigned at = next_posted++ % DEPTH;
    posted[at].wr_id = wr->wr_id;
    posted[at].qp_num = qp->qp_num;
    posted[at].opcode = IBV_WC_RDMA_WRITE;
  }
  return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) { return 0; }

static int poll_cq(struct ibv_cq *cq, int num, struct ibv_wc *wc) {
  int count = 0;
  for (; count < num && next_polled != next_posted; count++) {
    unsigned at = next_polled++ % DEPTH;
    wc[count].wr_id = posted[at].wr_id;
    wc[count].status = IBV_WC_SUCCESS;
    wc[count].opcode = posted[at].opcode;
    wc[count].qp_num = posted[at].qp_num;
    wc[count].byte_len = 0;
    wc[count].wc_flags = 0;
  }
  return count;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only) { return 0; }

struct ibv_device **ibv_get_device_list(int *count) { if (count) *count = 1; return devices; }
void ibv_free_device_list(struct ibv_device **list) {}
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }
__be64 ibv_get_device_guid(struct ibv_device *device) { return 1; }

struct ibv_context *ibv_open_device(struct ibv_device *device) {
  struct ibv_context *context = calloc(1, sizeof *context);
  context->device = device;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = req_notify_cq;
  context->num_comp_vectors = 1;
  return context;
}
int ibv_close_device(struct ibv_context *context) { free(context); return 0; }

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
  *attr = (struct ibv_device_attr){.max_mr_size = 1ul << 40, .max_qp = 1000, .max_qp_wr = DEPTH, .max_sge = 16,
      .max_cq = 1000, .max_cqe = DEPTH, .max_mr = 1000, .max_pd = 1000, .max_qp_rd_atom = 16,
      .max_qp_init_rd_atom = 16, .phys_port_cnt = 1};
  return 0;
}
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compat) {
  struct ibv_port_attr *attr = (struct ibv_port_attr *)compat;
  attr->state = IBV_PORT_ACTIVE;
  attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
  attr->gid_tbl_len = 1;
  attr->pkey_tbl_len = 1;
  attr->max_msg_sz = 1u << 31;
  attr->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
                             size_t size) {
  memset(entries, 0, size);
  entries->gid.raw[15] = 1;
  entries->port_num = 1;
  entries->gid_type = IBV_GID_TYPE_ROCE_V2;
  return 1;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  struct ibv_pd *pd = calloc(1, sizeof *pd);
  pd->context = context;
  return pd;
}
int ibv_dealloc_pd(struct ibv_pd *pd) { free(pd); return 0; }
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
  struct ibv_mr *mr = calloc(1, sizeof *mr);
  *mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length, .lkey = 7, .rkey = 7};
  return mr;
}
int ibv_dereg_mr(struct ibv_mr *mr) { free(mr); return 0; }
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
                             int comp_vector) {
  struct ibv_cq *cq = calloc(1, sizeof *cq);
  cq->context = context;
  cq->cqe = cqe;
  return cq;
}
int ibv_destroy_cq(struct ibv_cq *cq) { free(cq); return 0; }
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  static uint32_t numbers = 16;
  struct ibv_qp *qp = calloc(1, sizeof *qp);
  *qp = (struct ibv_qp){.context = pd->context, .pd = pd, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq,
      .qp_num = ++numbers, .qp_type = attr->qp_type};
  return qp;
}
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) { return 0; }
int ibv_destroy_qp(struct ibv_qp *qp) { free(qp); return 0; }

// Functions that the loader must find, but that no benchmark calls. They are declared in assembly, because C would
// require each function's own type.
void unused(void) { abort(); }
#define UNUSED(name) __asm__(".globl " #name "\n.set " #name ", unused");
UNUSED(ibv_get_async_event) UNUSED(ibv_ack_async_event) UNUSED(ibv_query_gid) UNUSED(ibv_query_pkey)
UNUSED(ibv_rereg_mr) UNUSED(ibv_create_comp_channel) UNUSED(ibv_destroy_comp_channel) UNUSED(ibv_resize_cq)
UNUSED(ibv_get_cq_event) UNUSED(ibv_ack_cq_events) UNUSED(ibv_create_srq) UNUSED(ibv_modify_srq)
UNUSED(ibv_query_srq) UNUSED(ibv_destroy_srq) UNUSED(ibv_query_qp) UNUSED(ibv_create_ah) UNUSED(ibv_init_ah_from_wc)
UNUSED(ibv_create_ah_from_wc) UNUSED(ibv_destroy_ah) UNUSED(ibv_attach_mcast) UNUSED(ibv_detach_mcast)
UNUSED(ibv_wc_status_str) UNUSED(ibv_node_type_str) UNUSED(ibv_port_state_str) UNUSED(ibv_event_type_str)
