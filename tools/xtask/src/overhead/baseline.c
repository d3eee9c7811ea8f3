// Posts RDMA WRITEs and polls their completions through the inline functions of rdma-core's headers:
// baseline single|batch N
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 32

int main(int argc, char **argv) {
  int batch = !strcmp(argv[1], "batch");
  long rounds = atol(argv[2]);
  struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
  struct ibv_pd *pd = ibv_alloc_pd(context);
  struct ibv_cq *cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  static char memory[4096];
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  struct ibv_sge sge[BATCH];
  struct ibv_send_wr wr[BATCH], *bad;
  struct ibv_wc wc[16];
  long completed = 0;
  int count = batch ? BATCH : 1;
  for (long round = 0; round < rounds; round += count) {
    for (int i = 0; i < count; i++) {
      sge[i] = (struct ibv_sge){.addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey};
      wr[i] = (struct ibv_send_wr){.wr_id = round + i, .sg_list = &sge[i], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
          .send_flags = IBV_SEND_SIGNALED, .next = i + 1 < count ? &wr[i + 1] : NULL,
          .wr.rdma = {.remote_addr = 0x1000, .rkey = 7}};
    }
    if (ibv_post_send(qp, wr, &bad)) return 1;
    for (int polled = 0; polled < count;) {
      int n = ibv_poll_cq(cq, 16, wc);
      for (int i = 0; i < n; i++) completed += wc[i].status == IBV_WC_SUCCESS;
      polled += n;
    }
  }
  printf("%ld\n", completed);
  return completed != rounds;
}
