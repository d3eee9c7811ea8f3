//! A self-test that packets leave with the IP header that their ICRCs are computed for.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::sockopt::SetStruct;
use nix::sys::socket::{MsgFlags, recv, setsockopt};

/// The payload of the test datagrams, which the socket sends to itself.
const PAYLOAD: &[u8] = b"adverb: how does the kernel number this?";
/// The length of an IPv4 header without options and a UDP header.
const HEADERS_LEN: usize = 28;
/// The maximum time until the kernel returns a sent frame.
const FRAME_TIMEOUT: Duration = Duration::from_millis(100);

/// Sends datagrams and checks the headers of the sent frames, which the kernel returns with transmit timestamps.
/// Returns whether the kernel returned any. A socket with an IPv6 address needs no test, and the result is `true`.
///
/// # Errors
///
/// Returns `Unsupported` if a frame has an IP ID other than 0, or isn't marked "don't fragment".
pub(super) fn run(socket: &UdpSocket) -> io::Result<bool> {
    let SocketAddr::V4(local) = socket.local_addr()? else { return Ok(true) };
    if setsockopt(socket, Timestamping, &TIMESTAMPS).is_err() {
        return Ok(false);
    }
    let mut has_frames = false;
    // An IP ID that isn't always 0 is very unlikely to be 0 three times in a row.
    for _ in 0..3 {
        socket.send_to(PAYLOAD, local)?;
        let Some(frame) = sent_frame(socket) else { break };
        has_frames = true;
        let [s0, s1] = local.port().to_be_bytes();
        let word = u32::from_be_bytes([frame[4], frame[5], frame[6], frame[7]]);
        let octets = local.ip().octets();
        let has_sent_addresses =
            frame[12..16] == octets && frame[16..20] == octets && frame[20..22] == [s0, s1];
        if word != DONT_FRAGMENT || !has_sent_addresses {
            let text = format!(
                "the kernel does not send UDP datagrams as the RoCEv2 ICRC requires: IP ID and flags are \
                 {word:#010x} instead of {DONT_FRAGMENT:#010x}, or the addresses are changed; use IPv6"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
    }
    setsockopt(socket, Timestamping, &0)?;
    // The test datagrams are discarded.
    while socket.recv(&mut [0; PAYLOAD.len()]).is_ok() {}
    Ok(has_frames)
}

/// Returns the headers of the last sent frame, from the IP header on, if the kernel returns it.
fn sent_frame(socket: &UdpSocket) -> Option<[u8; HEADERS_LEN]> {
    let start = Instant::now();
    loop {
        // The length of the link-layer header depends on the interface, so the headers are found from the payload.
        let mut frame = [0; 256];
        match recv(socket.as_raw_fd(), &mut frame, MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT) {
            Ok(length) => {
                let headers = frame.get(..length)?.strip_suffix(PAYLOAD)?;
                return headers.last_chunk().copied();
            }
            Err(nix::errno::Errno::EAGAIN) if start.elapsed() < FRAME_TIMEOUT => {
                std::thread::sleep(Duration::from_micros(100));
            }
            Err(_) => return None,
        }
    }
}

/// IP ID 0, the flag "don't fragment", and fragment offset 0.
const DONT_FRAGMENT: u32 = 0x0000_4000;

const TIMESTAMPS: u32 =
    libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_ID;

#[derive(Clone, Copy)]
struct Timestamping;
nix::setsockopt_impl!(Timestamping, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, u32, SetStruct<'_, u32>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connected_socket_that_may_fragment_is_rejected() {
        // The socket is connected and may fragment, so the kernel doesn't send IP ID 0 and "don't fragment".
        let socket = UdpSocket::bind("127.77.9.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        assert_eq!(run(&socket).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
