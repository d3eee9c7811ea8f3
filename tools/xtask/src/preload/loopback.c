/* A program without defects: it sends a message from one queue pair to another, waits for completion events in a thread,
 * and destroys its objects. It prints the device's GID.
 *
 * With the argument `child`, it runs itself as a child too. With `hold`, it then keeps the device open until the end of the
 * standard input. With `bind`, it keeps UDP port 4791 of all addresses instead. */

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(3);                                                        \
		}                                                                       \
	} while (0)

enum { SIZE = 20000 };

static struct ibv_comp_channel *channel;

/* Waits for the completions of a SEND and of a RECV. */
static void *complete(void *unused)
{
	unsigned events = 0;
	struct ibv_cq *cq = NULL;

	for (int count = 0; count < 2;) {
		void *context;

		CHECK(!ibv_get_cq_event(channel, &cq, &context));
		events++;
		CHECK(!ibv_req_notify_cq(cq, 0));
		struct ibv_wc wc;
		for (int polled; (polled = ibv_poll_cq(cq, 1, &wc)); count++)
			CHECK(polled == 1 && wc.status == IBV_WC_SUCCESS);
	}
	ibv_ack_cq_events(cq, events);
	return unused;
}

static void connect_to(struct ibv_qp *qp, uint32_t peer, union ibv_gid *gid)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .hop_limit = 1 } },
	};
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1
	};
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Waits for the end of the standard input. */
static void hold(void)
{
	fflush(stdout);
	while (getchar() != EOF)
		;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "bind")) {
		struct sockaddr_in all = { .sin_family = AF_INET, .sin_port = htons(4791) };

		CHECK(!bind(socket(AF_INET, SOCK_DGRAM, 0), (struct sockaddr *)&all, sizeof all));
		puts("bound");
		hold();
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "child")) {
		pid_t pid = fork();
		int status;

		CHECK(pid >= 0);
		if (!pid) {
			execl("/proc/self/exe", argv[0], (char *)NULL);
			_exit(4);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	}

	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	char text[INET6_ADDRSTRLEN];
	printf("%s\n", inet_ntop(AF_INET6, &gid, text, sizeof text));

	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *from = malloc(SIZE), *to = malloc(SIZE);
	CHECK(pd && from && to);
	memset(from, 0x5a, SIZE);
	memset(to, 0, SIZE);
	struct ibv_mr *mrs[2] = { ibv_reg_mr(pd, from, SIZE, 0), ibv_reg_mr(pd, to, SIZE, IBV_ACCESS_LOCAL_WRITE) };
	CHECK(mrs[0] && mrs[1] && (channel = ibv_create_comp_channel(context)));
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	CHECK(cq && !ibv_req_notify_cq(cq, 0));
	struct ibv_qp *qps[2];
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr attr = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
			.qp_type = IBV_QPT_RC,
			.sq_sig_all = 1,
		};
		CHECK((qps[i] = ibv_create_qp(pd, &attr)));
	}
	connect_to(qps[0], qps[1]->qp_num, &gid);
	connect_to(qps[1], qps[0]->qp_num, &gid);

	struct ibv_sge sge = { (uintptr_t)to, SIZE, mrs[1]->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	CHECK(!ibv_post_recv(qps[1], &recv, &bad_recv));
	sge = (struct ibv_sge) { (uintptr_t)from, SIZE, mrs[0]->lkey };
	struct ibv_send_wr send = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	CHECK(!ibv_post_send(qps[0], &send, &bad_send));
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, complete, NULL));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!memcmp(from, to, SIZE));
	if (argc > 1 && !strcmp(argv[1], "hold"))
		hold();

	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	CHECK(!ibv_dereg_mr(mrs[0]) && !ibv_dereg_mr(mrs[1]) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	free(from);
	free(to);
	return 0;
}
