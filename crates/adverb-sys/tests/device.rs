//! Tests of the declarations on the first device that can be opened. They are skipped without a device.

#![cfg(target_os = "linux")]

use std::ffi::CStr;
use std::io::Error;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};
use std::{mem, ptr};

use adverb_sys::*;
use libc::{c_int, c_void, sockaddr_in};

const LENGTH: usize = 4096;

/// An open device with a protection domain and a registered memory region.
struct Fixture {
    ibverbs: &'static Ibverbs,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    mr: *mut ibv_mr,
    memory: Box<[u8]>,
    gid: ibv_gid_entry,
    mtu: ibv_mtu,
}

impl Fixture {
    fn new() -> Option<Self> {
        let ibverbs = Ibverbs::load().inspect_err(|error| println!("skipped: {error}")).ok()?;
        // SAFETY: the arguments of each call were created before it, or are local variables.
        unsafe {
            let list = ibverbs.ibv_get_device_list(ptr::null_mut());
            if list.is_null() || (*list).is_null() {
                println!("skipped: there is no RDMA device");
                return None;
            }
            let context = ibverbs.ibv_open_device(*list);
            ibverbs.ibv_free_device_list(list);
            assert!(!context.is_null(), "{}", Error::last_os_error());
            let mut port = ibv_port_attr::zeroed();
            assert_eq!(ibverbs.ibv_query_port(context, 1, &mut port), 0);
            assert_eq!(port.state, IBV_PORT_ACTIVE);
            let mut table = vec![ibv_gid_entry::zeroed(); 1024];
            let count = ibverbs.ibv_query_gid_table(context, table.as_mut_ptr(), table.len(), 0);
            assert!(count > 0, "{count}");
            // The entry of an IPv4 address is used, because the connection manager resolves it, too.
            let is_ipv4 = |entry: &&ibv_gid_entry| {
                entry.gid_type == IBV_GID_TYPE_ROCE_V2
                    && Ipv6Addr::from(entry.gid.octets()).to_ipv4_mapped().is_some()
            };
            let Some(gid) = table[..count as usize].iter().find(is_ipv4).copied() else {
                println!("skipped: no IPv4 address on the device");
                return None;
            };
            let pd = ibverbs.ibv_alloc_pd(context);
            assert!(!pd.is_null(), "{}", Error::last_os_error());
            let mut memory = vec![0; LENGTH].into_boxed_slice();
            let access = IBV_ACCESS_LOCAL_WRITE
                | IBV_ACCESS_REMOTE_WRITE
                | IBV_ACCESS_REMOTE_ATOMIC
                | IBV_ACCESS_RELAXED_ORDERING;
            let mr = ibverbs.ibv_reg_mr(pd, memory.as_mut_ptr().cast(), LENGTH, access);
            assert!(!mr.is_null(), "{}", Error::last_os_error());
            assert_eq!(((*mr).length, (*mr).addr), (LENGTH, memory.as_mut_ptr().cast()));
            Some(Self { ibverbs, context, pd, mr, memory, gid, mtu: port.active_mtu })
        }
    }

    fn segment(&mut self, offset: usize, length: u32) -> ibv_sge {
        let addr = self.memory.as_mut_ptr().wrapping_add(offset).expose_provenance() as u64;
        // SAFETY: the region is alive.
        ibv_sge { addr, length, lkey: unsafe { (*self.mr).lkey } }
    }

    /// Connects a queue pair to another one of this device, and moves it to ready-to-send.
    unsafe fn connect(&self, qp: *mut ibv_qp, peer: *mut ibv_qp) {
        let ah_attr = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: self.gid.gid,
                sgid_index: self.gid.gid_index as u8,
                hop_limit: 64,
                ..Default::default()
            },
            is_global: 1,
            port_num: 1,
            ..Default::default()
        };
        let init = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
            ..Default::default()
        };
        let rtr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: self.mtu,
            // SAFETY: the caller passes two queue pairs that are alive.
            dest_qp_num: unsafe { (*peer).qp_num },
            rq_psn: 17,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah_attr,
            ..Default::default()
        };
        let rts = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            sq_psn: 17,
            max_rd_atomic: 1,
            ..Default::default()
        };
        let steps = [
            (init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
            (
                rtr,
                IBV_QP_STATE
                    | IBV_QP_AV
                    | IBV_QP_PATH_MTU
                    | IBV_QP_DEST_QPN
                    | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC
                    | IBV_QP_MIN_RNR_TIMER,
            ),
            (
                rts,
                IBV_QP_STATE
                    | IBV_QP_TIMEOUT
                    | IBV_QP_RETRY_CNT
                    | IBV_QP_RNR_RETRY
                    | IBV_QP_SQ_PSN
                    | IBV_QP_MAX_QP_RD_ATOMIC,
            ),
        ];
        for (mut attr, mask) in steps {
            // SAFETY: the caller passes two queue pairs that are alive.
            let error = unsafe { self.ibverbs.ibv_modify_qp(qp, &mut attr, mask) };
            assert_eq!(error, 0, "to state {}: {}", attr.qp_state, Error::from_raw_os_error(error));
        }
        // The device reports the attributes that were set.
        let (mut attr, mut init_attr) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        // SAFETY: the caller passes two queue pairs that are alive.
        unsafe {
            let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_TIMEOUT;
            assert_eq!(self.ibverbs.ibv_query_qp(qp, &mut attr, mask, &mut init_attr), 0);
            assert_eq!((*qp).state, IBV_QPS_RTS);
            assert_eq!(init_attr.send_cq, (*qp).send_cq);
        }
        assert_eq!((attr.qp_state, attr.timeout, attr.retry_cnt), (IBV_QPS_RTS, 14, 7));
        assert_eq!((attr.ah_attr.grh.dgid, attr.ah_attr.port_num), (self.gid.gid, 1));
    }

    unsafe fn close(self) {
        // SAFETY: the caller has destroyed all objects of the device.
        unsafe {
            assert_eq!(self.ibverbs.ibv_dereg_mr(self.mr), 0);
            assert_eq!(self.ibverbs.ibv_dealloc_pd(self.pd), 0);
            assert_eq!(self.ibverbs.ibv_close_device(self.context), 0);
        }
    }
}

const CAP: ibv_qp_cap =
    ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 0 };

#[test]
fn messages_and_atomics_pass_through_plain_queues() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let ibverbs = fixture.ibverbs;
    fixture.memory[..5].copy_from_slice(b"hello");
    fixture.memory[1024..1032].copy_from_slice(&40_u64.to_ne_bytes());
    // SAFETY: the arguments of each call were created before it, or are local variables. Memory in flight isn't
    // accessed.
    unsafe {
        let channel = ibverbs.ibv_create_comp_channel(fixture.context);
        assert!(!channel.is_null());
        let mut cq_context = 0_u8;
        let cq_context = (&raw mut cq_context).cast::<c_void>();
        let cq = ibverbs.ibv_create_cq(fixture.context, 16, cq_context, channel, 0);
        assert!(!cq.is_null());
        assert!((*cq).cqe >= 16 && (*cq).channel == channel && (*channel).refcnt == 1);
        let create_qp = || {
            let mut attr = ibv_qp_init_attr {
                send_cq: cq,
                recv_cq: cq,
                cap: CAP,
                qp_type: IBV_QPT_RC,
                ..Default::default()
            };
            let qp = ibverbs.ibv_create_qp(fixture.pd, &mut attr);
            assert!(!qp.is_null(), "{}", Error::last_os_error());
            assert!(attr.cap.max_send_wr >= 8);
            assert_eq!(((*qp).qp_type, (*qp).state, (*qp).recv_cq), (IBV_QPT_RC, IBV_QPS_RESET, cq));
            qp
        };
        let (left, right) = (create_qp(), create_qp());
        fixture.connect(left, right);
        fixture.connect(right, left);
        assert_eq!(ibv_req_notify_cq(cq, 0), 0);

        // A receive of two segments, and a SEND with immediate data.
        let mut segments = [fixture.segment(2048, 2), fixture.segment(3072, 8)];
        let mut recv =
            ibv_recv_wr { wr_id: 1, sg_list: segments.as_mut_ptr(), num_sge: 2, ..Default::default() };
        let mut bad_recv = ptr::null_mut();
        assert_eq!(ibv_post_recv(right, &mut recv, &mut bad_recv), 0);
        // A fetch-and-add follows in the same list.
        let mut result = fixture.segment(512, 8);
        let counter = fixture.segment(1024, 8).addr;
        let mut atomic = ibv_send_wr {
            wr_id: 3,
            sg_list: &mut result,
            num_sge: 1,
            opcode: IBV_WR_ATOMIC_FETCH_AND_ADD,
            send_flags: IBV_SEND_SIGNALED,
            wr: ibv_send_wr_wr {
                atomic: ibv_send_wr_atomic {
                    remote_addr: counter,
                    compare_add: 2,
                    swap: 0,
                    rkey: (*fixture.mr).rkey,
                },
            },
            ..Default::default()
        };
        let mut data = fixture.segment(0, 5);
        let mut send = ibv_send_wr {
            wr_id: 2,
            next: &mut atomic,
            sg_list: &mut data,
            num_sge: 1,
            opcode: IBV_WR_SEND_WITH_IMM,
            send_flags: IBV_SEND_SIGNALED,
            imm: ibv_send_wr_imm { imm_data: 0x0a0b_0c0d_u32.to_be() },
            ..Default::default()
        };
        let mut bad = ptr::null_mut();
        assert_eq!(ibv_post_send(left, &mut send, &mut bad), 0);

        let (mut event_cq, mut event_context) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(ibverbs.ibv_get_cq_event(channel, &mut event_cq, &mut event_context), 0);
        assert_eq!((event_cq, event_context), (cq, cq_context));
        ibverbs.ibv_ack_cq_events(cq, 1);
        let mut completions = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while completions.len() < 3 {
            assert!(Instant::now() < deadline, "{} completions", completions.len());
            let mut batch = [ibv_wc::zeroed(); 4];
            let count = ibv_poll_cq(cq, 4, batch.as_mut_ptr());
            completions.extend_from_slice(&batch[..usize::try_from(count).unwrap()]);
        }
        completions.sort_by_key(|wc| wc.wr_id);
        for (wc, (wr_id, opcode, qp)) in completions.iter().zip([
            (1, IBV_WC_RECV, right),
            (2, IBV_WC_SEND, left),
            (3, IBV_WC_FETCH_ADD, left),
        ]) {
            let status = CStr::from_ptr(ibverbs.ibv_wc_status_str(wc.status));
            assert_eq!(wc.status, IBV_WC_SUCCESS, "{status:?}");
            assert_eq!((wc.wr_id, wc.opcode, wc.qp_num), (wr_id, opcode, (*qp).qp_num));
        }
        assert_eq!(completions[0].byte_len, 5);
        assert_eq!(completions[0].wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
        assert_eq!(u32::from_be(completions[0].imm_data()), 0x0a0b_0c0d);
        assert_eq!((&fixture.memory[2048..2050], &fixture.memory[3072..3075]), (&b"he"[..], &b"llo"[..]));
        assert_eq!(fixture.memory[512..520], 40_u64.to_ne_bytes());
        assert_eq!(fixture.memory[1024..1032], 42_u64.to_ne_bytes());

        assert_eq!(ibverbs.ibv_destroy_qp(left), 0);
        assert_eq!(ibverbs.ibv_destroy_qp(right), 0);
        assert_eq!(ibverbs.ibv_destroy_cq(cq), 0);
        assert_eq!(ibverbs.ibv_destroy_comp_channel(channel), 0);
        fixture.close();
    }
}

#[test]
fn a_write_passes_through_extended_queues() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let ibverbs = fixture.ibverbs;
    fixture.memory[..5].copy_from_slice(b"hello");
    // SAFETY: the arguments of each call were created before it, or are local variables. Memory in flight isn't
    // accessed.
    unsafe {
        let mut attr = ibv_cq_init_attr_ex { cqe: 16, wc_flags: IBV_WC_STANDARD_FLAGS, ..Default::default() };
        let cq = ibv_create_cq_ex(fixture.context, &mut attr);
        if cq.is_null() {
            println!("skipped: no extended completion queues: {}", Error::last_os_error());
            return;
        }
        let mut srq_attr = ibv_srq_init_attr_ex {
            attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 },
            comp_mask: IBV_SRQ_INIT_ATTR_PD,
            pd: fixture.pd,
            ..Default::default()
        };
        let srq = ibverbs.ibv_create_srq_ex(fixture.context, &mut srq_attr);
        assert!(!srq.is_null(), "{}", Error::last_os_error());
        let create_qp = |srq| {
            let mut attr = ibv_qp_init_attr_ex {
                send_cq: ibv_cq_ex_to_cq(cq),
                recv_cq: ibv_cq_ex_to_cq(cq),
                srq,
                cap: CAP,
                qp_type: IBV_QPT_RC,
                comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                pd: fixture.pd,
                send_ops_flags: IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
                ..Default::default()
            };
            let qp = ibverbs.ibv_create_qp_ex(fixture.context, &mut attr);
            assert!(!qp.is_null(), "{}", Error::last_os_error());
            qp
        };
        let (left, right) = (create_qp(ptr::null_mut()), create_qp(srq));
        fixture.connect(left, right);
        fixture.connect(right, left);

        let mut recv = ibv_recv_wr { wr_id: 1, ..Default::default() };
        let mut bad_recv = ptr::null_mut();
        assert_eq!(ibv_post_srq_recv(srq, &mut recv, &mut bad_recv), 0);
        let (data, target) = (fixture.segment(0, 5), fixture.segment(2048, 5));
        let left_ex = ibverbs.ibv_qp_to_qp_ex(left);
        assert!(!left_ex.is_null());
        ibv_wr_start(left_ex);
        (*left_ex).wr_id = 2;
        (*left_ex).wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write_imm(left_ex, (*fixture.mr).rkey, target.addr, 7_u32.to_be());
        ibv_wr_set_sge(left_ex, data.lkey, data.addr, data.length);
        assert_eq!(ibv_wr_complete(left_ex), 0);

        let mut seen = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while seen.len() < 2 {
            assert!(Instant::now() < deadline, "{} completions", seen.len());
            match ibv_start_poll(cq, &mut ibv_poll_cq_attr::zeroed()) {
                0 => loop {
                    assert_eq!((*cq).status, IBV_WC_SUCCESS);
                    seen.push(((*cq).wr_id, ibv_wc_read_opcode(cq), ibv_wc_read_qp_num(cq)));
                    if (*cq).wr_id == 1 {
                        assert_eq!(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
                        assert_eq!(u32::from_be(ibv_wc_read_imm_data(cq)), 7);
                        assert_eq!(ibv_wc_read_byte_len(cq), 5);
                    }
                    match ibv_next_poll(cq) {
                        0 => {}
                        error => {
                            assert_eq!(error, libc::ENOENT);
                            ibv_end_poll(cq);
                            break;
                        }
                    }
                },
                error => assert_eq!(error, libc::ENOENT),
            }
        }
        seen.sort_unstable();
        assert_eq!(
            seen,
            [(1, IBV_WC_RECV_RDMA_WITH_IMM, (*right).qp_num), (2, IBV_WC_RDMA_WRITE, (*left).qp_num)]
        );
        assert_eq!(&fixture.memory[2048..2053], b"hello");

        assert_eq!(ibverbs.ibv_destroy_qp(left), 0);
        assert_eq!(ibverbs.ibv_destroy_qp(right), 0);
        assert_eq!(ibverbs.ibv_destroy_srq(srq), 0);
        assert_eq!(ibverbs.ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
        fixture.close();
    }
}

#[test]
fn a_request_to_connect_arrives_with_its_private_data() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let cm = match RdmaCm::load() {
        Ok(cm) => cm,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let ip = Ipv6Addr::from(fixture.gid.gid.octets()).to_ipv4_mapped().unwrap();
    // SAFETY: the arguments of each call were created before it, or are local variables. The contents of an event are
    // read before it is acknowledged.
    unsafe {
        let channel = cm.rdma_create_event_channel();
        assert!(!channel.is_null(), "{}", Error::last_os_error());
        let next_event = |expected: rdma_cm_event_type| {
            let mut event = ptr::null_mut();
            assert_eq!(cm.rdma_get_cm_event(channel, &mut event), 0, "{}", Error::last_os_error());
            let name = CStr::from_ptr(cm.rdma_event_str((*event).event));
            assert_eq!(((*event).event, (*event).status), (expected, 0), "{name:?}");
            event
        };
        let create_id = || {
            let mut id = ptr::null_mut();
            let error = cm.rdma_create_id(channel, &mut id, ptr::null_mut(), RDMA_PS_TCP);
            assert_eq!(error, 0, "{}", Error::last_os_error());
            assert_eq!(((*id).channel, (*id).ps), (channel, RDMA_PS_TCP));
            id
        };
        let (listener, client) = (create_id(), create_id());
        let mut address = socket_address(ip, 0);
        assert_eq!(cm.rdma_bind_addr(listener, (&raw mut address).cast()), 0, "{}", Error::last_os_error());
        assert_eq!(cm.rdma_listen(listener, 1), 0, "{}", Error::last_os_error());
        let port = u16::from_be(cm.rdma_get_src_port(listener));
        assert_ne!(port, 0);
        let local: sockaddr_in = rdma_get_local_addr(listener).cast::<sockaddr_in>().read();
        assert_eq!((u32::from_be(local.sin_addr.s_addr), u16::from_be(local.sin_port)), (ip.to_bits(), port));

        let mut tos = 0x20_u8;
        let option = (&raw mut tos).cast();
        assert_eq!(cm.rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, option, 1), 0);
        let mut address = socket_address(ip, port);
        let target = (&raw mut address).cast();
        assert_eq!(cm.rdma_resolve_addr(client, ptr::null_mut(), target, 2000), 0);
        cm.rdma_ack_cm_event(next_event(RDMA_CM_EVENT_ADDR_RESOLVED));
        assert_eq!(cm.rdma_resolve_route(client, 2000), 0);
        cm.rdma_ack_cm_event(next_event(RDMA_CM_EVENT_ROUTE_RESOLVED));
        assert_eq!(((*client).port_num, (*client).route.num_paths), (1, 1));
        assert!(!(*client).verbs.is_null());
        assert_eq!((*client).route.addr.addr.ibaddr.sgid, fixture.gid.gid);
        assert_eq!((*(*client).route.path_rec).dgid, fixture.gid.gid);
        let peer: sockaddr_in = rdma_get_peer_addr(client).cast::<sockaddr_in>().read();
        assert_eq!(u16::from_be(peer.sin_port), port);

        // The program manages the queue pair, and the connection manager returns the attributes for each state.
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, ..Default::default() };
        let mut mask: c_int = 0;
        assert_eq!(cm.rdma_init_qp_attr(client, &mut attr, &mut mask), 0, "{}", Error::last_os_error());
        assert_eq!(mask & (IBV_QP_STATE | IBV_QP_PORT), IBV_QP_STATE | IBV_QP_PORT);
        assert_eq!(attr.port_num, 1);

        let mut param = rdma_conn_param {
            private_data: b"who is there?".as_ptr().cast(),
            private_data_len: 13,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            qp_num: 0x1234,
            ..Default::default()
        };
        assert_eq!(cm.rdma_connect(client, &mut param), 0, "{}", Error::last_os_error());
        let event = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);
        let server = (*event).id;
        assert_eq!((*event).listen_id, listener);
        let request = (*event).param.conn;
        assert_eq!((request.qp_num, request.retry_count, request.initiator_depth), (0x1234, 7, 1));
        assert!(request.private_data_len >= 13);
        assert_eq!(std::slice::from_raw_parts(request.private_data.cast::<u8>(), 13), b"who is there?");
        cm.rdma_ack_cm_event(event);

        assert_eq!(cm.rdma_reject(server, b"nobody".as_ptr().cast(), 6), 0, "{}", Error::last_os_error());
        let mut event = ptr::null_mut();
        assert_eq!(cm.rdma_get_cm_event(channel, &mut event), 0);
        // 28 is “consumer reject”, InfiniBand specification, volume 1, section 12.6.7.2.
        assert_eq!(((*event).event, (*event).status, (*event).id), (RDMA_CM_EVENT_REJECTED, 28, client));
        assert_eq!(std::slice::from_raw_parts((*event).param.conn.private_data.cast::<u8>(), 6), b"nobody");
        cm.rdma_ack_cm_event(event);

        for id in [server, client, listener] {
            assert_eq!(cm.rdma_destroy_id(id), 0);
        }
        cm.rdma_destroy_event_channel(channel);
        fixture.close();
    }
}

fn socket_address(ip: Ipv4Addr, port: u16) -> sockaddr_in {
    // SAFETY: an address of zeros is a value.
    let mut address: sockaddr_in = unsafe { mem::zeroed() };
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = ip.to_bits().to_be();
    address
}
