//! The program by which the kernel drops messages.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::SetStruct;

/// Makes the kernel drop each message to a socket in the call that sends it, with its files.
///
/// # Errors
///
/// Returns an error if the kernel has no memory. A system without such programs drops no messages.
pub(super) fn drop_messages(socket: &impl AsFd) -> nix::Result<()> {
    let program = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    match setsockopt(socket, AttachFilter, &Program::new(&program)) {
        Err(Errno::ENOPROTOOPT) => Ok(()),
        attached => attached,
    }
}

/// Ends the effect of [`drop_messages`].
///
/// # Errors
///
/// Returns an error if the kernel still drops the messages.
pub(super) fn keep_messages(socket: &impl AsFd) -> nix::Result<()> {
    match setsockopt(socket, DetachFilter, &0) {
        Err(Errno::ENOENT | Errno::ENOPROTOOPT) => Ok(()),
        detached => detached,
    }
}

/// The kernel's `sock_fprog`, with its padding as a field: memory checkers report uninitialized bytes that a system call
/// reads.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::link) struct Program {
    len: u16,
    padding: [u8; PADDING_LEN],
    instructions: *const libc::sock_filter,
}

impl Program {
    /// Returns the program with these instructions, which must stay where they are.
    pub(in crate::link) fn new(instructions: &[libc::sock_filter]) -> Program {
        let (len, instructions) = (instructions.len() as u16, instructions.as_ptr());
        Program { len, padding: [0; PADDING_LEN], instructions }
    }
}

const PADDING_LEN: usize = size_of::<usize>() - size_of::<u16>();

// The fields fill the structure, which is the kernel's.
const _: () = assert!(
    size_of::<Program>() == size_of::<u16>() + PADDING_LEN + size_of::<usize>()
        && size_of::<Program>() == size_of::<libc::sock_fprog>()
        && std::mem::offset_of!(Program, instructions) == std::mem::offset_of!(libc::sock_fprog, filter)
);

#[derive(Clone, Copy)]
struct AttachFilter;
nix::setsockopt_impl!(
    AttachFilter,
    libc::SOL_SOCKET,
    libc::SO_ATTACH_FILTER,
    Program,
    SetStruct<'_, Program>
);

#[derive(Clone, Copy)]
struct DetachFilter;
nix::setsockopt_impl!(DetachFilter, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, i32, SetStruct<'_, i32>);
