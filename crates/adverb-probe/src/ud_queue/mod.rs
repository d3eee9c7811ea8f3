//! A UD queue pair with pre-registered send and receive slots, a cache of address handles, and completions that are
//! matched to requests by request ID and carry a timestamp.
