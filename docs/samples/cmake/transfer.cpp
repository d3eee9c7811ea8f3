// Sends messages to another process, which checks them: `transfer COUNT`.
//
// One message is in flight at a time. So the sequence of packets, and with the same seed the lost packets, are the same in
// each run.

#include <infiniband/verbs.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace {

constexpr std::size_t kSize = 1000;

// About two seconds. A shorter time would cause retransmissions of packets that aren't lost, if the machine is busy.
constexpr std::uint8_t kTimeout = 19;

template <typename T>
T check(T result, const char* operation) {
  if (!result) throw std::system_error(errno, std::generic_category(), operation);
  return result;
}

void check_status(int status, const char* operation) {
  if (status != 0) throw std::system_error(status, std::generic_category(), operation);
}

// The part of a queue pair that its peer has to know.
struct Address {
  std::uint32_t queue_pair;
  ibv_gid gid;
};

// One end of a connection: a queue pair, its completion queue, and memory for a number of messages.
class Endpoint {
 public:
  explicit Endpoint(int count) : memory_(count * kSize) {
    ibv_device** devices = check(ibv_get_device_list(nullptr), "ibv_get_device_list");
    if (devices[0] == nullptr) throw std::runtime_error("there is no RDMA device");
    context_ = check(ibv_open_device(devices[0]), "ibv_open_device");
    ibv_free_device_list(devices);
    domain_ = check(ibv_alloc_pd(context_), "ibv_alloc_pd");
    queue_ = check(ibv_create_cq(context_, count, nullptr, nullptr, 0), "ibv_create_cq");
    region_ = check(ibv_reg_mr(domain_, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = queue_;
    attributes.cap.max_send_wr = attributes.cap.max_recv_wr = count;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    attributes.qp_type = IBV_QPT_RC;
    pair_ = check(ibv_create_qp(domain_, &attributes), "ibv_create_qp");
  }

  ~Endpoint() {
    ibv_destroy_qp(pair_);
    ibv_dereg_mr(region_);
    ibv_destroy_cq(queue_);
    ibv_dealloc_pd(domain_);
    ibv_close_device(context_);
  }

  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Exchanges addresses over a socket, and connects the queue pair. Receives are posted first.
  void connect(int socket, int receives) {
    Address own{pair_->qp_num, {}}, peer{};
    check_status(ibv_query_gid(context_, 1, 0, &own.gid), "ibv_query_gid");
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    for (int n = 0; n < receives; n++) post_receive(n);
    if (write(socket, &own, sizeof own) != sizeof own || read(socket, &peer, sizeof peer) != sizeof peer)
      throw std::runtime_error("the peer sent no address");

    attributes = {};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = peer.queue_pair;
    attributes.max_dest_rd_atomic = 1;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.dgid = peer.gid;
    attributes.ah_attr.grh.hop_limit = 64;
    modify(attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = kTimeout;
    attributes.retry_cnt = attributes.rnr_retry = 7;
    attributes.max_rd_atomic = 1;
    modify(attributes, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC);

    // The peer is ready to receive before this side sends.
    char ready = 0;
    if (write(socket, &ready, 1) != 1 || read(socket, &ready, 1) != 1) throw std::runtime_error("the peer isn't ready");
  }

  // The memory of a message.
  unsigned char* message(int n) { return &memory_[n * kSize]; }

  void post_send(int n) {
    ibv_sge part = segment(n);
    ibv_send_wr request{}, *bad = nullptr;
    request.sg_list = &part;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    check_status(ibv_post_send(pair_, &request, &bad), "ibv_post_send");
  }

  void post_receive(int n) {
    ibv_sge part = segment(n);
    ibv_recv_wr request{}, *bad = nullptr;
    request.sg_list = &part;
    request.num_sge = 1;
    check_status(ibv_post_recv(pair_, &request, &bad), "ibv_post_recv");
  }

  // Polls until the next request is complete.
  void await_completion() {
    ibv_wc completion{};
    int count = 0;
    while ((count = ibv_poll_cq(queue_, 1, &completion)) == 0) {
    }
    if (count < 0) throw std::runtime_error("ibv_poll_cq failed");
    if (completion.status != IBV_WC_SUCCESS) throw std::runtime_error(ibv_wc_status_str(completion.status));
  }

 private:
  void modify(ibv_qp_attr& attributes, int mask) {
    check_status(ibv_modify_qp(pair_, &attributes, mask), "ibv_modify_qp");
  }

  ibv_sge segment(int n) { return {reinterpret_cast<std::uintptr_t>(message(n)), kSize, region_->lkey}; }

  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::vector<unsigned char> memory_;
};

// The bytes of a message.
unsigned char content(int n, std::size_t at) { return static_cast<unsigned char>(n + at * 7); }

void receive(int socket, int count) {
  Endpoint endpoint(count);
  endpoint.connect(socket, count);
  for (int n = 0; n < count; n++) {
    endpoint.await_completion();
    for (std::size_t at = 0; at < kSize; at++)
      if (endpoint.message(n)[at] != content(n, at)) throw std::runtime_error("message " + std::to_string(n) + " differs");
  }
}

void send(int socket, int count) {
  Endpoint endpoint(1);
  endpoint.connect(socket, 0);
  for (int n = 0; n < count; n++) {
    for (std::size_t at = 0; at < kSize; at++) endpoint.message(0)[at] = content(n, at);
    endpoint.post_send(0);
    endpoint.await_completion();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 100;
  int sockets[2];
  if (count < 1 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 2;
  // The processes open the device after the fork: a child can't use its parent's objects.
  const pid_t child = fork();
  const bool is_receiver = child == 0;
  close(sockets[is_receiver ? 0 : 1]);
  try {
    is_receiver ? receive(sockets[1], count) : send(sockets[0], count);
  } catch (const std::exception& error) {
    std::cerr << (is_receiver ? "receiver: " : "sender: ") << error.what() << '\n';
    return 1;
  }
  if (is_receiver) return 0;
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) return 1;
  std::cout << count << " messages arrived\n";
}
