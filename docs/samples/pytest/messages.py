"""Messages between two queue pairs of a device, with pyverbs (Debian's package python3-pyverbs)."""

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE = 1000

# About two seconds. A shorter time would cause retransmissions of packets that aren't lost, if the machine is busy.
TIMEOUT = 19


class Endpoint:
    """A queue pair with its completion queue, and a buffer for each direction."""

    def __init__(self):
        self.context = Context(name=get_device_list()[0].name.decode())
        self.domain = PD(self.context)
        self.queue = CQ(self.context, 4)
        self.outgoing = MR(self.domain, SIZE, e.IBV_ACCESS_LOCAL_WRITE)
        self.incoming = MR(self.domain, SIZE, e.IBV_ACCESS_LOCAL_WRITE)
        capacity = QPCap(max_send_wr=2, max_recv_wr=2)
        attributes = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.queue, rcq=self.queue, cap=capacity)
        self.pair = QP(self.domain, attributes, QPAttr(port_num=1))

    def connect(self, peer):
        """Connects the queue pair with another one."""
        route = GlobalRoute(dgid=peer.context.query_gid(1, 0), sgid_index=0)
        attributes = QPAttr(port_num=1)
        attributes.dest_qp_num = peer.pair.qp_num
        attributes.path_mtu = e.IBV_MTU_1024
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.timeout = TIMEOUT
        attributes.retry_cnt = attributes.rnr_retry = 7
        attributes.min_rnr_timer = 12
        attributes.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.pair.to_rts(attributes)

    def send(self, peer, message):
        """Sends a message, waits until both sides have completed it, and returns what the peer received."""
        peer.pair.post_recv(RecvWR(num_sge=1, sg=[SGE(peer.incoming.buf, SIZE, peer.incoming.lkey)]))
        self.outgoing.write(message, len(message))
        sge = SGE(self.outgoing.buf, len(message), self.outgoing.lkey)
        self.pair.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge], send_flags=e.IBV_SEND_SIGNALED))
        length = _completion(peer.queue).byte_len
        _completion(self.queue)
        return peer.incoming.read(length, 0)

    def close(self):
        for resource in (self.pair, self.outgoing, self.incoming, self.queue, self.domain, self.context):
            resource.close()


def _completion(queue):
    """Waits for a completion."""
    while True:
        count, completions = queue.poll()
        if count > 0:
            assert completions[0].status == e.IBV_WC_SUCCESS, completions[0]
            return completions[0]
