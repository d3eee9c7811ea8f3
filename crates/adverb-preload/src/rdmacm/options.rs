//! Options of identifiers, and vendor options of connections.

use adverb_sys::*;
use libc::{c_int, c_void, size_t};

use super::id::{Id, Stage};
use super::{Status, status};

impl Id {
    fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<(), c_int> {
        let int = || value.try_into().map(c_int::from_ne_bytes).map_err(|_| libc::EINVAL);
        match (level, name) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => match value {
                [class] => self.state.lock().options.traffic_class = *class,
                _ => return Err(libc::EINVAL),
            },
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                self.state.lock().options.reuse_address = int()? != 0;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                let family_only = int()? != 0;
                let mut state = self.state.lock();
                if !matches!(state.stage, Stage::Idle | Stage::Bound) {
                    return Err(libc::EINVAL);
                }
                state.options.family_only = family_only;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => match value {
                [timeout @ 0..=31] => self.state.lock().options.ack_timeout = Some(*timeout),
                _ => return Err(libc::EINVAL),
            },
            // The path replaces the one that resolving the route would find.
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
                self.resolve_route()?;
                return self.complete();
            }
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    }
}

entry! {
    /// Sets an option of an identifier.
    fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: size_t,
    ) -> Status {
        if optval.is_null() {
            return crate::entry::fail(libc::EINVAL);
        }
        // SAFETY: the identifier is alive, and the value is valid for reads of its length.
        let (id, value) = unsafe { (Id::of(id), std::slice::from_raw_parts(optval.cast::<u8>(), optlen)) };
        status(id.set_option(level, optname, value))
    }

    /// Fails: the software NIC has no vendor options.
    fn rdma_set_local_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> Status {
        crate::entry::fail(libc::EOPNOTSUPP)
    }

    /// Returns the peer's vendor options: none.
    fn rdma_get_remote_ece(_id: *mut rdma_cm_id, ece: *mut ibv_ece) -> Status {
        // SAFETY: the options are valid for writes.
        unsafe { ece.write(ibv_ece::zeroed()) };
        Status::SUCCESS
    }
}
