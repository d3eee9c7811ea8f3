//! System calls that send and receive many datagrams at once.

use std::collections::VecDeque;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::{Duration, Instant};

use adverb_wire::{Flow, ICRC_LEN, MAX_HEADER_LEN};
use nix::libc;

use super::UdpStatistics;
use super::clock::Clock;
use super::ports::HopLimits;
use super::shared;
use super::socket::SEND_TIME;
use crate::link::datagram::Datagram;
use crate::link::{MAX_GSO_PACKETS, TxPacket};

/// The maximum number of packets per system call.
const MAX_BATCH: usize = 64;

/// The maximum size of a RoCEv2 packet: the largest path MTU, all headers, padding, ICRC.
const MAX_PACKET_LEN: usize = (4096 + MAX_HEADER_LEN + ICRC_LEN).next_multiple_of(64);

/// The maximum size of a GSO batch, below the maximum length of an IP packet.
pub(super) const MAX_GSO_BYTES: usize = 65_000;

/// Sends packets in order, and returns the number of accepted packets: at least one, unless there are none.
///
/// With `uses_gso`, packets of one length to one destination are sent as a GSO batch (`UDP_SEGMENT`), which the
/// kernel or the NIC segments. The kernel then gives the first packet IPv4 ID 0, the second 1, and so on
/// (`inet_gso_segment`), and their ICRCs are changed to match. The kernel delivers a batch to one socket, so packets to
/// different processes at the address `shared` are in different batches.
///
/// # Errors
///
/// Returns an error if the first packet, or the GSO batch that it begins, can't be sent.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    packets: &[TxPacket<'_>],
    uses_gso: bool,
    shared: Option<SocketAddr>,
    hop_limits: HopLimits,
) -> io::Result<usize> {
    let packets = &packets[..packets.len().min(MAX_BATCH)];
    let mut addresses = [const { MaybeUninit::<Address>::uninit() }; MAX_BATCH];
    let mut controls = [const { [const { MaybeUninit::<Control>::uninit() }; 4] }; MAX_BATCH];
    let mut trailers = [const { MaybeUninit::<[u8; ICRC_LEN]>::uninit() }; MAX_BATCH];
    let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; 2 * MAX_BATCH];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_BATCH];
    let mut small_batch = MaybeUninit::<[u8; MAX_COPIED_BYTES]>::uninit();
    // The number of packets in the first `n` messages, at index `n`.
    let mut packet_counts = [0u8; MAX_BATCH + 1];
    let (mut message_count, mut packet_count) = (0, 0);
    let mut free_pieces = pieces.as_mut_slice();
    while packet_count < packets.len() {
        let rest = &packets[packet_count..];
        let batch = &rest[..gso_batch_len(rest, uses_gso, shared)];
        let piece_count = if message_count == 0 && is_small(batch) {
            free_pieces[0].write(piece(copy(batch, small_batch.write([0; MAX_COPIED_BYTES]))));
            1
        } else {
            write_pieces(batch, free_pieces, &mut trailers[packet_count..])
        };
        let batch_pieces;
        (batch_pieces, free_pieces) = free_pieces.split_at_mut(piece_count);
        let (address, address_len) = Address::new(batch[0].destination);
        let control = &mut controls[message_count];
        let control_len =
            size_of::<Control>() * Control::write(&batch[0], batch.len() > 1, hop_limits, control);
        messages[message_count].write(message(
            addresses[message_count].write(address),
            address_len,
            batch_pieces.as_mut_ptr().cast(),
            piece_count,
            if control_len == 0 { ptr::null_mut() } else { control.as_mut_ptr().cast() },
            control_len,
        ));
        packet_count += batch.len();
        message_count += 1;
        packet_counts[message_count] = packet_count as u8;
    }
    // SAFETY: `message_count` messages are initialized. Each points to an address, pieces and control messages, with
    // their lengths, that are initialized and live until the call returns. The bytes of the pieces are only read.
    let sent = unsafe {
        let (socket, messages) = (socket.as_raw_fd(), messages.as_mut_ptr());
        match message_count {
            // `mmsghdr` starts with `msghdr`, and `sendmsg` is cheaper.
            1 => libc::syscall(libc::SYS_sendmsg, socket, messages, libc::MSG_DONTWAIT),
            _ => libc::syscall(libc::SYS_sendmmsg, socket, messages, message_count, libc::MSG_DONTWAIT),
        }
    };
    let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
    // For one message, `sent` is its number of bytes.
    Ok(packet_counts[if message_count == 1 { 1 } else { sent }].into())
}

/// The maximum length of a GSO batch that is copied, because the kernel takes longer to read several pieces.
const MAX_COPIED_BYTES: usize = 256;

/// Whether a batch has several packets and is short enough to be copied.
fn is_small(batch: &[TxPacket<'_>]) -> bool {
    matches!(batch, [first, _, ..] if first.bytes.len() * batch.len() <= MAX_COPIED_BYTES)
}

/// Copies the packets of a GSO batch, with their changed ICRCs.
fn copy<'a>(batch: &[TxPacket<'_>], out: &'a mut [u8; MAX_COPIED_BYTES]) -> &'a [u8] {
    let mut end = 0;
    for (number, packet) in batch.iter().enumerate() {
        let start = end;
        end += packet.bytes.len();
        out[start..end].copy_from_slice(packet.bytes);
        if let Some(icrc) = changed_icrc(packet, number) {
            out[end - ICRC_LEN..end].copy_from_slice(&icrc);
        }
    }
    &out[..end]
}

/// Writes the pieces of a GSO batch, and returns their number. The changed ICRCs are stored in `trailers`.
fn write_pieces(
    batch: &[TxPacket<'_>],
    pieces: &mut [MaybeUninit<libc::iovec>],
    trailers: &mut [MaybeUninit<[u8; ICRC_LEN]>],
) -> usize {
    let mut count = 0;
    for (number, packet) in batch.iter().enumerate() {
        let changed = changed_icrc(packet, number);
        let unchanged_len = packet.bytes.len() - if changed.is_some() { ICRC_LEN } else { 0 };
        pieces[count].write(piece(&packet.bytes[..unchanged_len]));
        count += 1;
        if let Some(icrc) = changed {
            pieces[count].write(piece(trailers[number].write(icrc)));
            count += 1;
        }
    }
    count
}

/// Returns the ICRC of a packet at a position in a GSO batch, if it differs from the packet's own ICRC.
fn changed_icrc(packet: &TxPacket<'_>, number: usize) -> Option<[u8; ICRC_LEN]> {
    if number == 0 || !packet.destination.is_ipv4() {
        return None;
    }
    let icrc = packet.bytes.last_chunk::<ICRC_LEN>()?;
    let delta = Flow::ip_id_delta(number as u16, packet.bytes.len());
    Some(std::array::from_fn(|index| icrc[index] ^ delta[index]))
}

/// Sends one packet, and requests its send time from the kernel.
///
/// # Errors
///
/// Returns an error if the packet can't be sent.
pub(super) fn send_timed(
    socket: BorrowedFd<'_>,
    packet: &TxPacket<'_>,
    hop_limits: HopLimits,
) -> io::Result<()> {
    let mut controls = [const { MaybeUninit::uninit() }; 5];
    let count = Control::write(packet, false, hop_limits, &mut controls);
    controls[count].write(Control::new(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, SEND_TIME.to_ne_bytes()));
    let (mut address, address_len) = Address::new(packet.destination);
    let mut piece = piece(packet.bytes);
    let control_len = (count + 1) * size_of::<Control>();
    let controls = controls.as_mut_ptr().cast();
    let message = message(&raw mut address, address_len, &raw mut piece, 1, controls, control_len);
    // SAFETY: the message points to an address, a piece and control messages, with their lengths, that are initialized
    // and live until the call returns. The bytes of the piece are only read.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message.msg_hdr, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Removes the next send time from a socket's error queue, and returns it (since 1970) with the number of its datagram.
/// Returns `None` if the queue is empty.
///
/// # Errors
///
/// Returns an error if the queue can't be read.
pub(super) fn take_send_time(socket: BorrowedFd<'_>) -> io::Result<Option<(u32, Duration)>> {
    loop {
        let mut controls = MaybeUninit::<SendTimeControls>::uninit();
        let control_len = size_of::<SendTimeControls>();
        let mut message =
            message(ptr::null_mut(), 0, ptr::null_mut(), 0, controls.as_mut_ptr().cast(), control_len);
        // SAFETY: the message points only to a buffer for control messages, with its length. The buffer lives until the
        // call returns, and nothing else uses it.
        let received = unsafe {
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            libc::recvmsg(socket.as_raw_fd(), &raw mut message.msg_hdr, flags)
        };
        if received < 0 {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                io::ErrorKind::Interrupted => continue,
                _ => return Err(error),
            }
        }
        // SAFETY: the kernel has filled in the header.
        let info = unsafe { ControlInfo::of(&message.msg_hdr) };
        if let (Some(number), Some(timestamp)) = (info.number, info.timestamp) {
            return Ok(Some((number, timestamp)));
        }
        // The entry was an ICMP error, so the next one is read.
    }
}

/// A buffer for the control messages of a send time: three timestamps, and an error with an address.
type SendTimeControls = [u64; 32];

/// Returns the number of packets, at least one, that form a GSO batch: packets like the first, and a last one that may
/// be shorter.
pub(super) fn gso_batch_len(packets: &[TxPacket<'_>], uses_gso: bool, shared: Option<SocketAddr>) -> usize {
    let [first, rest @ ..] = packets else { return 0 };
    let length = first.bytes.len();
    if rest.is_empty() || !uses_gso || length <= ICRC_LEN {
        return 1;
    }
    let key = |packet: &TxPacket<'_>| {
        (packet.destination, packet.traffic_class, packet.hop_limit, packet.flow_label)
    };
    let is_shared = shared == Some(first.destination);
    let max_count = (MAX_GSO_BYTES / length).clamp(1, MAX_GSO_PACKETS);
    let mut count = 1;
    for packet in rest.iter().take(max_count - 1) {
        if packet.bytes.len() > length || packet.bytes.len() <= ICRC_LEN || key(packet) != key(first) {
            break;
        }
        if is_shared && !shared::have_same_process(packet.bytes, first.bytes) {
            break;
        }
        count += 1;
        if packet.bytes.len() < length {
            break;
        }
    }
    count
}

/// A receiver of datagrams.
#[derive(Debug)]
pub(super) struct Receiver {
    /// Buffers for datagrams or GRO batches, of [`BUFFER_LEN`] bytes each. They are one allocation of bytes: the standard
    /// library writes zeros to the elements of a vector of arrays, which would allocate all their pages.
    buffers: Vec<u8>,
    /// The number of datagrams to request: twice the number last received, because preparing unused messages costs
    /// time, and so does another system call.
    request_count: usize,
    /// The last value of the kernel's overflow counter.
    overflows: u32,
    /// Datagrams and GRO batches in the buffers whose packets were not all passed on.
    buffered: VecDeque<BufferedDatagram>,
    /// The converter of the kernel's timestamps, if the socket has them.
    clock: Option<Clock>,
}

/// A datagram, or a GRO batch, in a buffer.
#[derive(Debug)]
struct BufferedDatagram {
    buffer: usize,
    /// The bytes that were not passed on.
    rest: Range<usize>,
    /// The length of all packets but the last.
    segment: usize,
    source: SocketAddr,
    traffic_class: u8,
    hop_limit: Option<u8>,
    flow_label: u32,
    received_at: Option<Instant>,
}

/// The size of a buffer: a GRO batch may be as long as any datagram.
const BUFFER_LEN: usize = 1 << 16;

/// The number of buffers. The kernel allocates their pages when they are first used.
const BUFFER_COUNT: usize = 64;

/// The maximum number of bytes received at once, so that they stay in the CPU's cache and are acknowledged soon.
const MAX_RECEIVED_BYTES: usize = 256 << 10;

/// The maximum number of packets received at once, so that the application can post receives in time.
const MAX_RECEIVED_PACKETS: usize = 512;

impl Receiver {
    pub(super) fn new() -> Receiver {
        Receiver {
            buffers: vec![0; BUFFER_LEN * BUFFER_COUNT],
            request_count: 1,
            overflows: 0,
            buffered: VecDeque::new(),
            clock: None,
        }
    }

    /// Sets whether the kernel's timestamps are passed on.
    pub(super) fn set_timestamps(&mut self, enabled: bool) {
        self.clock = enabled.then(Clock::new);
    }

    /// Whether received packets were not passed on.
    pub(super) fn has_buffered(&self) -> bool {
        !self.buffered.is_empty()
    }

    /// Passes up to `max` received packets to `each` without blocking, and returns their number, including dropped
    /// packets.
    ///
    /// # Errors
    ///
    /// Returns an error if the descriptor is closed or isn't a socket.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        max: usize,
        statistics: &mut UdpStatistics,
        each: &mut dyn FnMut(&Datagram<'_>),
    ) -> io::Result<usize> {
        let mut count = if self.buffered.is_empty() { self.fetch(socket, statistics)? } else { 0 };
        while count < max
            && let Some(buffered) = self.buffered.front_mut()
        {
            let BufferedDatagram {
                buffer,
                ref mut rest,
                segment,
                source,
                traffic_class,
                hop_limit,
                flow_label,
                received_at,
            } = *buffered;
            let buffer = &self.buffers[buffer * BUFFER_LEN..][..BUFFER_LEN];
            loop {
                let end = rest.end.min(rest.start + segment);
                let bytes = &buffer[rest.start..end];
                rest.start = end;
                each(&Datagram { source, traffic_class, hop_limit, flow_label, received_at, bytes });
                count += 1;
                if rest.start >= rest.end {
                    self.buffered.pop_front();
                    break;
                }
                if count >= max {
                    break;
                }
            }
        }
        Ok(count)
    }

    /// Receives a batch of datagrams into the buffers, which must hold no datagrams. Returns the number of dropped
    /// datagrams.
    fn fetch(&mut self, socket: BorrowedFd<'_>, statistics: &mut UdpStatistics) -> io::Result<usize> {
        let mut addresses = [const { MaybeUninit::<Address>::uninit() }; BUFFER_COUNT];
        let mut controls = [const { MaybeUninit::<Controls>::uninit() }; BUFFER_COUNT];
        let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; BUFFER_COUNT];
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BUFFER_COUNT];
        for (index, buffer) in self.buffers.chunks_exact_mut(BUFFER_LEN).take(self.request_count).enumerate()
        {
            let piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            messages[index].write(message(
                addresses[index].write(Address::UNKNOWN),
                size_of::<Address>() as libc::socklen_t,
                pieces[index].write(piece),
                1,
                controls[index].as_mut_ptr().cast(),
                size_of::<Controls>(),
            ));
        }
        let called_at = self.clock.is_some().then(Instant::now);
        // SAFETY: `request_count` messages are initialized. Each points to an address, a piece and a buffer for control
        // messages, with their lengths, that live until the call returns and that nothing else uses.
        let received = unsafe {
            let (socket, first, no_timeout) =
                (socket.as_raw_fd(), messages.as_mut_ptr(), ptr::null_mut::<u8>());
            match self.request_count {
                // `mmsghdr` starts with `msghdr`, and `recvmsg` is cheaper.
                1 => libc::syscall(libc::SYS_recvmsg, socket, first, libc::MSG_DONTWAIT),
                request_count => libc::syscall(
                    libc::SYS_recvmmsg,
                    socket,
                    first,
                    request_count,
                    libc::MSG_DONTWAIT,
                    no_timeout,
                ),
            }
        };
        let Ok(received) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            self.request_count = 1;
            return match error.raw_os_error() {
                Some(libc::EAGAIN) => {
                    if let (Some(clock), Some(called_at)) = (&mut self.clock, called_at) {
                        clock.record_empty_queue(called_at);
                    }
                    Ok(0)
                }
                // A signal interrupted the call: datagrams may be queued.
                Some(libc::EINTR) => self.fetch(socket, statistics),
                Some(libc::EBADF | libc::ENOTSOCK) => Err(error),
                // The kernel returned a queued ICMP error, or has no memory. The descriptor stays readable while
                // datagrams are queued, so the caller retries.
                _ => {
                    statistics.receive_errors += 1;
                    Ok(0)
                }
            };
        };
        let received = if self.request_count > 1 {
            received
        } else {
            // SAFETY: the message was initialized above, and nothing refers to it.
            unsafe { (*messages[0].as_mut_ptr()).msg_len = received as libc::c_uint };
            1
        };
        let read_at = self.clock.is_some().then(Instant::now);
        let (mut count, mut byte_count, mut dropped) = (received, 0, 0);
        for (index, message) in messages[..received].iter().enumerate() {
            // SAFETY: the message was initialized above, because the kernel returns at most `request_count` messages.
            // The kernel has changed lengths and flags.
            let message = unsafe { message.assume_init_ref() };
            // SAFETY: the kernel has filled in the header.
            let info = unsafe { ControlInfo::of(&message.msg_hdr) };
            if let Some(overflows) = info.overflows {
                let more = overflows.wrapping_sub(mem::replace(&mut self.overflows, overflows));
                statistics.overflows += u64::from(more);
            }
            // SAFETY: the address was initialized above.
            let source = unsafe { addresses[index].assume_init_ref() }.get();
            let bytes = self.buffers[index * BUFFER_LEN..][..BUFFER_LEN].get(..message.msg_len as usize);
            let (Some(source), Some(bytes)) = (source, bytes) else {
                dropped += 1;
                continue;
            };
            // Only the last packet of a GRO batch may be shorter than the others. A datagram that isn't a batch may be
            // empty.
            let length = info.segment.unwrap_or(bytes.len()).max(1);
            if length > MAX_PACKET_LEN {
                statistics.too_long += 1;
                dropped += 1;
                continue;
            }
            count += bytes.len().div_ceil(length).max(1) - 1;
            byte_count += bytes.len();
            let ControlInfo { traffic_class, hop_limit, flow_label, .. } = info;
            let rest = 0..bytes.len();
            let received_at = match (&mut self.clock, info.timestamp, read_at) {
                (Some(clock), Some(timestamp), Some(read_at)) => Some(clock.convert(timestamp, read_at)),
                _ => None,
            };
            self.buffered.push_back(BufferedDatagram {
                buffer: index,
                rest,
                segment: length,
                source,
                traffic_class,
                hop_limit,
                flow_label,
                received_at,
            });
        }
        if let (Some(clock), Some(called_at)) = (&mut self.clock, called_at)
            && received < self.request_count
        {
            clock.record_empty_queue(called_at);
        }
        let max_count = (MAX_RECEIVED_BYTES * received / byte_count.max(1))
            .min(MAX_RECEIVED_PACKETS * received / count.max(1));
        self.request_count = (2 * received).min(max_count).clamp(1, BUFFER_COUNT);
        Ok(dropped)
    }
}

/// Returns a piece that the kernel only reads.
fn piece(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Returns a message of `piece_count` pieces.
fn message(
    address: *mut Address,
    address_len: libc::socklen_t,
    pieces: *mut libc::iovec,
    piece_count: usize,
    control: *mut libc::c_void,
    control_len: usize,
) -> libc::mmsghdr {
    // SAFETY: all fields are numbers and pointers, for which 0 is valid. (Some platforms have padding fields.)
    let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
    message.msg_hdr.msg_name = address.cast();
    message.msg_hdr.msg_namelen = address_len;
    message.msg_hdr.msg_iov = pieces;
    message.msg_hdr.msg_iovlen = piece_count as _;
    message.msg_hdr.msg_control = control;
    message.msg_hdr.msg_controllen = control_len as _;
    message
}

/// An address in the kernel's format. The first field is the address family.
#[derive(Clone, Copy)]
#[repr(C)]
union Address {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Address {
    const UNKNOWN: Address = Address {
        v6: libc::sockaddr_in6 {
            sin6_family: libc::AF_UNSPEC as libc::sa_family_t,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        },
    };

    fn new(address: SocketAddr) -> (Address, libc::socklen_t) {
        match address {
            SocketAddr::V4(address) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (Address { v4 }, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(address) => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                (Address { v6 }, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }

    fn get(&self) -> Option<SocketAddr> {
        // SAFETY: every field starts with the family, and any number is valid.
        match libc::c_int::from(unsafe { self.family }) {
            libc::AF_INET => {
                // SAFETY: the whole union is initialized (`UNKNOWN` is its longest field), and any bytes are valid.
                let v4 = unsafe { self.v4 };
                let address = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(address, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { self.v6 };
                let address = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(address, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// A control message with a number of up to four bytes. It has no implicit padding, whose bytes would not be initialized.
#[derive(Clone, Copy)]
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    value: [u8; CONTROL_VALUE_LEN],
}

/// The length of a number of four bytes with the padding after it.
// SAFETY: the macros only compute sizes.
const CONTROL_VALUE_LEN: usize = unsafe { libc::CMSG_SPACE(4) - libc::CMSG_LEN(0) } as usize;

const _: () = assert!(size_of::<Control>() == size_of::<libc::cmsghdr>() + CONTROL_VALUE_LEN);

impl Control {
    fn new<const N: usize>(level: libc::c_int, kind: libc::c_int, number: [u8; N]) -> Control {
        // SAFETY: all fields are numbers, for which 0 is valid. (Some platforms have padding fields.)
        let mut header: libc::cmsghdr = unsafe { mem::zeroed() };
        header.cmsg_level = level;
        header.cmsg_type = kind;
        // SAFETY: the macro only computes a size.
        header.cmsg_len = unsafe { libc::CMSG_LEN(N as libc::c_uint) } as _;
        let mut value = [0; CONTROL_VALUE_LEN];
        value[..N].copy_from_slice(&number);
        Control { header, value }
    }

    /// Writes the control messages, at most four, for a packet or for the GSO batch that it begins. Returns their number.
    #[inline]
    fn write(
        packet: &TxPacket<'_>,
        is_gso_batch: bool,
        hop_limits: HopLimits,
        controls: &mut [MaybeUninit<Control>],
    ) -> usize {
        let (level, class, hops) = match packet.destination {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        let number = |value: u8| libc::c_int::from(value).to_ne_bytes();
        let mut count = 0;
        let mut add = |control| {
            controls[count].write(control);
            count += 1;
        };
        if packet.traffic_class != 0 {
            add(Control::new(level, class, number(packet.traffic_class)));
        }
        // A redundant control message takes a tenth of the time of a send. Multicast has its own default hop limit.
        let hop_limit = match packet.hop_limit {
            requested if packet.destination.ip().is_multicast() => requested,
            0 if hop_limits.default == hop_limits.socket => 0,
            0 => hop_limits.default,
            requested if requested == hop_limits.socket => 0,
            requested => requested,
        };
        if hop_limit != 0 {
            add(Control::new(level, hops, number(hop_limit)));
        }
        if packet.flow_label != 0 && packet.destination.is_ipv6() {
            add(Control::new(level, libc::IPV6_FLOWINFO, (packet.flow_label & FLOW_LABEL).to_be_bytes()));
        }
        if is_gso_batch {
            let length = packet.bytes.len() as u16;
            add(Control::new(libc::SOL_UDP, libc::UDP_SEGMENT, length.to_ne_bytes()));
        }
        count
    }
}

/// The bits of the flow label in IPv6's flow information.
const FLOW_LABEL: u32 = 0xf_ffff;

/// A buffer for the control messages of a datagram: five numbers, a timestamp, and the three timestamps that a socket with
/// send times adds. It is aligned like their headers.
type Controls = [u64; CONTROLS_LEN.div_ceil(size_of::<u64>())];

// SAFETY: the macros only compute sizes.
const CONTROLS_LEN: usize = 5 * size_of::<Control>()
    + unsafe { libc::CMSG_SPACE(TIMESTAMP_LEN) + libc::CMSG_SPACE(3 * TIMESTAMP_LEN) } as usize;

/// The size of a timestamp.
const TIMESTAMP_LEN: libc::c_uint = size_of::<libc::timespec>() as libc::c_uint;

/// The contents of control messages.
#[derive(Default)]
struct ControlInfo {
    traffic_class: u8,
    hop_limit: Option<u8>,
    flow_label: u32,
    overflows: Option<u32>,
    /// The length of the packets in a GRO batch.
    segment: Option<usize>,
    /// The time at which the kernel received the datagram, or the first packet of the GRO batch, or sent a datagram,
    /// since 1970.
    timestamp: Option<Duration>,
    /// The number of the datagram that was sent at that time.
    number: Option<u32>,
}

impl ControlInfo {
    /// Reads the control messages of a datagram.
    ///
    /// # Safety
    ///
    /// The kernel must have filled in the header, so that it points to control messages of the kernel, with their
    /// length.
    unsafe fn of(header: &libc::msghdr) -> ControlInfo {
        let mut info = ControlInfo::default();
        // SAFETY: the caller guarantees that the kernel has filled in the header.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
        while !next.is_null() {
            // SAFETY: the pointer refers to a control message of the header, and control messages are aligned.
            let control = unsafe { &*next };
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(next) };
            // SAFETY: the macro only computes a size.
            let length = control.cmsg_len as usize - unsafe { libc::CMSG_LEN(0) } as usize;
            // SAFETY: the control message has `length` bytes of data.
            let data = unsafe { std::slice::from_raw_parts(data, length) };
            let number = match *data {
                [byte] => byte.into(),
                [a, b, c, d, ..] => u32::from_ne_bytes([a, b, c, d]),
                _ => 0,
            };
            match (control.cmsg_level, control.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    info.traffic_class = number as u8;
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    info.hop_limit = Some(number as u8);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                    info.flow_label = u32::from_be(number) & FLOW_LABEL;
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => info.overflows = Some(number),
                (libc::SOL_UDP, libc::UDP_GRO) => info.segment = Some(number as usize),
                // The first of the timestamps in `SCM_TIMESTAMPING` is the software's.
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS | libc::SCM_TIMESTAMPING) => {
                    info.timestamp = since_1970(data);
                }
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                    info.number = datagram_number(data);
                }
                _ => {}
            }
            // SAFETY: the header and the control message are valid, as above.
            next = unsafe { libc::CMSG_NXTHDR(header, next) };
        }
        info
    }
}

/// Returns the number of a datagram from the error with which the kernel returns its send time (`sock_extended_err`).
fn datagram_number(error: &[u8]) -> Option<u32> {
    /// The origin of send times, in the fifth byte (`SO_EE_ORIGIN_TIMESTAMPING`).
    const ORIGIN: u8 = 4;
    let [_, _, _, _, ORIGIN, _, _, _, _, _, _, _, a, b, c, d, ..] = *error else { return None };
    Some(u32::from_ne_bytes([a, b, c, d]))
}

/// Returns the time of a timestamp: seconds and nanoseconds, 64 bits each on the supported platforms.
fn since_1970(timestamp: &[u8]) -> Option<Duration> {
    let (seconds, rest) = timestamp.split_first_chunk()?;
    let nanoseconds = i64::from_ne_bytes(*rest.first_chunk()?);
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).ok()?;
    Some(Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(nanoseconds).ok()?))
}
