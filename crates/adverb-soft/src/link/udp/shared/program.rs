//! The program by which the kernel chooses the socket of a packet.

use std::os::fd::AsFd;

use nix::libc;
use nix::sys::socket::sockopt::{ReusePort, SetStruct};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket};

use crate::link::AddressShare;
use crate::link::local::Program;

/// Makes the kernel deliver packets to the sockets of their shares, and those to queue pair 1 to the socket of
/// `dispatcher`. The program applies to all sockets at the address.
///
/// # Errors
///
/// Returns an error if the kernel doesn't support such programs. It then chooses a socket by a hash, and processes pass
/// packets on.
pub(super) fn attach(socket: &impl AsFd, dispatcher: AddressShare) -> nix::Result<()> {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    // The program sees the datagram's payload, which begins with the base transport header.
    let program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 4),
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, 0xff_ffff),
        instruction(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 1, 0, 1),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, dispatcher.index().into()),
        instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, AddressShare::QPN_SHIFT),
        instruction(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
    ];
    setsockopt(socket, AttachProgram, &Program::new(&program))
}

#[derive(Clone, Copy)]
struct AttachProgram;
nix::setsockopt_impl!(
    AttachProgram,
    libc::SOL_SOCKET,
    libc::SO_ATTACH_REUSEPORT_CBPF,
    Program,
    SetStruct<'_, Program>
);

/// Whether the kernel supports such programs.
pub(super) fn is_supported() -> bool {
    let try_attach = || {
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, ReusePort, &true)?;
        // The socket isn't bound, so the program has no effect.
        attach(&socket, AddressShare::FIRST)
    };
    try_attach().is_ok()
}
