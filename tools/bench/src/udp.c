// Plain UDP between two processes, as a baseline. `udp bandwidth MILLISECONDS` prints the received MB/s; `udp latency
// ROUNDS` prints half a round trip in µs, at the 50th percentile.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

// Packets of 4 KiB with headers, and as many per GSO batch as fit in a datagram, like the software NIC's.
enum { SEGMENT = 4112, GSO_BATCH = 15 * SEGMENT, BUFFER_SIZE = 1 << 16, MESSAGE = 24 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static struct sockaddr_in address(int host, int port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  a.sin_addr.s_addr = htonl(0x7f000000 | host);
  return a;
}

static int bound(struct sockaddr_in at) {
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  int size = 8 << 20;
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at)) {
    perror("bind");
    exit(1);
  }
  return fd;
}

// Pins the process to a CPU: busy polling processes must not share one.
static void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static void bandwidth(int fd, int peer, struct sockaddr_in *to, double seconds) {
  static char bytes[BUFFER_SIZE];
  int on = 1, segment = SEGMENT;
  setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof on);
  pid_t child = fork();
  pin(!child);
  if (!child) {
    if (setsockopt(peer, SOL_UDP, UDP_SEGMENT, &segment, sizeof segment)) perror("UDP_SEGMENT");
    for (;;) sendto(peer, bytes, GSO_BATCH, 0, (struct sockaddr *)to, sizeof *to);
  }
  double received = 0, start = now(), end = start + seconds, at;
  while ((at = now()) < end) {
    ssize_t length = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (length > 0) received += length;
  }
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  printf("%.2f\n", received / (at - start) / 1e6);
}

static void latency(int fd, int peer, struct sockaddr_in *to, struct sockaddr_in *back, int rounds) {
  char message[MESSAGE] = {0};
  pid_t child = fork();
  pin(!child);
  if (!child) {
    for (int i = 0; i < rounds; i++) {
      while (recv(fd, message, MESSAGE, MSG_DONTWAIT) < 0) {}
      sendto(fd, message, MESSAGE, 0, (struct sockaddr *)back, sizeof *back);
    }
    exit(0);
  }
  double *times = calloc(rounds, sizeof *times);
  for (int i = 0; i < rounds; i++) {
    double start = now();
    sendto(peer, message, MESSAGE, 0, (struct sockaddr *)to, sizeof *to);
    while (recv(peer, message, MESSAGE, MSG_DONTWAIT) < 0) {}
    times[i] = now() - start;
  }
  waitpid(child, NULL, 0);
  qsort(times, rounds, sizeof *times, compare);
  printf("%.4f\n", times[rounds / 2] * 1e6 / 2);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  int host = 0x400000 | (getpid() & 0x1fffff) << 1;
  struct sockaddr_in to = address(host, 7001), back = address(host + 1, 7001);
  int fd = bound(to), peer = bound(back);
  if (!strcmp(argv[1], "bandwidth")) bandwidth(fd, peer, &to, atoi(argv[2]) / 1e3);
  else latency(fd, peer, &to, &back, atoi(argv[2]));
}
