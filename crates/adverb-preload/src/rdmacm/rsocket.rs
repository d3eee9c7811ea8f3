//! rsockets, which this library doesn't have. Programs link them even if they don't use them.

use libc::{c_int, c_long};

use crate::entry::fail;

/// Declares functions that fail with EOPNOTSUPP. Their arguments are ignored, so that the C calling convention permits any.
macro_rules! unsupported {
    ($($name:ident -> $ret:ty;)*) => {
        $(
            /// Fails with EOPNOTSUPP.
            // SAFETY: the name is that of a C function, which this library replaces.
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name() -> $ret {
                crate::calls::count(stringify!($name), libc::EOPNOTSUPP);
                fail::<()>(libc::EOPNOTSUPP);
                -1
            }
        )*
    };
}

unsupported! {
    rsocket -> c_int;
    rbind -> c_int;
    rlisten -> c_int;
    raccept -> c_int;
    rconnect -> c_int;
    rshutdown -> c_int;
    rclose -> c_int;
    rrecv -> c_long;
    rrecvfrom -> c_long;
    rrecvmsg -> c_long;
    rsend -> c_long;
    rsendto -> c_long;
    rsendmsg -> c_long;
    rread -> c_long;
    rreadv -> c_long;
    rwrite -> c_long;
    rwritev -> c_long;
    rpoll -> c_int;
    rselect -> c_int;
    rgetpeername -> c_int;
    rgetsockname -> c_int;
    rsetsockopt -> c_int;
    rgetsockopt -> c_int;
    rfcntl -> c_int;
    riomap -> c_long;
    riounmap -> c_int;
    riowrite -> c_long;
}
