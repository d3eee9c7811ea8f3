/* Calls of librdmacm that rdma-core's own programs don't test. Both ends are in this process. The argument is the device's
   address. */
#define _GNU_SOURCE /* dlvsym */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

#define CHECK(condition)                                                                     \
	do {                                                                                 \
		if (!(condition)) {                                                          \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

static struct sockaddr_in addr;

/* Waits for the next event, which must be of this type. */
static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != type) {
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(type));
		exit(1);
	}
	return event;
}

static struct rdma_cm_id *listener(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, &addr, RDMA_PS_TCP) == 0);
	addr.sin_port = 0;
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&addr) == 0);
	CHECK(rdma_listen(id, 8) == 0);
	addr.sin_port = rdma_get_src_port(id);
	CHECK(addr.sin_port != 0);
	return id;
}

/* Returns an identifier that has requested a connection to the listener. */
static struct rdma_cm_id *connector(struct rdma_event_channel *channel)
{
	struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 5 };
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 1000) == 0);
	CHECK(rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED)) == 0);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	CHECK(rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED)) == 0);
	CHECK(id->verbs && id->pd && id->port_num == 1 && id->route.num_paths == 1);
	CHECK(rdma_create_qp(id, NULL, &init) == 0 && id->send_cq && id->recv_cq);
	CHECK(rdma_connect(id, &param) == 0);
	return id;
}

static void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* Returns an identifier for the addresses of one family. */
static struct rdma_cm_id *of_one_family(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;
	int yes = 1;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof(yes)) == 0);
	return id;
}

/* Listeners of different families have the same port, as tgtd's. A request goes to the one of its family. */
static void listen_on_both_families(struct rdma_event_channel *server, struct rdma_event_channel *client)
{
	struct rdma_cm_id *v6 = of_one_family(server), *v4 = of_one_family(server), *both, *second, *connecting;
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = htons(7820) };
	struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons(7820) };
	struct rdma_cm_event *event;

	CHECK(rdma_bind_addr(v6, (struct sockaddr *)&any6) == 0 && rdma_listen(v6, 0) == 0);
	CHECK(rdma_create_id(server, &both, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(both, (struct sockaddr *)&any4) == -1 && errno == EADDRINUSE);
	destroy(both);
	addr.sin_port = any4.sin_port;
	connecting = connector(client);
	CHECK(rdma_ack_cm_event(next(client, RDMA_CM_EVENT_REJECTED)) == 0);
	destroy(connecting);

	CHECK(rdma_bind_addr(v4, (struct sockaddr *)&any4) == 0 && rdma_listen(v4, 0) == 0);
	second = of_one_family(server);
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&any4) == -1 && errno == EADDRINUSE);
	destroy(second);
	connecting = connector(client);
	event = next(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == v4 && rdma_reject(event->id, NULL, 0) == 0);
	both = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy(both);
	CHECK(rdma_ack_cm_event(next(client, RDMA_CM_EVENT_REJECTED)) == 0);
	destroy(connecting);
	destroy(v4);
	destroy(v6);
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *server = rdma_create_event_channel(), *client = rdma_create_event_channel();
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_conn_param param = { .private_data = "welcome", .private_data_len = 7 };
	struct rdma_cm_id *listening, *connecting, *accepted;
	struct rdma_cm_event *event;
	struct ibv_context **devices;
	struct timespec second = { .tv_sec = 1 };
	struct pollfd readable;
	sigset_t signals;
	void *library;
	int count;

	CHECK(argc == 2 && server && client && other);
	addr.sin_family = AF_INET;
	CHECK(inet_pton(AF_INET, argv[1], &addr.sin_addr) == 1);

	/* Programs that load the library find its functions with their versions. */
	library = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(library && dlvsym(library, "rdma_create_id", "RDMACM_1.0") == (void *)rdma_create_id);
	CHECK(dlvsym(library, "rdma_establish", "RDMACM_1.2") && !dlvsym(library, "rdma_establish", "RDMACM_1.0"));
	devices = rdma_get_devices(&count);
	CHECK(devices && count == 1 && devices[0] && !devices[1]);

	/* A descriptor that doesn't block, and can be polled. */
	listening = listener(server);
	CHECK(fcntl(server->fd, F_SETFL, fcntl(server->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(rdma_get_cm_event(server, &event) == -1 && errno == EAGAIN);
	connecting = connector(client);
	CHECK(connecting->verbs == devices[0]);
	readable = (struct pollfd){ .fd = server->fd, .events = POLLIN };
	CHECK(poll(&readable, 1, 60000) == 1);

	/* A connection request, moved to another channel and rejected. */
	event = next(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listening && event->id->context == &addr);
	CHECK(event->param.conn.private_data_len >= 5 && !memcmp(event->param.conn.private_data, "hello", 6));
	CHECK(rdma_get_dst_port(event->id) == rdma_get_src_port(connecting));
	accepted = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_reject(accepted, "no", 3) == 0);
	event = next(client, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28 && !strcmp(event->param.conn.private_data, "no"));
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_accept(accepted, &param) == -1);
	destroy(accepted);
	destroy(connecting);

	/* An accepted one, whose events go to another channel. */
	CHECK(fcntl(server->fd, F_SETFL, 0) == 0);
	connecting = connector(client);
	event = next(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	accepted = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_migrate_id(accepted, other) == 0);
	CHECK(rdma_create_qp(accepted, NULL, &init) == 0 && rdma_accept(accepted, &param) == 0);
	event = next(client, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!memcmp(event->param.conn.private_data, "welcome", 8));
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_ack_cm_event(next(other, RDMA_CM_EVENT_ESTABLISHED)) == 0);
	CHECK(accepted->qp->state == IBV_QPS_RTS && connecting->qp->state == IBV_QPS_RTS);
	CHECK(rdma_disconnect(connecting) == 0);
	CHECK(rdma_ack_cm_event(next(client, RDMA_CM_EVENT_DISCONNECTED)) == 0);
	CHECK(rdma_ack_cm_event(next(other, RDMA_CM_EVENT_DISCONNECTED)) == 0);
	CHECK(rdma_disconnect(accepted) == 0);
	destroy(connecting);
	destroy(accepted);

	/* Destroying a listener rejects the requests that the program hasn't read. */
	connecting = connector(client);
	readable = (struct pollfd){ .fd = server->fd, .events = POLLIN };
	CHECK(poll(&readable, 1, 60000) == 1);
	destroy(listening);
	CHECK(poll(&readable, 1, 0) == 0);
	CHECK(rdma_ack_cm_event(next(client, RDMA_CM_EVENT_REJECTED)) == 0);
	destroy(connecting);

	listen_on_both_families(server, client);

	/* Invalid calls. */
	CHECK(rdma_create_id(client, &connecting, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_connect(connecting, &param) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_route(connecting, 1) == -1 && errno == EINVAL);
	CHECK(rdma_disconnect(connecting) == -1 && errno == EINVAL);
	CHECK(inet_pton(AF_INET, "192.0.2.1", &addr.sin_addr) == 1);
	CHECK(rdma_bind_addr(connecting, (struct sockaddr *)&addr) == -1 && errno == EADDRNOTAVAIL);
	destroy(connecting);

	/* The program may block signals after the library has started its threads. */
	CHECK(sigemptyset(&signals) == 0 && sigaddset(&signals, SIGUSR2) == 0);
	CHECK(sigprocmask(SIG_BLOCK, &signals, NULL) == 0 && kill(getpid(), SIGUSR2) == 0);
	CHECK(sigtimedwait(&signals, NULL, &second) == SIGUSR2);

	rdma_free_devices(devices);
	rdma_destroy_event_channel(server);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(other);
	return 0;
}
