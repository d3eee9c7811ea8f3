/* A link with a known delay: forwards frames between two interfaces, and holds each for a time.
 *
 *     relay INTERFACE_A INTERFACE_B MICROSECONDS_FROM_A MICROSECONDS_FROM_B
 *
 * The kernel stamps each frame when it is received and when it is sent. For each probe and acknowledgement, the program
 * prints a line: 0 (from A) or 1 (from B), the kind of packet, its epoch and number, and both stamps in nanoseconds. The
 * difference of the stamps is the time for which the link held the packet, whatever the delay was meant to be. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/net_tstamp.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FRAME 2048
#define MAX_HELD 4096
#define SECOND 1000000000ull

struct frame {
    uint64_t received, due;
    ssize_t len;
    unsigned char bytes[MAX_FRAME];
};

/* The frames from one interface to the other, oldest first. */
static struct direction {
    int from, to;
    uint64_t delay;
    uint64_t first, next;
    struct frame frames[MAX_HELD];
} directions[2];

static void fail(const char *action)
{
    perror(action);
    exit(1);
}

static uint64_t nanos(struct timespec time)
{
    return time.tv_sec * SECOND + time.tv_nsec;
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return nanos(time);
}

static int open_interface(const char *name)
{
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);
    if (fd < 0)
        fail("socket");
    struct packet_mreq all = { .mr_ifindex = if_nametoindex(name), .mr_type = PACKET_MR_PROMISC };
    int one = 1;
    int stamps = SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_TX_SOFTWARE
        | SOF_TIMESTAMPING_OPT_TSONLY;
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = all.mr_ifindex
    };
    /* The header says which checksums are still to be computed. */
    if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one)
        || setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all)
        || setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &stamps, sizeof stamps)
        || bind(fd, (struct sockaddr *)&address, sizeof address))
        fail(name);
    return fd;
}

/* Returns the kernel's stamp of a message, or 0. */
static uint64_t stamp_of(struct msghdr *message)
{
    for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control; control = CMSG_NXTHDR(message, control))
        if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_TIMESTAMPING) {
            struct scm_timestamping stamps;
            memcpy(&stamps, CMSG_DATA(control), sizeof stamps);
            return nanos(stamps.ts[0]);
        }
    return 0;
}

/* Receives a frame, and returns whether there was one. */
static int receive(struct direction *direction)
{
    if (direction->next - direction->first == MAX_HELD)
        return 0;
    struct frame *frame = &direction->frames[direction->next % MAX_HELD];
    char control[512];
    struct sockaddr_ll source = { 0 };
    struct iovec part = { frame->bytes, sizeof frame->bytes };
    struct msghdr message = {
        .msg_name = &source, .msg_namelen = sizeof source, .msg_iov = &part, .msg_iovlen = 1,
        .msg_control = control, .msg_controllen = sizeof control,
    };
    frame->len = recvmsg(direction->from, &message, 0);
    if (frame->len < 0)
        return 0;
    if (source.sll_pkttype == PACKET_OUTGOING || (message.msg_flags & MSG_TRUNC))
        return 1;
    frame->received = stamp_of(&message);
    frame->due = frame->received + direction->delay;
    direction->next++;
    return 1;
}

/* Returns the kernel's stamp of the frame that was just sent. */
static uint64_t sent_stamp(int fd)
{
    uint64_t stamp = 0;
    for (int attempt = 0; attempt < 1000; attempt++) {
        char control[512];
        struct msghdr message = { .msg_control = control, .msg_controllen = sizeof control };
        if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0)
            stamp = stamp_of(&message);
        else if (stamp)
            return stamp;
    }
    return 0;
}

static uint32_t number_at(const unsigned char *bytes)
{
    uint32_t number;
    memcpy(&number, bytes, sizeof number);
    return ntohl(number);
}

static void forward(struct direction *direction)
{
    struct frame *frame = &direction->frames[direction->first++ % MAX_HELD];
    if (send(direction->to, frame->bytes, frame->len, 0) < 0)
        return;
    uint64_t sent = sent_stamp(direction->to);
    /* Ethernet, IPv4, UDP to port 4791, the BTH and the DETH precede the payload. */
    const unsigned char *ip = frame->bytes + sizeof(struct virtio_net_hdr) + ETH_HLEN;
    const unsigned char *payload = ip + 20 + 8 + 12 + 8;
    if (frame->len >= payload + 16 - frame->bytes && ip[0] == 0x45 && ip[9] == IPPROTO_UDP && ip[22] == 0x12
        && ip[23] == 0xb7 && payload[0] == 0xad)
        printf("%d %d %u %u %llu %llu\n", (int)(direction - directions), payload[2], number_at(payload + 8),
            number_at(payload + 12), (unsigned long long)frame->received, (unsigned long long)sent);
}

int main(int count, char **arguments)
{
    if (count != 5) {
        fprintf(stderr, "usage: relay INTERFACE_A INTERFACE_B MICROSECONDS_FROM_A MICROSECONDS_FROM_B\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    prctl(PR_SET_TIMERSLACK, 1);
    int ends[2] = { open_interface(arguments[1]), open_interface(arguments[2]) };
    for (int index = 0; index < 2; index++) {
        directions[index].from = ends[index];
        directions[index].to = ends[!index];
        directions[index].delay = strtoull(arguments[3 + index], NULL, 10) * 1000;
    }
    puts("ready");
    for (;;) {
        uint64_t due = now() + SECOND;
        for (int index = 0; index < 2; index++) {
            struct direction *direction = &directions[index];
            while (receive(direction))
                ;
            while (direction->first < direction->next) {
                struct frame *frame = &direction->frames[direction->first % MAX_HELD];
                if (frame->due > now()) {
                    due = frame->due < due ? frame->due : due;
                    break;
                }
                forward(direction);
            }
        }
        uint64_t time = now(), left = due > time ? due - time : 0;
        struct timespec timeout = { left / SECOND, left % SECOND };
        struct pollfd polled[2] = { { .fd = ends[0], .events = POLLIN }, { .fd = ends[1], .events = POLLIN } };
        if (ppoll(polled, 2, &timeout, NULL) < 0 && errno != EINTR)
            fail("ppoll");
    }
}
