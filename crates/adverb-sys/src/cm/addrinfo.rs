//! Address information: addresses of services, and the kind of queue pair to reach them with.

use libc::{c_char, c_int, c_void, size_t, sockaddr, socklen_t};

shapes! {
    /// The address of a service, or the hints for looking it up.
    #[derive(Debug, Clone, Copy)]
    pub struct rdma_addrinfo {
        /// The `RAI_*` flags.
        pub ai_flags: c_int,
        /// The address family.
        pub ai_family: c_int,
        /// The queue pair type.
        pub ai_qp_type: c_int,
        /// The port space.
        pub ai_port_space: c_int,
        /// The length of the local address in bytes.
        pub ai_src_len: socklen_t,
        /// The length of the peer's address in bytes.
        pub ai_dst_len: socklen_t,
        /// The local address, or NULL.
        pub ai_src_addr: *mut sockaddr,
        /// The peer's address, or NULL.
        pub ai_dst_addr: *mut sockaddr,
        /// The canonical name of the local address, or NULL.
        pub ai_src_canonname: *mut c_char,
        /// The canonical name of the peer's address, or NULL.
        pub ai_dst_canonname: *mut c_char,
        /// The length of the route in bytes.
        pub ai_route_len: size_t,
        /// The route, or NULL.
        pub ai_route: *mut c_void,
        /// The length of the connection data in bytes.
        pub ai_connect_len: size_t,
        /// The connection data, or NULL.
        pub ai_connect: *mut c_void,
        /// The next address, or NULL.
        pub ai_next: *mut rdma_addrinfo,
    }

    // rdma_addrinfo.ai_flags
    pub const c_int {
        /// The address is a local one, to listen on.
        RAI_PASSIVE = 0x1,
        /// The name is a numeric address.
        RAI_NUMERICHOST = 0x2,
        /// The route isn't resolved.
        RAI_NOROUTE = 0x4,
        /// The address family is the one of the hints.
        RAI_FAMILY = 0x8,
    }
}
