//! Files that accompany messages of a connection.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::{mem, ptr};

use nix::libc;

/// The maximum number of files that the kernel passes with a message (`SCM_MAX_FD`).
const MAX_FILES: usize = 253;

/// The length of the control message with the maximum number of files.
const CONTROL_LEN: usize = control_len(MAX_FILES);

const fn control_len(count: usize) -> usize {
    // SAFETY: the function only computes a length.
    unsafe { libc::CMSG_SPACE((count * size_of::<RawFd>()) as u32) as usize }
}

/// The memory for control messages, with their alignment.
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// Receives a message without blocking, and the files that accompany it. Returns the message's length, which is 0 if the
/// connection is closed.
///
/// # Errors
///
/// Returns `WouldBlock` if there is no message, the error of the connection, or an error if this process has no descriptors
/// for all files.
pub(in crate::link) fn receive(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = mem::MaybeUninit::<Control>::uninit();
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all fields may be zero.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_LEN as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the kernel writes at most the given lengths to the buffers.
    let length = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut header, flags) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut files = Vec::new();
    // SAFETY: the kernel has written `msg_controllen` bytes of control messages.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !next.is_null() {
        // SAFETY: `next` is a control message of the header. Its length is that of its data, also if the process had
        // descriptors for a part of the files only.
        unsafe {
            if (*next).cmsg_level == libc::SOL_SOCKET && (*next).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(next).cast::<RawFd>();
                let data_len = (*next).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..data_len / size_of::<RawFd>() {
                    // The kernel has just created the descriptor for this message, and nothing else has it.
                    files.push(OwnedFd::from_raw_fd(ptr::read_unaligned(data.add(index))));
                }
            }
            next = libc::CMSG_NXTHDR(&raw const header, next);
        }
    }
    if header.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((length as usize, files))
}
